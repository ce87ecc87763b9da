"""The outline of a fit: its arithmetic, and what a cluster changes."""

import re
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from byte_products import without_byte_products
from scipy.sparse import csr_array

from bigscreen import SVC, NystroemSVC, fit_many
from bigscreen.data.memory import MemoryDataset
from bigscreen.errors import InputError
from bigscreen.fleet.inline import Inline
from bigscreen.fleet.local import local_cluster
from bigscreen.kernels import vnni
from bigscreen.options.train import TrainOptions
from bigscreen.options.tuning import Tuning
from bigscreen.plan import plan as plan_module
from bigscreen.plan.plan import plan
from bigscreen.plan.tuning import PLAN
from bigscreen.train.run import train

UNITS = {"MiB": 2**20, "GiB": 2**30}


def rows(n=600, d=3):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d)).astype(np.float32)
    return MemoryDataset(X, (X[:, 0] > 0).astype(int), [0, 1])


def sizes(sentence):
    """The sizes that a sentence names, and the largest error of their rounding."""
    found = re.findall(r"(\d+(?:\.\d+)?) (MiB|GiB)", sentence)
    bytes_ = [float(number) * UNITS[unit] for number, unit in found]
    return bytes_, sum(UNITS[unit] * (0.5 if unit == "MiB" else 0.005) for _, unit in found)


@pytest.mark.parametrize("cluster", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"kernel": "linear"},
        {"landmarks": 500},
        {"landmarks": 500, "solver": "cd"},
        {"landmarks": 500, "solver": "pairs"},
        {"exact": True, "solver": "block"},
        {"exact": True, "solver": "pairs"},
        {"exact": True, "cache": 10**6},
    ],
    ids=str,
)
def test_the_parts_of_a_refusal_add_up(options, cluster):
    chosen = TrainOptions(memory=2**20, **options)
    outline = plan(rows(), chosen, workers=3, cluster=cluster)
    (total, allowed, *parts), rounding = sizes(outline.refusal)
    assert total == pytest.approx(outline.peak_bytes, abs=rounding) and allowed == 2**20
    linear = options.get("kernel") == "linear"
    assert len(parts) == (5 if "exact" in options or linear else 4)
    assert sum(parts) == pytest.approx(total, abs=rounding)
    # Said in the same words from Python and from the command line.
    assert "--" not in outline.refusal and "memory allowed" in outline.refusal
    with Inline(1) as fleet, pytest.raises(InputError, match="memory allowed is 1 MiB"):
        train(rows(), chosen, fleet)


@pytest.mark.parametrize(
    "options",
    [
        {"kernel": "linear"},
        {"landmarks": 10},
        {"landmarks": 10, "tuning": Tuning(features="recomputed")},
        {"exact": True, "solver": "block"},
        {"exact": True, "solver": "pairs"},
    ],
    ids=str,
)
def test_features_that_hardly_any_row_has_are_counted(options):
    X = csr_array((np.ones(600, np.float32), np.arange(600), np.arange(601)), shape=(600, 2**27))
    wide = MemoryDataset(X, np.arange(600) % 2, [0, 1])
    outline = plan(wide, TrainOptions(memory=2**31, **options))
    assert outline.peak_bytes > 2**32 and "of 134217728 features" in outline.refusal
    with Inline(1) as fleet, pytest.raises(InputError, match="memory allowed is 2.00 GiB"):
        train(wide, TrainOptions(memory=2**31, gamma=1.0, **options), fleet)
    narrow = MemoryDataset(X[:, :600], np.arange(600) % 2, [0, 1])
    assert plan(narrow, TrainOptions(memory=2**31, **options)).refusal is None


def test_what_is_allowed_is_not_refused():
    outline = plan(rows(), TrainOptions(memory=2**31))
    assert outline.refusal is None and outline.peak_bytes <= 2**31
    refused = plan(rows(), TrainOptions(memory=outline.peak_bytes // 2))
    assert refused.refusal is not None


@pytest.mark.parametrize(
    ("d", "flags", "bytes_multiplied", "little"),
    [
        (3, False, False, True),
        (64, False, False, True),
        (65, False, False, False),
        (65, True, False, False),
        (65, False, True, False),
        (65, True, True, True),
        (1025, True, True, False),
    ],
)
def test_columns_that_are_quickly_computed_again_take_little(d, flags, bytes_multiplied, little):
    if bytes_multiplied and not vnni.is_available():
        pytest.skip("this processor multiplies no bytes (AVX-512 VNNI)")
    n, options = 20_000, TrainOptions(exact=True, memory=2**34)
    data = rows(n, d)
    if flags:
        data = MemoryDataset((data.X(0, n) > 1).astype(np.float32), data.y(0, n), [0, 1])
    with nullcontext() if bytes_multiplied else without_byte_products():
        assert plan(data, options).cache_bytes == (2**28 if little else 4 * n * n)
        other = replace(options, kernel="laplacian")
        assert plan(data, other).cache_bytes == 4 * n * n


def test_columns_of_an_exact_machine_take_what_memory_is_left():
    n = 20_000
    data, column = rows(n, 65), 4 * n
    with without_byte_products():
        outlines = [plan(data, TrainOptions(exact=True, memory=m)) for m in (2**30, 2**33, 2**40)]
    cached = [outline.cache_bytes for outline in outlines]
    assert all(outline.refusal is None for outline in outlines)
    assert all(16 * column <= size <= n * column for size in cached)
    # A share of the memory; what there is room for; all of them.
    assert cached[0] < cached[1] == cached[2] == n * column
    least = plan(data, TrainOptions(exact=True, memory=1)).peak_bytes
    tight = plan(data, TrainOptions(exact=True, memory=least))
    assert tight.refusal is None and tight.cache_bytes == 16 * column
    refused = plan(data, TrainOptions(exact=True, memory=least - column))
    assert "16 kernel columns" in refused.refusal and "landmarks" in refused.refusal
    given = plan(data, TrainOptions(exact=True, memory=2**30, cache=50 * column))
    assert given.cache_bytes == 50 * column and given.features == "exact"
    assert (
        "give less of it to the cache"
        in plan(data, TrainOptions(exact=True, memory=least, cache=1000 * column)).refusal
    )
    assert plan(data, TrainOptions(exact=True, cache=1)).cache_bytes == 1


def test_which_solver_an_exact_machine_has():
    for cluster in (False, True):
        for n, solver in ((PLAN.few_rows, "pairs"), (PLAN.few_rows + 1, "block")):
            outline = plan(rows(n), TrainOptions(exact=True), cluster=cluster)
            assert outline.solver == solver
            assert outline.alone == (cluster and solver == "pairs")
    assert plan(rows(), TrainOptions(exact=True, solver="block")).solver == "block"


def test_pairs_of_labels_are_so_many_classifiers():
    X = np.zeros((40, 2), np.float32)
    data = MemoryDataset(X, np.arange(40) % 5, list(range(5)))
    for exact in (False, True):
        made = {"exact": exact, "landmarks": 10}
        assert plan(data, TrainOptions(**made)).classifiers == 5
        assert plan(data, TrainOptions(strategy="one", **made)).classifiers == 10


@pytest.mark.slow
def test_workers_read_features_from_disk(tmp_path):
    """Features kept in memory would be out of reach of other processes."""
    options = TrainOptions(landmarks=20, tuning=Tuning(features="stored"), work=tmp_path / "work")
    assert plan(rows(), options).features_in_memory
    outline = plan(rows(), options, cluster=True)
    assert not outline.features_in_memory and outline.disk_bytes == 4 * 600 * 20
    with Inline(1) as fleet:
        train(rows(), options, fleet)
        assert not list((tmp_path / "work").glob("features*"))
    with local_cluster(1) as fleet:
        train(rows(), options, fleet)
    assert list((tmp_path / "work").glob("features*"))


@pytest.mark.slow
def test_a_folder_is_made_where_features_are_written_and_nowhere_else(tmp_path):
    options = TrainOptions(landmarks=20, tuning=Tuning(features="stored"))
    made = []

    def scratch():
        made.append(tmp_path / "scratch")
        return made[-1]

    with Inline(1) as fleet:
        train(rows(), options, fleet, scratch=scratch)
        assert not made
    with local_cluster(1) as fleet:
        train(rows(), options, fleet, scratch=scratch)
    assert made == [tmp_path / "scratch"] and list(made[0].glob("features*"))


def test_features_that_no_folder_takes_are_computed_again():
    stored = TrainOptions(landmarks=20, tuning=Tuning(features="stored"))
    assert plan(rows(), stored, cluster=True).disk_bytes
    assert plan(rows(), stored, has_folder=False).features_in_memory
    instead = plan(rows(), stored, cluster=True, has_folder=False)
    assert instead == plan(rows(), stored.tuned(features="recomputed"), cluster=True)
    assert instead.features == "recomputed" and not instead.disk_bytes


def test_rows_are_kept_as_far_as_memory_goes():
    """A byte less keeps a few rows less: no cliff. Nor does what is kept take more than allowed."""
    data, kept = rows(2_000_000), []
    options = TrainOptions(landmarks=150, tuning=Tuning(features="stored"))
    for memory in range(700 << 20, 2200 << 20, 50 << 20):
        outline = plan(data, replace(options, memory=memory), workers=2)
        assert outline.refusal is None and outline.peak_bytes <= memory
        kept.append(outline.resident)
    assert kept == sorted(kept) and kept[0] < 0.2 and kept[-1] == 1.0
    assert max(np.diff(kept)) < 0.2
    # Where few can be kept, they are better computed again than read again.
    assert (
        plan(data, replace(options, memory=2**30).tuned(features="auto")).features == "recomputed"
    )
    # Another solver reads all of them, or none.
    other = plan(data, replace(options, memory=2**30, solver="cd"))
    assert other.resident == 0.0


def test_the_rows_that_features_are_made_of_are_counted():
    stored = TrainOptions(landmarks=500, tuning=Tuning(features="stored"), memory=2**34)
    X = np.zeros((40_000, 784), np.float32)
    wide = MemoryDataset(X, np.arange(len(X)) % 2, [0, 1], shard_rows=4096, chunk_rows=4096)
    peak = plan(wide, stored, workers=2).peak_bytes
    assert peak == pytest.approx(380 * 2**20, rel=0.1)  # (measured: 366 to 394 MiB)


@pytest.mark.parametrize(
    ("n", "d", "features"),
    [(20_000, 18, "recomputed"), (100_000, 3, "recomputed"), (10_000, 1500, "stored")],
)
def test_many_landmarks_store_features_of_wide_rows_alone(n, d, features):
    """Of narrow ones entries are made in a fraction of what the product with T takes."""
    outline = plan(rows(n, d), TrainOptions(landmarks=2500, solver="newton"))
    assert outline.features == features


def test_columns_that_products_go_over_again_take_what_is_left():
    data, options = (
        rows(1_000_000),
        TrainOptions(landmarks=1000, tuning=Tuning(features="recomputed")),
    )
    whole = plan(data, replace(options, memory=2**31), 2)
    for less in (10 << 20, 20 << 20):
        outline = plan(data, replace(options, memory=whole.peak_bytes - less), 2)
        assert outline.refusal is None
        assert outline.peak_bytes == pytest.approx(whole.peak_bytes - less, abs=1)
    # Features use the memory that gathered rows have at other times: no fit is refused for them.
    least = plan(data, replace(options, memory=whole.peak_bytes - (40 << 20)), 2)
    assert least.refusal is not None
    assert whole.nearby_bytes > outline.nearby_bytes > 0


def test_each_worker_stays_within_its_part():
    """Rows that are kept count where they are kept: in workers, each of which has a limit."""
    data, kept = rows(1_000_000), []
    options = TrainOptions(landmarks=300, tuning=Tuning(features="stored"))
    for mib in (1200, 1600, 2048, 4096):
        memory = mib << 20
        outline = plan(data, replace(options, memory=memory), 2, True)
        assert outline.refusal is None
        assert 0 < outline.worker_bytes <= memory / 3
        assert outline.worker_bytes * 2 < outline.peak_bytes <= memory
        kept.append(outline.resident)
    assert kept == sorted(kept) and kept[0] < 0.2 and kept[-1] == 1.0


def test_a_worker_has_room_for_the_shards_of_one_that_died():
    """A row's state is planned where it is while a worker is dead: in one fewer."""
    one, two = (rows(n) for n in (1_000_000, 2_000_000))
    options = TrainOptions(landmarks=100, tuning=Tuning(features="recomputed"), memory=2**36)
    for workers in (2, 3, 9):
        more = [plan(data, options, workers, True).worker_bytes for data in (one, two)]
        assert more[1] - more[0] >= 72 * 1_000_000 / (workers - 1)


def test_the_limits_of_workers_elsewhere_count():
    data = rows(1_000_000)
    options = TrainOptions(landmarks=300, tuning=Tuning(features="stored"))
    little, much = (plan(data, options, 2, True, limit=n << 20) for n in (400, 4000))
    assert little.refusal is None and little.worker_bytes <= 400 << 20
    assert little.resident < 0.2 and much.resident == 1.0
    # The smaller of the requested memory and the limits of workers counts.
    for memory, limit in ((1200 << 20, 4000 << 20), (2**36, 400 << 20)):
        both = plan(data, replace(options, memory=memory), 2, True, limit=limit)
        assert both.worker_bytes <= 400 << 20 and both.resident < 0.2
    none = plan(data, options, 2, True, limit=200 << 20)
    assert none.refusal.startswith("each of 2 workers needs about")
    (total, allowed, *parts), rounding = sizes(none.refusal)
    assert allowed == 200 << 20 and sum(parts) == pytest.approx(total, abs=rounding)


def test_a_fit_that_one_process_does_leaves_the_workers_alone():
    for options in ({"exact": True}, {"kernel": "linear"}):
        data = rows(100, 60)
        alone, here = (plan(data, TrainOptions(**options), 2, cluster) for cluster in (True, False))
        assert alone.alone and not here.alone
        assert alone.solver == here.solver != "newton"
        assert alone.peak_bytes == here.peak_bytes + 2 * alone.worker_bytes


def test_a_fit_is_planned_once(monkeypatch, tmp_path):
    """From an estimator, whose features may need a folder, and of many fits."""
    asked = []
    for name in ("plan_features", "plan_exact"):
        real = getattr(plan_module, name)
        counted = lambda *args, real=real: asked.append(1) or real(*args)  # noqa: E731
        monkeypatch.setattr(plan_module, name, counted)
    X, y = rows(300, 5).X(0, 300), np.arange(300) % 3
    small = {"n_components": 20, "work": tmp_path}
    for machine in (
        SVC(),
        NystroemSVC(**small),
        NystroemSVC(tuning=Tuning(features="stored"), **small),
    ):
        machine.fit(X, y)
        assert asked == [1], machine
        asked.clear()
    fit_many(NystroemSVC(**small), X, np.stack([y, y[::-1]], 1))
    assert asked == [1]
