"""Estimators and models take arrays of other libraries, and answer in kind."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import array_api_strict
import numpy as np
import pytest
import sklearn

import bigscreen
from bigscreen import InputError, LinearSVC, MemoryDataset
from bigscreen.data.other_arrays import on_host
from bigscreen.problems.recipes import CSvc

rng = np.random.default_rng(0)
X = np.round(rng.normal(size=(60, 3)), 2).astype(np.float32).astype(np.float64)
Y = (X[:, 0] + X[:, 1] ** 2 > 0.5).astype(np.int64)
WEIGHTS = rng.integers(1, 3, 60).astype(np.float64)

DRAWS = np.stack([WEIGHTS, WEIGHTS[::-1]], axis=1)
HINGE = LinearSVC(loss="hinge")

LIBRARIES = ("array_api_strict", "torch")


def library(name: str) -> Any:
    return pytest.importorskip(name)


@pytest.fixture
def dispatch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """scikit-learn's setting with which estimators answer in kind."""
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")
    with sklearn.config_context(array_api_dispatch=True):
        yield


def answers(machine: Any, names: str, rows: Any) -> list[Any]:
    return [getattr(machine, name)(rows) for name in names.split()]


MACHINES = {
    "SVC": "decision_function predict",
    "LinearSVC": "decision_function predict",
    "NystroemSVC": "predict_proba predict_set",
    "SVR": "predict",
    "OneClassSVM": "decision_function predict score_samples",
    "Nystroem": "transform",
}


def make(name: str) -> Any:
    few = {"n_components": 9, "random_state": 0}
    given = {"NystroemSVC": {**few, "probability": True}, "Nystroem": few}
    return getattr(bigscreen, name)(**given.get(name, {}))


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("xp", LIBRARIES)
@pytest.mark.usefixtures("dispatch")
def test_estimators_answer_in_kind(name: str, xp: str) -> None:
    asarray, weighted = library(xp).asarray, name != "Nystroem"
    given = (X, Y, WEIGHTS) if weighted else (X, Y)
    expected = make(name).fit(*given)
    machine = make(name).fit(*map(asarray, given))
    for attribute, value in vars(machine).items():
        assert not hasattr(value, "__array_namespace__") or isinstance(value, np.ndarray), attribute
    rows = asarray(X)
    found = answers(machine, MACHINES[name], rows)
    for here, there in zip(found, answers(expected, MACHINES[name], X), strict=True):
        assert type(here) is type(rows) and isinstance(there, np.ndarray)
        np.testing.assert_array_equal(np.asarray(here), there, strict=True)
    if hasattr(machine, "score"):
        assert machine.score(rows, asarray(Y), asarray(WEIGHTS)) == expected.score(X, Y, WEIGHTS)


@pytest.mark.parametrize("xp", LIBRARIES)
def test_answers_are_numpy_arrays_without_dispatch(xp: str) -> None:
    rows = library(xp).asarray(X)
    machine = LinearSVC().fit(rows, Y)
    assert type(machine.predict(rows)) is np.ndarray
    # A model does not know scikit-learn's settings: it answers in kind.
    found = answers(machine.model_, "scores decision_function predict", rows)
    assert {type(each) for each in found} == {type(rows)}
    np.testing.assert_array_equal(np.asarray(found[1]), machine.decision_function(X))


@pytest.mark.usefixtures("dispatch")
def test_answers_lie_on_the_device_of_the_rows() -> None:
    device = array_api_strict.Device("device1")
    rows = array_api_strict.asarray(X, device=device)
    found = LinearSVC().fit(rows, Y).predict(rows)
    assert found.device == device
    np.testing.assert_array_equal(on_host(found), LinearSVC().fit(X, Y).predict(X))


@pytest.mark.usefixtures("dispatch")
def test_labels_that_are_texts_stay_in_numpy_arrays() -> None:
    rows = array_api_strict.asarray(X)
    labels = np.array(["no", "yes"])[Y]
    found = LinearSVC().fit(rows, labels).predict(rows)
    assert type(found) is np.ndarray and set(found) == {"no", "yes"}


@pytest.mark.usefixtures("dispatch")
def test_a_device_without_float64_gets_float32_answers() -> None:
    devices = array_api_strict.__array_namespace_info__().devices()
    names = {str(device): device for device in devices}
    device = names.get("array_api_strict.Device('no_float64')")
    if device is None:
        pytest.skip("this version of array-api-strict has no device without float64")
    rows = array_api_strict.asarray(X.astype(np.float32), device=device)
    found = LinearSVC().fit(rows, Y).decision_function(rows)
    assert found.dtype == array_api_strict.float32 and found.device == device


def test_numpy_arrays_are_answered_with_numpy_arrays(dispatch: None) -> None:
    machine = LinearSVC().fit(array_api_strict.asarray(X), Y)
    for rows in (X, X.tolist(), np.asfortranarray(X)):
        assert type(machine.predict(rows)) is np.ndarray


FUNCTIONS: dict[str, Callable[[Callable[[Any], Any]], Any]] = {
    "svm_path": lambda a: bigscreen.svm_path(a(X), a(Y), a(np.array([0.1, 1.0]))).model(1).coef,
    "fit_many": lambda a: bigscreen.fit_many(LinearSVC(), a(X), a(Y), a(DRAWS))[1].coef_,
    "solve": lambda a: bigscreen.solve(CSvc(1.0, 1), a(X), a(Y), weights=a(WEIGHTS)).alpha,
    "MemoryDataset": lambda a: MemoryDataset(a(X), a(Y), [0, 1], a(WEIGHTS)).weights(0, 60),
    "SVCPathCV": lambda a: bigscreen.SVCPathCV(2, cv=3).fit(a(X), a(Y)).model_.coef,
    "SVCCV": lambda a: bigscreen.SVCCV([1.0, 2.0], Cs=[1.0], cv=3).fit(a(X), a(Y)).dual_coef_,
    "amend": lambda a: HINGE.fit(X, Y).amend(a(X), a(Y), remove=a(np.arange(9))).coef_,
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("xp", LIBRARIES)
def test_functions_take_other_arrays(name: str, xp: str) -> None:
    found, expected = FUNCTIONS[name](library(xp).asarray), FUNCTIONS[name](np.asarray)
    np.testing.assert_array_equal(found, expected, strict=True)


def test_an_ingest_takes_other_arrays(tmp_path: Path) -> None:
    xp, path = array_api_strict, tmp_path / "rows.store"
    store = bigscreen.ingest((xp.asarray(X), xp.asarray(Y)), path).store
    assert store.n_rows == 60 and store.label_counts.tolist() == np.bincount(Y).tolist()


ODD_TENSORS: dict[str, Callable[[Any, Any], Any]] = {
    "with a gradient": lambda torch, X: X.requires_grad_(),
    "bfloat16": lambda torch, X: X.to(torch.bfloat16),
    "float16": lambda torch, X: X.to(torch.float16),
    "int8": lambda torch, X: X.to(torch.int8),
    "not contiguous": lambda torch, X: X.T.contiguous().T,
    "reversed and strided": lambda torch, X: torch.flip(X, (0,))[::2],
    "conjugate view": lambda torch, X: torch.complex(X, -X).conj().imag,
}


@pytest.mark.parametrize("kind", ODD_TENSORS)
def test_odd_tensors_are_read_with_their_own_numbers(kind: str) -> None:
    torch = library("torch")
    whole = torch.asarray(np.round(X))
    given = ODD_TENSORS[kind](torch, whole.clone())
    plain = np.array(given.detach().tolist())
    model = LinearSVC().fit(np.round(X), Y).model_
    found = model.decision_function(given)
    np.testing.assert_array_equal(found.numpy(), model.decision_function(plain))


@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:torch.quantize")
def test_arrays_without_numbers_are_refused_in_one_sentence() -> None:
    torch = library("torch")
    whole = torch.asarray(X)
    model = LinearSVC().fit(X, Y).model_
    wrong = [whole.to_sparse(), whole.to_sparse_csr(), whole.to("meta")]
    wrong.append(torch.quantize_per_tensor(whole.float(), 0.1, 0, torch.qint8))
    for each in wrong:
        for call in (model.predict, LinearSVC().fit, lambda rows: MemoryDataset(rows, Y, [0, 1])):
            with pytest.raises(InputError, match="cannot be read as a NumPy array .*give a dense"):
                call(each)
    with pytest.raises(InputError, match="a number in every entry"):
        model.predict(np.ma.masked_less(X, 0.0))
    with pytest.raises(InputError, match="a number in every entry"):
        LinearSVC().fit(X, np.ma.masked_equal(Y, 1))
