"""A store of fewer rows has the same optimum."""

import warnings

import numpy as np
import pytest
from scipy import sparse

from bigscreen.amend.compress import compress
from bigscreen.data.memory import MemoryDataset
from bigscreen.errors import InputError
from bigscreen.fleet.inline import Inline
from bigscreen.options.train import TrainOptions
from bigscreen.train.run import train

MACHINES = {
    "nystrom": {"gamma": 0.3, "landmarks": 30},
    "linear": {"kernel": "linear"},
    "exact": {"gamma": 0.3, "exact": True, "intercept": "true"},
}


def rough(n=900, d=4, csr=False, labels=2):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d)).astype(np.float32)
    y = (X[:, 0] + 0.4 * rng.normal(size=n) > 0).astype(np.int32) + (X[:, 1] > 1) * (labels - 2)
    weights = rng.uniform(0.2, 2.0, n)
    X = np.where(np.abs(X) < 0.3, 0, X).astype(np.float32)
    rows = sparse.csr_array(X) if csr else X
    return MemoryDataset(rows, y, list(range(labels)), weights)


def fitted(data, **how):
    with Inline(2) as fleet, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return train(data, TrainOptions(**how), fleet)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("csr", [False, True])
def test_the_optimum_is_the_same_to_the_last_digits(machine, csr, tmp_path):
    data, how = rough(csr=csr), {"C": 0.7, **MACHINES[machine]}
    model = fitted(data, tol=1e-6, **how)
    with Inline(2) as fleet:
        store, record = compress(model, data, tmp_path / "small.store", fleet)
    assert record["left"] == store.n_rows < (0.7 if machine == "exact" else 0.2) * data.n_rows
    assert record["out"] + record["bound"] + record["open"] == data.n_rows
    assert store.manifest["extra"]["compressed"]["of"] == data.fingerprint
    small = {name: value for name, value in how.items() if name not in ("gamma", "landmarks")}
    small |= {"kernel": "linear"} if machine != "exact" else {"gamma": 0.3}
    P = fitted(data, tol=1e-9, **how).provenance["certificates"][0]
    again = fitted(store, tol=1e-9, **small)
    Q = again.provenance["certificates"][0]
    assert abs(P["primal"] - Q["primal"]) < 2e-8 * P["primal"]
    if machine == "linear":
        whole = fitted(data, tol=1e-9, **how)
        np.testing.assert_allclose(again.coef, whole.coef, atol=2e-3)


def test_a_model_of_several_scores_has_no_one_set_of_rows(tmp_path):
    data = rough(labels=3)
    model = fitted(data, gamma=0.3, landmarks=20)
    with pytest.raises(InputError, match="model of two labels"), Inline(1) as fleet:
        compress(model, data, tmp_path / "small.store", fleet)
