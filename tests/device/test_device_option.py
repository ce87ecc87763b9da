"""The option device: what computes a fit, what is refused, and what plans and records say."""

import json
import os
from dataclasses import replace
from functools import partial

import failing_arrays
import numpy as np
import pytest
from cli_world import bigscreen, succeed, write_csv
from scipy import sparse

from bigscreen import LinearSVC, NystroemSVC, NystroemSVCCV, SVCPathCV, TrainOptions, svm_path
from bigscreen.data.memory import MemoryDataset
from bigscreen.device import find
from bigscreen.device.find import HOST, Device, device_of_each_worker, find_on
from bigscreen.device.newton import DenseNewton
from bigscreen.device.place import Place
from bigscreen.errors import DeviceFailed, InputError
from bigscreen.fleet.inline import Inline
from bigscreen.fleet.local import local_cluster
from bigscreen.options.tuning import Tuning
from bigscreen.path.options import PathOptions
from bigscreen.path.run import train_path
from bigscreen.plan.device import choose_device, plan_device
from bigscreen.plan.plan import plan
from bigscreen.plan.tuning import PLAN
from bigscreen.report.certificate import facts, fit_record
from bigscreen.train.resample import resample
from bigscreen.train.run import train
from bigscreen.tune.options import SearchTuning, TuneOptions
from bigscreen.tune.search import tune

GPU = Device(Place("array_api_strict"), "Stand-in", "array-api-strict 2", 2**30)


@pytest.fixture
def gpu(monkeypatch):
    """A machine with a device, for which array-api-strict stands in."""
    monkeypatch.setattr(find, "LIBRARIES", {"stand-in": lambda: GPU})
    monkeypatch.setattr(find, "count_devices", lambda: 1)


def rows(n=400, columns=4):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, columns)).astype(np.float32)
    return X, (X[:, 0] + X[:, 1] ** 2 > 0.5).astype(np.int32)


def data_of(n=400):
    X, y = rows(n)
    return MemoryDataset(X, y, [0, 1])


def fitted(**options):
    with Inline(1) as fleet:
        return train(data_of(), TrainOptions(landmarks=30, **options), fleet)


def test_a_fit_on_a_device_is_proved_and_says_what_computed(gpu):
    model, own = fitted(device="cuda"), fitted(device="cpu", solver="newton")
    known = model.provenance
    assert known["device"] == {"name": "Stand-in", "library": "array-api-strict 2"}
    assert (known["solver"], known["screening"][0]["rule"]) == ("dense", "none")
    assert known["certificates"][0]["relative_gap"] <= 1e-3
    shown = facts(fit_record(model))
    assert shown["computed on"] == "Stand-in, array-api-strict 2"
    assert facts(fit_record(own))["computed on"] == own.provenance["device"]["name"] == "cpu"
    proofs = [one.provenance["certificates"][0] for one in (model, own)]
    apart = abs(proofs[0]["primal"] - proofs[1]["primal"])
    assert apart <= sum(one["gap"] + one["rounding_bound"] for one in proofs)


def test_estimators_pass_the_device_on(gpu):
    X, y = rows()
    for machine in (NystroemSVC(n_components=30), LinearSVC(loss="hinge", tol=1e-3)):
        model = machine.set_params(device="cuda").fit(X, y).model_
        assert model.provenance["device"]["name"] == "Stand-in"
        model = machine.set_params(device="auto").fit(X, y).model_
        assert model.provenance["device"]["name"] == "cpu"


def test_without_a_device_auto_is_the_cpu_bit_for_bit():
    one, other = fitted(), fitted(device="cpu")
    np.testing.assert_array_equal(one.coef, other.coef)
    assert one.provenance["certificates"] == other.provenance["certificates"]
    assert "device" not in one.provenance["parameters"]


def test_auto_takes_a_device_for_large_fits_of_dense_rows_only():
    data, tuning = data_of(), replace(PLAN, device_entries=400 * 30)
    X, y = rows()
    wide = MemoryDataset(sparse.csr_array(X), y, [0, 1])

    def choose(data=data, fits=1, tuning=tuning, **options):
        options = TrainOptions(landmarks=30, **options)
        return choose_device(data, options, lambda wanted: GPU, fits, tuning)

    assert choose() is GPU and choose(solver="dense") is GPU
    fewer = replace(tuning, device_entries=400 * 31)
    assert choose(tuning=fewer) is HOST and choose(tuning=fewer, fits=2) is GPU
    assert choose(tuning=fewer, device="cuda") is GPU
    for other in ({"solver": "newton"}, {"device": "cpu"}, {"kernel": "linear"}):
        assert choose(**other) is HOST
    entries = replace(tuning, device_entries=PLAN.computed_fraction * 400**2)
    assert choose(tuning=entries, exact=True) is choose(tuning=entries, exact=True, solver="block")
    assert choose(tuning=entries, exact=True) is GPU
    for other in ({"solver": "pairs"}, {"early": True}, {"kernel": len}):
        assert choose(tuning=entries, exact=True, **other) is HOST
    assert choose(tuning=replace(entries, device_entries=2 * 400**2), exact=True) is HOST
    assert choose(data=wide) is HOST
    with pytest.raises(InputError, match="computes with dense rows, and these are sparse"):
        choose(data=wide, device="cuda")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"exact": True, "solver": "pairs"}, "solver pairs computes .* solver block on device"),
        ({"exact": True, "early": True}, "an early machine is computed on the CPU"),
        ({"exact": True, "kernel": "precomputed"}, "a given kernel is computed on the CPU"),
        ({"solver": "cd"}, "solver cd computes on the CPU, and solver dense on device cuda"),
        ({"tuning": Tuning(start="nystrom")}, "device cuda begins a fit at zero, not at"),
        ({"tuning": Tuning(start="divide"), "device": "cpu", "solver": "dense"}, "dense begins a"),
        ({"device": "gpu"}, "device must be one of auto, cpu, cuda"),
    ],
)
def test_what_only_the_cpu_computes_is_refused(options, sentence):
    with pytest.raises(InputError, match=sentence):
        TrainOptions(**{"device": "cuda", **options})


def bytes_on_device(data=None, memory=None, workers=1, **options):
    options = TrainOptions(device="cuda", landmarks=30, device_memory=memory, **options)
    return plan_device(GPU, data or data_of(), options, workers)


def test_the_plan_keeps_features_or_else_rows_or_nothing():
    whole = bytes_on_device()
    assert (whole.feature_bytes, whole.row_bytes) == (4 * 400 * 30, 0)
    assert whole.limit_bytes == int(0.9 * GPU.free_bytes)
    work = whole.work_bytes
    rows_only = bytes_on_device(memory=work + 4 * 400 * 30 - 1)
    assert (rows_only.feature_bytes, rows_only.row_bytes) == (0, 4 * 400 * 4)
    neither = bytes_on_device(memory=work + 4 * 400 * 4 - 1)
    assert (neither.feature_bytes, neither.row_bytes) == (0, 0)
    assert neither.room == 4 * 400 * 4 - 1
    assert bytes_on_device(tol=1e-6).feature_bytes == 8 * 400 * 30
    assert bytes_on_device(kernel="linear").row_bytes == 4 * 400 * 4


def test_a_device_without_the_memory_is_refused_with_the_arithmetic(gpu):
    found = bytes_on_device(memory=1000)
    assert "Stand-in and the memory allowed there is 0 MiB" in found.refusal
    options = TrainOptions(device="cuda", landmarks=30, device_memory=1000)
    assert plan(data_of(), options, device=GPU).refusal == found.refusal
    with Inline(1) as fleet, pytest.raises(InputError, match="needs about [0-9]+ MiB on Stand-in"):
        train(data_of(), options, fleet)
    # Nobody has asked for a device that is too small: the CPU computes.
    unasked = plan(data_of(), replace(options, device="auto"), device=GPU)
    assert unasked.refusal is None and unasked.device is HOST


def test_little_device_memory_gives_the_same_machine(gpu):
    need = bytes_on_device().work_bytes
    kept, streamed = fitted(device="cuda"), fitted(device="cuda", device_memory=need + 100)
    proofs = [one.provenance["certificates"][0] for one in (kept, streamed)]
    apart = abs(proofs[0]["primal"] - proofs[1]["primal"])
    assert apart <= sum(one["gap"] + one["rounding_bound"] for one in proofs)


def test_commands_take_the_option_and_plan_says_what_goes_where(gpu, tmp_path):
    store, model = tmp_path / "rows.store", tmp_path / "model.bsm"
    succeed("ingest", write_csv(tmp_path / "rows.csv"), store, "--label", "inside")
    how = ("--landmarks", 30, "--threads", 1, "--device", "cuda")
    shown = succeed("plan", store, *how, "--json", tmp_path / "plan.json")
    assert "Stand-in, array-api-strict 2" in shown and "rows computed once, features" in shown
    record = json.loads((tmp_path / "plan.json").read_text())["device"]
    assert (record["name"], record["devices"]) == ("Stand-in", 1)
    assert record["feature_bytes"] == 4 * 600 * 30
    shown = succeed("plan", store, *how, "--device-memory", record["work_bytes"] + 100)
    assert "features computed in every pass" in " ".join(shown.split())
    small = bigscreen("plan", store, *how, "--device-memory", "1kB")
    assert small.exit_code == 2 and "allow more (--device-memory)" in small.output
    succeed("fit", store, model, *how, "--json", tmp_path / "fit.json")
    assert json.loads((tmp_path / "fit.json").read_text())["device"]["name"] == "Stand-in"
    assert "Stand-in" in succeed("info", model)
    for *more, sentence in (
        ("--exact", "--solver", "pairs", "solver block on device cuda; leave out --solver, or "
         "--device"),
        ("--solver", "cd", "leave out --solver, or --device"),
        ("--device", "cpu", "--device-memory", "1GB", "--device-memory has no meaning with "
         "--device cpu"),
    ):  # fmt: skip
        refused = bigscreen("plan", store, "--device", "cuda", *more)
        assert refused.exit_code == 2 and sentence in refused.output


def test_each_worker_on_this_machine_gets_a_device(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, GPU-7")
    assert device_of_each_worker(2, "cuda") == ["2", "GPU-7"]
    assert device_of_each_worker(1, "auto") == ["2"]
    assert device_of_each_worker(2, "cpu") is None
    assert device_of_each_worker(3, "auto") == ["", "", ""]
    with pytest.raises(InputError, match=r"3 workers need a device each, and this machine shows 2"):
        device_of_each_worker(3, "cuda")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(find, "count_devices", lambda: 0)
    assert device_of_each_worker(2, "auto") is None
    monkeypatch.setattr(find, "count_devices", lambda: 2)
    assert device_of_each_worker(2, "auto") == ["0", "1"]


@pytest.mark.slow
def test_worker_processes_see_their_devices_and_say_what_they_lack():
    with local_cluster(2, devices=["3", "5"]) as fleet:
        look = partial(os.getenv, "CUDA_VISIBLE_DEVICES")
        assert sorted(fleet.everywhere(look)) == ["3", "5"]
        with pytest.raises(InputError, match=r"the worker tls://\S+: device cuda: "):
            find_on(fleet, "cuda")
        assert find_on(fleet, "auto") == HOST


class Workers:
    """Stands in for a cluster, whose workers find these devices."""

    def __init__(self, *found):
        self.found = found

    def everywhere(self, function):
        assert isinstance(function, partial)
        return list(self.found)


def test_workers_must_have_equal_devices_and_the_least_memory_counts():
    small, other = replace(GPU, free_bytes=1000), replace(GPU, name="Another")
    assert find_on(Workers(GPU, small), "cuda") == small
    with pytest.raises(InputError, match="one process has Stand-in .* and another Another"):
        find_on(Workers(GPU, other), "cuda")
    assert find_on(Workers(GPU, other), "auto") is HOST
    assert find_on(Workers(HOST, HOST), "auto") == HOST


@pytest.fixture
def failing(monkeypatch):
    """A device that fails at a product of choice."""
    found = Device(Place("failing_arrays"), "Frail", "Frail arrays 1", 2**30)
    monkeypatch.setattr(find, "LIBRARIES", {"stand-in": lambda: found})
    monkeypatch.setattr(failing_arrays, "products_left", 10**9)
    monkeypatch.setattr(failing_arrays, "most_bytes", 10**12)
    return failing_arrays


def test_a_device_that_fails_ends_a_fit_in_one_sentence_and_it_goes_on(
    failing, monkeypatch, tmp_path
):
    store, model = tmp_path / "rows.store", tmp_path / "model.bsm"
    succeed("ingest", write_csv(tmp_path / "rows.csv"), store, "--label", "inside")
    how = ("fit", store, model, "--landmarks", 30, "--threads", 1, "--solver", "dense")
    monkeypatch.setattr(failing, "products_left", 8)
    ended = bigscreen(*how, "--device", "cuda")
    assert ended.exit_code == 2 and "Traceback" not in ended.output
    assert "Frail has failed (unspecified launch failure); what is done so far" in ended.output
    assert "the same command with --resume goes on" in " ".join(ended.output.split())
    succeed(*how, "--resume", "--device", "cpu")
    assert "cpu" in succeed("info", model)


def test_features_that_a_device_has_no_memory_for_are_computed_in_every_pass(failing, monkeypatch):
    kept = fitted(device="cuda")
    monkeypatch.setattr(failing, "most_bytes", 8 * 400 * 30 - 1)
    tiles = fitted(device="cuda")
    proofs = [one.provenance["certificates"][0] for one in (kept, tiles)]
    assert proofs[1]["relative_gap"] <= 1e-3
    assert proofs[0]["primal"] != proofs[1]["primal"]  # (the products differ in their last bits)
    monkeypatch.setattr(failing, "most_bytes", 100)
    with pytest.raises(DeviceFailed, match="Frail has too little memory left"):
        fitted(device="cuda")


def test_the_process_that_coordinates_workers_needs_a_device_as_well(gpu, monkeypatch):
    workers = Workers(GPU, GPU)
    workers.address = "tcp://somewhere"
    assert find_on(workers, "cuda") == GPU
    monkeypatch.setattr(find, "LIBRARIES", {})
    with pytest.raises(InputError, match="the process that coordinates the workers needs a device"):
        find_on(workers, "cuda")
    monkeypatch.setattr(find, "count_devices", lambda: 0)
    assert find_on(workers, "auto") is HOST


def path_on(device, folds=None, rules=None, **options):
    fit = TrainOptions(**{"landmarks": 30, "gamma": 0.3, "device": device, **options})
    grid = (0.2, 0.4) if fit.problem == "nu-svc" else (0.1, 1.0)
    with Inline(1) as fleet:
        return train_path(data_of(), PathOptions(fit, grid, folds, rules), fleet)


@pytest.mark.parametrize(
    "options",
    [{}, {"kernel": "linear", "gamma": "scale"}, {"problem": "nu-svc", "intercept": "true"}],
)
def test_a_path_on_a_device_has_the_points_and_scores_of_the_cpu(gpu, options):
    one, other = (path_on(device, 2, **options) for device in ("cuda", "cpu"))
    known = one.record["provenance"]
    assert (known["device"]["name"], known["solver"]) == ("Stand-in", "dense")
    assert other.record["provenance"]["device"]["name"] == "cpu"
    for (a,), (b,) in zip(*(path.record["points"] for path in (one, other)), strict=True):
        assert a["relative_gap"] <= 1e-3
        apart = abs(a["primal"] - b["primal"])
        assert apart <= sum(point["gap"] + point["rounding"] for point in (a, b))
    assert np.abs(one.scores - other.scores).max() <= 0.02
    assert one.model(0).provenance["device"]["name"] == "Stand-in"


def test_a_path_that_no_device_solves_is_refused_or_left_to_the_cpu(gpu, monkeypatch):
    with pytest.raises(InputError, match="path of an exact machine is computed on the CPU"):
        path_on("cuda", exact=True)
    with pytest.raises(InputError, match="rule gap leaves out rows .* as does a device"):
        path_on("cuda", rules=("gap",))
    monkeypatch.setattr("bigscreen.plan.device._gains", lambda *given: True)
    assert path_on("auto").record["provenance"]["device"]["name"] == "Stand-in"
    for options in ({"rules": ("gap",)}, {"exact": True}, {"device_memory": 1000}):
        assert path_on("auto", **options).record["provenance"]["device"]["name"] == "cpu"


def test_the_problems_of_a_path_are_solved_in_groups_that_the_device_has_memory_for(
    gpu, monkeypatch
):
    groups, solve = [], DenseNewton.solve_many

    def solve_many(self, run, cases, until):
        groups.append(len(cases))
        return solve(self, run, cases, until)

    monkeypatch.setattr(DenseNewton, "solve_many", solve_many)
    found = bytes_on_device()
    path_on("cuda", 2)
    few = path_on("cuda", 2, device_memory=found.work_bytes + found.feature_bytes + 240 * 400)
    assert groups == [6, 2, 2, 2]
    assert few.record["points"][1][0]["relative_gap"] <= 1e-3


def search_on(device, elimination="none", n=400, gammas=(0.1, 0.5), most=20, **options):
    fit = TrainOptions(**{"device": device, "landmarks": 1, **options})
    counts = None if fit.exact else [most]
    small = SearchTuning(min_rows=100, min_held_rows=100)
    given = TuneOptions(fit, gammas, [0.1, 1.0], counts, 2, elimination, tuning=small)
    with Inline(1) as fleet:
        return tune(data_of(n), given, fleet)


@pytest.mark.parametrize("intercept", ["penalized", "true"])
def test_a_search_solves_all_folds_and_values_on_the_device(gpu, intercept):
    one, other = (search_on(device, intercept=intercept) for device in ("cuda", "cpu"))
    records = [model.provenance["search"] for model in (one, other)]
    assert [record["stages"][0]["device"] for record in records] == ["Stand-in", "cpu"]
    assert one.provenance["device"]["name"] == "Stand-in"
    for a, b in zip(*(record["candidates"] for record in records), strict=True):
        assert a["gap"] <= 1e-3
        assert np.abs(np.subtract(a["scores"], b["scores"])).max() <= 0.02


def test_rungs_of_a_part_of_the_rows_are_solved_on_the_device(gpu):
    one, other = (
        search_on(device, "halving", gammas=np.geomspace(0.1, 1, 7)).provenance["search"]
        for device in ("cuda", "cpu")
    )
    assert {stage["device"] for stage in one["stages"]} == {"Stand-in"}
    assert one["stages"][0]["rows"] < 400 == one["stages"][-1]["rows"]
    # (On a part of the rows the gap is 3e-2.)
    assert abs(one["stages"][0]["best"] - other["stages"][0]["best"]) <= 0.03
    assert abs(one["best"]["score"] - other["best"]["score"]) <= 0.02


def test_a_rung_on_the_cpu_after_one_on_a_device_begins_anew(gpu, monkeypatch):
    monkeypatch.setattr(
        "bigscreen.plan.device._gains", lambda data, options, fits, tuning: fits > 2
    )
    # (With these gammas the CPU's features have fewer columns than there are landmarks.)
    flat = {"gammas": np.geomspace(1e-3, 3e-3, 7), "most": 150}
    found = search_on("auto", "halving", **flat).provenance["search"]
    devices = [stage["device"] for stage in found["stages"]]
    assert "Stand-in" in devices[0] and "cpu" in devices[-1]
    assert all(one["gap"] <= 3e-2 for one in found["candidates"])


def test_the_search_of_an_exact_machine_is_the_cpus(gpu):
    exact = search_on("cuda", n=100, exact=True)
    assert exact.provenance["search"]["stages"][0]["device"] == "cpu"
    assert exact.provenance["device"]["name"] == "Stand-in"


def test_a_search_refuses_a_device_that_is_not_there_before_it_begins(monkeypatch):
    monkeypatch.setattr(find, "LIBRARIES", {})
    monkeypatch.setattr("bigscreen.tune.search.problems", None)
    with pytest.raises(InputError, match="device cuda"):
        search_on("cuda")


def test_paths_and_searches_of_estimators_pass_the_device_on(gpu):
    X, y = rows()
    path = svm_path(X, y, (0.1, 1.0), device="cuda")
    assert path.record["provenance"]["device"]["name"] == "Stand-in"
    paths = SVCPathCV(Cs=[0.1, 1.0], cv=2, device="cuda").fit(X, y)
    assert paths.model_.provenance["device"]["name"] == "Stand-in"
    grid = {"gammas": [0.1], "Cs": [1.0], "n_components": 20, "cv": 2, "elimination": "none"}
    searched = NystroemSVCCV(**grid, device="cuda").fit(X, y)
    assert searched.search_["stages"][0]["device"] == "Stand-in"


def test_fold_machines_of_probabilities_compute_on_the_device(gpu, monkeypatch):
    places, solve = [], DenseNewton.solve

    def noted(self, run, check):
        places.append(self.place)
        return solve(self, run, check)

    monkeypatch.setattr(DenseNewton, "solve", noted)
    fitted(device="cuda", probability=True)
    assert len(places) > 2 and set(places) == {GPU.place}


def test_resamples_are_fitted_on_the_device(gpu):
    options = TrainOptions(landmarks=20, device="cuda")
    with Inline(1) as fleet:
        record = resample(data_of(), data_of(200), options, fleet, 2, "bootstrap")
    assert record["device"]["name"] == "Stand-in" and record["relative_gap"] <= 1e-3


def test_a_path_on_a_device_that_fails_goes_on_elsewhere(failing, monkeypatch, tmp_path):
    store, out = tmp_path / "rows.store", tmp_path / "all.bsp"
    succeed("ingest", write_csv(tmp_path / "rows.csv"), store, "--label", "inside")
    how = ("path", store, out, "--landmarks", 30, "--C", ".1,1", "--threads", 1)
    monkeypatch.setattr(failing, "products_left", 12)
    ended = bigscreen(*how, "--device", "cuda")
    assert ended.exit_code != 0 and "Frail has failed (unspecified launch" in ended.output
    succeed(*how, "--resume", "--device", "cpu", "--json", tmp_path / "path.json")
    assert json.loads((tmp_path / "path.json").read_text())["provenance"]["device"]["name"] == "cpu"
