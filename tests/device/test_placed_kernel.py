"""Kernel entries, scores and certificates of a device: within the bounds that are stated."""

import json
import pickle
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import contracts
import numpy as np
import pytest
from cli_world import bigscreen, succeed, write_csv
from scipy import sparse

from bigscreen import SVC, LinearSVC, NystroemSVC
from bigscreen.certify.exact import close_exact
from bigscreen.certify.explicit import close_explicit
from bigscreen.certify.scores import ScoreProgram
from bigscreen.device import find
from bigscreen.device.find import HOST, Device, find_device
from bigscreen.device.kernel import (
    FUNCTION_ULPS,
    PlacedKernel,
    place_design,
    place_model,
)
from bigscreen.device.place import Place
from bigscreen.errors import InputError
from bigscreen.features.design import Design
from bigscreen.fleet.inline import Inline
from bigscreen.kernels.base import FLOAT64_ERROR_FACTOR
from bigscreen.kernels.given import Precomputed
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import Compiled, Linear, Polynomial, Rbf, Sigmoid, make_kernel
from bigscreen.plan.device import place_scores
from bigscreen.plan.tuning import PLAN
from bigscreen.problems.point import Point, Reading

NAMES = (
    *("linear", "rbf", "polynomial", "laplacian", "sigmoid", "matern12", "matern32", "matern52"),
    "chi2",
)
LIBRARIES = ["numpy"]
if find_spec("torch") is not None:
    LIBRARIES.append("torch")
if find_device("auto").place != Place():
    LIBRARIES.append("device")
ALL_LIBRARIES = [*LIBRARIES, "array_api_strict"]
"""Where numbers are those of NumPy, but every call must be one of the standard's."""


class SlowFloat64(Place):
    """A place that stands for a card whose float64 units are few."""

    has_fast_float64 = False


def make_place(library: str, kind: type[Place] = Place) -> Place:
    """A place of a library, on the CPU or, as "device", where this machine has a device."""
    if library == "device":
        place = find_device("auto").place
        return kind(place.namespace, place.device)
    return kind(library if library == "array_api_strict" else f"array_api_compat.{library}")


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_errors_of_functions_are_within_the_units_assumed(library: str, dtype: type) -> None:
    place, rng = make_place(library), np.random.default_rng(0)
    x = np.concatenate([-np.geomspace(1e-6, 60.0, 50_000), -rng.uniform(0, 80, 50_000)])
    x = x.astype(dtype)
    own, xp, wide = place.put(x, dtype), place.xp, x.astype(np.longdouble)
    base = 1 - wide / 80
    powers = place.put(base.astype(dtype), dtype)
    found = {
        "exp": (xp.exp(own), np.exp(wide)),
        "tanh": (xp.tanh(own), np.tanh(wide)),
        "power": (powers**3, base.astype(dtype).astype(np.longdouble) ** 3),
        "sqrt": (xp.sqrt(-own), np.sqrt(-wide)),
    }
    for name, (here, true) in found.items():
        ulps = np.abs(place.take_back(here) - true) / np.spacing(np.abs(true.astype(dtype)))
        assert ulps.max() <= FUNCTION_ULPS, name


def exact_entries(kernel: Compiled, A: Any, B: Any) -> Any:
    """The textbook's entries in extended precision: (a, b)."""
    A, B = A.astype(np.longdouble), B.astype(np.longdouble)
    product, apart = A @ B.T, A[:, None, :] - B[None, :, :]
    if isinstance(kernel, Linear):
        return product
    gamma = np.longdouble(kernel.to_dict()["gamma"])
    if isinstance(kernel, Polynomial):
        return (gamma * product + kernel.coef0) ** kernel.degree
    if isinstance(kernel, Sigmoid):
        return np.tanh(gamma * product + kernel.coef0)
    if kernel.name == "laplacian":
        return np.exp(-gamma * np.abs(apart).sum(axis=2))
    if kernel.name == "chi2":
        total = A[:, None, :] + B[None, :, :]
        return np.exp(-gamma * (apart**2 / np.where(total > 0, total, 1)).sum(axis=2))
    square = (apart**2).sum(axis=2)
    if isinstance(kernel, Rbf):
        return np.exp(-gamma * square)
    order = {"matern12": 1, "matern32": 3, "matern52": 5}[kernel.name]
    s = np.sqrt(order * square) * gamma
    return {1: 1, 3: 1 + s, 5: 1 + s + s**2 / 3}[order] * np.exp(-s)


def attacks(name: str) -> Iterator[tuple[Compiled, Any, Any]]:
    """Kernels and rows that lose digits: far from 0, of every size, nearly or wholly equal."""
    rng = np.random.default_rng(1)
    for d, shift, scale in [(1, 0, 1.0), (3, 1000, 1.0), (18, 0, 30.0), (18, 1, 1e-3), (60, 1, 1)]:
        A = (scale * (rng.normal(size=(30, d)) + shift)).astype(np.float32)
        near = np.nextafter(A, np.float32(np.inf))
        near[:10] = A[:10]
        for B in (near, (scale * (rng.normal(size=(20, d)) + shift)).astype(np.float32)):
            for width in (0.03, 1.0, 30.0):
                power = make_kernel(name).gamma_power
                kernel = make_kernel(name, (width / d / scale**2) ** (power / 2), 3, 0.5)
                assert isinstance(kernel, Compiled)
                yield kernel, *((np.abs(A), np.abs(B)) if name == "chi2" else (A, B))


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", NAMES)
def test_entries_are_within_their_bounds(library: str, name: str) -> None:
    place = make_place(library)
    for kernel, A, B in attacks(name):
        own, side, true = PlacedKernel(kernel, place), Operand(B), exact_entries(kernel, A, B)
        given = Operand(A).sqnorms, float(side.sqnorms.max()), A.shape[1]
        bound, relative = own.entry_error(*given), own.relative_error(*given)
        off = np.abs(own.block(A, side) - true)
        assert (off.max(axis=1) <= bound).all()
        if relative is not None:
            seen = true > 1e-30  # (smaller entries underflow)
            assert (off[seen] <= (relative[:, None] * true)[seen]).all()
        off = np.abs(own.block(A, side, dtype=np.float64) - true)
        assert (off.max(axis=1) <= FLOAT64_ERROR_FACTOR * bound).all()


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", NAMES)
def test_scores_are_within_their_bands(library: str, name: str) -> None:
    """Large coefficients that cancel, on rows that are nearly equal."""
    for seed, (kernel, A, B) in enumerate(attacks(name)):
        if seed % 5:
            continue
        X = np.concatenate([A, B])
        data = contracts.MemoryDataset(X, np.arange(len(X)) % 2, [0, 1])
        rng = np.random.default_rng(seed)
        coef = 1e4 * rng.normal(size=len(X)) * (rng.random(len(X)) < 0.7)
        coef[1:] -= coef[:-1].copy() * (rng.random(len(X) - 1) < 0.5)
        true = exact_entries(kernel, X, X) @ coef.astype(np.longdouble)
        for dtype in (np.float32, np.float64):
            design = place_design(Design(data, kernel), make_place(library))
            scores, bands = ScoreProgram.of(design, coef, dtype)(np.arange(len(X)))
            assert (np.abs(scores - true) <= bands).all(), (name, dtype)


@pytest.mark.parametrize("library", ALL_LIBRARIES)
@pytest.mark.parametrize("kind", [Place, SlowFloat64])
@pytest.mark.parametrize("intercept", contracts.INTERCEPTS)
def test_certificates_on_landmarks_are_true(library: str, kind: type, intercept: str) -> None:
    place = make_place(library, kind)
    for seed, name in enumerate(("rbf", "laplacian")):
        world = contracts.world(contracts.rows(seed, 60), name, 1.0, intercept)
        rng, offset = np.random.default_rng(seed), 0.0 if intercept == "none" else 0.7
        w = rng.normal(size=world.design.rank)
        coef = world.design.coef(w)
        readings = (Reading(coef, offset, 1.0),)
        point = Point(coef, w, offset, 0.0, 0.0, paired=False, readings=readings)
        with Inline(1) as fleet:
            expected = close_explicit(world.design, world.problem, point, fleet)
            placed = place_design(world.design, place)
            found = close_explicit(placed, world.problem, point, fleet, keep=True)
        contracts.certificate_is_true(world, point, found)
        assert found.certified_in == ("float64" if kind is Place else "float32")
        room = found.rounding_bound + expected.rounding_bound
        assert abs(found.gap - expected.gap) <= room
        # alpha as given, as solvers on a device give it
        dual = world.design.dual(world.problem)
        alpha = dual.feasible(dual.hi * rng.uniform(0, 1, 60))
        given = replace(point, readings=(), alpha=alpha)
        with Inline(1) as fleet:
            here, there = (
                close_explicit(design, world.problem, given, fleet)
                for design in (placed, world.design)
            )
        for part in ("primal", "dual", "gap"):
            rounding = "rounding_bound" if part == "gap" else f"{part}_rounding"
            room = getattr(here, rounding) + getattr(there, rounding)
            assert abs(getattr(here, part) - getattr(there, part)) <= room


@pytest.mark.parametrize("library", ALL_LIBRARIES)
@pytest.mark.parametrize("kind", [Place, SlowFloat64])
@pytest.mark.parametrize("name", [n for n in NAMES if n != "sigmoid"])
def test_certificates_of_exact_machines_equal_those_of_the_host(
    library: str, kind: type, name: str
) -> None:
    place, data = make_place(library, kind), contracts.rows(3, 120)
    if name == "chi2":
        data = contracts.MemoryDataset(np.abs(data.X(0, 120)), data.y(0, 120), [0, 1])
    design = Design(data, make_kernel(name, 0.4))
    problem = contracts.CSvc(1.0, 1, intercept="true")
    alpha = design.dual(problem).feasible(np.random.default_rng(0).uniform(0, 1, 120))
    point = Point(np.empty(0), np.empty(0), np.nan, np.nan, np.nan, True, alpha=alpha)
    with Inline(1) as fleet:
        expected = close_exact(design, problem, point, fleet, "float64")
        found = close_exact(place_design(design, place), problem, point, fleet)
    assert found.certified_in == ("float64" if kind is Place else "float32")
    assert abs(found.gap - expected.gap) <= found.rounding_bound + expected.rounding_bound
    assert 0 < found.rounding_bound < 1e-3 * found.gap


@pytest.mark.parametrize("library", ALL_LIBRARIES)
@pytest.mark.parametrize("kind", [Place, SlowFloat64])
def test_models_score_rows_on_a_place(library: str, kind: type) -> None:
    place, rng = make_place(library, kind), np.random.default_rng(0)
    X = rng.normal(size=(90, 3)).astype(np.float32)
    y = np.digitize(X[:, 0], [-0.5, 0.5])
    few = {"n_components": 20, "random_state": 0, "gamma": 0.5}
    for machine in (SVC(gamma=0.5), NystroemSVC(probability=True, **few), LinearSVC()):
        model = machine.fit(X, y).model_
        placed = place_model(model, place)
        assert (placed is model) == (model.landmarks is None)
        np.testing.assert_allclose(placed.scores(X), model.scores(X), rtol=0, atol=1e-4)
        if model.calibration is not None:
            expected = model.predict_proba(X)
            np.testing.assert_allclose(placed.predict_proba(X), expected, rtol=0, atol=1e-4)
        again = pickle.loads(pickle.dumps(placed))
        np.testing.assert_array_equal(again.scores(X), placed.scores(X))


class FullPlace(Place):
    """A place without memory for any array."""

    def put(self, values: Any, dtype: type = np.float64) -> Any:
        raise MemoryError


def test_the_host_computes_what_the_place_cannot() -> None:
    kernel, rng = Rbf(0.3), np.random.default_rng(0)
    X, V = rng.normal(size=(20, 4)).astype(np.float32), rng.normal(size=(20, 2))
    side = Operand(X)
    full = PlacedKernel(kernel, FullPlace())
    np.testing.assert_array_equal(full.block(X, side), kernel.block(X, side))
    np.testing.assert_array_equal(full.dots(X, side, V), kernel.dots(X, side, V))
    thin = sparse.csr_array(X * (X > 1))
    own, few = PlacedKernel(kernel, Place()), Operand(thin)
    np.testing.assert_array_equal(own.dots(thin, few, V), kernel.dots(thin, few, V))
    given = Design(contracts.rows(0, 20), Precomputed(np.eye(20)))
    assert place_design(given, Place()) is given


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The tiles computed on a machine with a device, for which array-api-strict stands in."""
    place = Place("array_api_strict")
    device = Device(place, "Stand-in", "array-api-strict 2", 2**30)
    monkeypatch.setattr(find, "LIBRARIES", {"stand-in": lambda: device})
    monkeypatch.setattr(find, "count_devices", lambda: 1)
    tiles: list[Any] = []
    entries = PlacedKernel._entries
    monkeypatch.setattr(
        PlacedKernel, "_entries", lambda *given: tiles.append(given) or entries(*given)
    )
    return tiles


def test_auto_places_the_scores_of_many_dense_rows_only(gpu: list[Any]) -> None:
    data = contracts.rows(0, 90)
    X, y = data.X(0, 90), data.y(0, 90)
    model = NystroemSVC(n_components=20, random_state=0).fit(X, y).model_
    for wanted, least in (("cuda", 1e9), ("auto", 1800)):
        tuning = replace(PLAN, device_entries=least)
        placed, device = place_scores(model, data, wanted, find_device, tuning)
        np.testing.assert_allclose(placed.scores(X), model.scores(X), rtol=0, atol=1e-5)
        assert gpu and device == find_device("cuda")
        gpu.clear()
    thin, linear = contracts.rows(0, 90, sparse_rows=True), LinearSVC().fit(X, y).model_
    for given, rows, least in ((model, data, 1801), (model, thin, 0), (linear, data, 0)):
        tuning = replace(PLAN, device_entries=least)
        assert place_scores(given, rows, "auto", find_device, tuning) == (given, HOST)
        assert place_scores(given, rows, "cpu", find_device, tuning) == (given, HOST)
        if rows is thin or given is linear:
            with pytest.raises(InputError, match="computes the scores of dense rows by a kernel"):
                place_scores(given, rows, "cuda", find_device)


def test_predict_and_evaluate_score_on_a_device(gpu: list[Any], tmp_path: Path) -> None:
    store, model = tmp_path / "rows.store", tmp_path / "model.bsm"
    succeed("ingest", write_csv(tmp_path / "rows.csv", 300), store, "--label", "inside")
    succeed("fit", store, model, "--landmarks", 30)
    found = []
    for device in ("cpu", "cuda"):
        out, result = tmp_path / f"{device}.csv", tmp_path / f"{device}.json"
        assert not gpu
        succeed("predict", model, store, out, "--device", device, "--json", result)
        predicted = json.loads(result.read_text())["device"]
        succeed("evaluate", model, store, "--device", device, "--json", result)
        written = np.loadtxt(out, str, delimiter=",", skiprows=1)
        record = json.loads(result.read_text())
        assert predicted == record["device"] and (predicted["name"] == "cpu") == (device == "cpu")
        found.append((written, record["error"]))
    assert gpu
    (here, error), (there, same) = found
    np.testing.assert_array_equal(here[:, :2], there[:, :2])
    np.testing.assert_allclose(here[:, 2].astype(float), there[:, 2].astype(float), atol=1e-4)
    assert error == same
    wrong = bigscreen(
        "predict", model, store, out, "--overwrite", "--device", "cuda", "--workers", 2
    )
    assert wrong.exit_code == 2 and "2 workers need a device each" in wrong.output
