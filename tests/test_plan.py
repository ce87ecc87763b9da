"""The outline of a fit: its arithmetic, and what a cluster changes."""

import re

import numpy as np
import pytest

from bigscreen.errors import InputError
from bigscreen.fleet import Inline
from bigscreen.fleet_start import local_cluster
from bigscreen.store import MemoryDataset
from bigscreen.train import TrainOptions, plan, train

UNITS = {"MiB": 2**20, "GiB": 2**30}


def rows(n=600):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 3)).astype(np.float32)
    return MemoryDataset(X, (X[:, 0] > 0).astype(int), [0, 1])


def sizes(sentence):
    """The sizes that a sentence names, and the largest error of their rounding."""
    found = re.findall(r"(\d+(?:\.\d+)?) (MiB|GiB)", sentence)
    bytes_ = [float(number) * UNITS[unit] for number, unit in found]
    return bytes_, sum(UNITS[unit] * (0.5 if unit == "MiB" else 0.005) for _, unit in found)


@pytest.mark.parametrize("cluster", [False, True])
@pytest.mark.parametrize(
    "options",
    [{"kernel": "linear"}, {"landmarks": 500}, {"landmarks": 500, "solver": "cd"}],
    ids=str,
)
def test_the_parts_of_a_refusal_add_up(options, cluster):
    chosen = TrainOptions(memory=2**20, **options)
    outline = plan(rows(), chosen, workers=3, cluster=cluster)
    (total, allowed, *parts), rounding = sizes(outline.refusal)
    assert total == pytest.approx(outline.peak_bytes, abs=rounding) and allowed == 2**20
    assert len(parts) == 4 and sum(parts) == pytest.approx(total, abs=rounding)
    # Said in the same words from Python and from the command line.
    assert "--" not in outline.refusal and "memory allowed" in outline.refusal
    with Inline(1) as fleet, pytest.raises(InputError, match="memory allowed is 1 MiB"):
        train(rows(), chosen, fleet)


def test_what_is_allowed_is_not_refused():
    outline = plan(rows(), TrainOptions(memory=2**31))
    assert outline.refusal is None and outline.peak_bytes <= 2**31
    refused = plan(rows(), TrainOptions(memory=outline.peak_bytes // 2))
    assert refused.refusal is not None


def test_workers_read_features_from_disk(tmp_path):
    """Features kept in memory would be out of reach of other processes."""
    options = TrainOptions(landmarks=20, features="stored", work=tmp_path / "work")
    assert plan(rows(), options).features_in_memory
    outline = plan(rows(), options, cluster=True)
    assert not outline.features_in_memory and outline.disk_bytes == 4 * 600 * 20
    with Inline(1) as fleet:
        train(rows(), options, fleet)
        assert not list((tmp_path / "work").glob("features*"))
    with local_cluster(1) as fleet:
        train(rows(), options, fleet)
    assert list((tmp_path / "work").glob("features*"))
