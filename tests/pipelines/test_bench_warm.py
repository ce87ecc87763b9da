"""The benchmark of warm starts compares certified fits of the changed machine."""

import numpy as np
from sklearn.base import clone

from pipelines.bench import warm_starts


def test_both_fits_have_the_change():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3)).astype(np.float32)
    y = (X[:, 0] + 0.5 * rng.normal(size=300) > 0).astype(int)
    machine = warm_starts.MACHINES["linear"]["squared hinge"]
    cold, warm = warm_starts.compare(machine, {"tol": 1e-5}, X, y, 300, 1)
    alone = warm_starts.seconds(clone(machine).set_params(tol=1e-5), X, y)
    assert cold[1] == alone[1] > warm[1] and min(cold[0], warm[0]) > 0
    exact = warm_starts.MACHINES["exact"]["exact"]
    assert min(warm_starts.compare(exact, {"gamma": 1.5}, X, y, 300, 1)) > (0.0, 0)
