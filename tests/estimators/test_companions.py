"""The blocks of docs/companions.md run, those of software that is not installed left out."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn
from places import ROOT
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import StandardScaler

from bigscreen import Model, NystroemSVC

TEXT = (ROOT / "docs" / "companions.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", TEXT, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def known() -> dict[str, Any]:
    """Rows of which the weights, 0 for those with wrong labels, say what is learnt."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(240, 3))
    y, wrong = X[:, 0] > 0, rng.random(240) < 0.4
    return {
        "X": X,
        "y": y ^ wrong,
        "weights": 1.0 - wrong,
        "NystroemSVC": NystroemSVC,
        "GridSearchCV": GridSearchCV,
    }


def block(name: str) -> str:
    """Return the block that imports this module."""
    (found,) = (text for text in BLOCKS if text.startswith((f"import {name}\n", f"from {name} ")))
    return found


def test_weights_reach_scaling_fit_and_score(known: dict[str, Any]) -> None:
    exec(block("sklearn"), known)
    search, X, weights = known["search"], known["X"], known["weights"]
    scaler = search.best_estimator_[0]
    np.testing.assert_allclose(scaler.mean_, StandardScaler().fit(X, None, weights).mean_)
    # Over rows of weight 1 alone: of all labels 0.6 are right.
    assert search.best_score_ > 0.9 and search.score(X, known["y"]) < 0.75
    C = search.best_params_["nystroemsvc__C"]
    alone = NystroemSVC(n_components=50, C=C, random_state=0)
    alone.fit(scaler.transform(X), known["y"], weights)
    np.testing.assert_array_equal(alone.predict(scaler.transform(X)), search.predict(X))


@pytest.mark.skipif(find_spec("torch") is None, reason="no PyTorch")
def test_tensors_are_answered_with_tensors(
    known: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")
    exec(block("torch"), {**known, "sklearn": sklearn}, found := {})
    assert type(found["labels"]) is type(found["rows"])
    np.testing.assert_array_equal(found["labels"], found["machine"].predict(known["X"]))


@pytest.mark.skipif(find_spec("sklearn.callback") is None, reason="scikit-learn before 1.9")
@pytest.mark.filterwarnings("ignore:.*does not support callbacks")
def test_a_search_with_callbacks(known: dict[str, Any]) -> None:
    exec(block("sklearn.callback"), known)
    assert known["search"].best_estimator_.history_[-1]["relative_gap"] <= 1e-3


@pytest.mark.skipif(find_spec("optuna") is None, reason="no Optuna: pip install optuna")
def test_optuna(known: dict[str, Any]) -> None:
    exec(block("optuna"), known)
    assert len(known["study"].trials) == 10 and known["machine"].relative_gap_ <= 1e-3
    assert known["study"].best_value == max(trial.value for trial in known["study"].trials)


@pytest.mark.skipif(find_spec("mlflow") is None, reason="no MLflow: pip install mlflow")
def test_mlflow(known: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "MLFLOW_TRACKING_URI": str(tmp_path / "runs"),
    }.items():
        monkeypatch.setenv(name, value)
    exec(block("mlflow"), known)
    (kept,) = tmp_path.glob("runs/**/machine.bsm")
    scores = Model.load(kept).scores(known["X"])[:, 0]
    np.testing.assert_allclose(scores, known["machine"].decision_function(known["X"]))
    (logged,) = tmp_path.glob("runs/**/metrics/primal")
    assert len(logged.read_text().splitlines()) == len(known["machine"].history_)
