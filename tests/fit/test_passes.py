"""Passes told are passes made, and the D that is shown bounds the optimum from the first on."""

import numpy as np
import pytest

import bigscreen
from bigscreen.data.memory import MemoryDataset
from bigscreen.fleet.inline import Inline
from bigscreen.options.train import TrainOptions
from bigscreen.report.report import pass_line
from bigscreen.train.run import train


def rows(n=20_000, d=8):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d)).astype(np.float32)
    return X, (X[:, 0] + 0.5 * rng.normal(size=n) > 0).astype(int)


@pytest.mark.parametrize("intercept", ["penalized", "true"])
def test_a_newton_counts_every_pass(intercept):
    X, y = rows()
    seen = [0, 0]

    class Counted(Inline):
        def round(self, message):
            found = super().round(message)
            if message["kind"] == "trial" and not message.get("scored", False):
                seen[int(found[0][:, 0].sum() < len(X))] += 1
            return found

    options = TrainOptions(kernel="linear", solver="newton", C=100.0, intercept=intercept)
    with Counted(1) as fleet:
        model = train(MemoryDataset(X, y, [0, 1]), options, fleet)
    made, history = model.provenance["certificates"][0]["passes"], model.provenance["history"]
    assert [made["full"], made["partial"]] == seen and made["full"] >= 1 <= made["partial"]
    assert made["closing"] >= 1 and len(history) <= sum(seen)
    duals = [event["dual"] for event in history]
    # alpha = 0 is feasible, and any pass before may have known better.
    assert duals[0] >= 0 and duals == sorted(duals)


def test_coordinate_descent_counts_epochs_and_checks():
    X, y = rows(500)
    machine = bigscreen.LinearSVC(loss="hinge", solver="cd", screening="none", tol=1e-6).fit(X, y)
    first, last = machine.history_[0], machine.history_[-1]
    assert (first["full_passes"], first["partial_passes"]) == (2, 0)  # an epoch, and its check
    assert last["full_passes"] >= machine.n_iter_ and last["partial_passes"] > 0
    assert machine.certificate_[0]["passes"]["full"] == last["full_passes"]


def test_the_line_of_a_pass_counts_full_and_partial_passes():
    event = {"pass": 4, "primal": 2.5, "dual": 2.0, "relative_gap": 0.1, "rows_alive": 9}
    event |= {"seconds": 1.0, "full_passes": 7, "partial_passes": 5}
    assert pass_line(event).startswith("pass 4 (7 over all rows, 5 over some)  P 2.5")
