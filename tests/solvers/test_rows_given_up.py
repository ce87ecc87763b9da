"""A worker near its limit keeps no rows, or gives up those that it kept: every answer stays."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array

from bigscreen.data.dataset import Dataset
from bigscreen.features.design import Design
from bigscreen.fleet import lockstep
from bigscreen.fleet.inline import Inline
from bigscreen.fleet.shards import Shards
from bigscreen.intake.ingest import ingest
from bigscreen.options.train import TrainOptions
from bigscreen.problems.recipes import CSvc
from bigscreen.solvers.newton.shard import NewtonProgram
from bigscreen.train.run import train


@pytest.fixture(scope="module", params=["dense", "sparse"])
def data(request, tmp_path_factory):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 60)) * (rng.random((4000, 60)) < 0.1)
    y = (X[:, 0] + 0.3 * rng.normal(size=4000) > 0).astype(int)
    path = tmp_path_factory.mktemp("rows") / request.param
    given = csr_array(X) if request.param == "sparse" else X
    store = ingest([(given, y)], path).store
    assert isinstance(store, Dataset)
    return store


class Short(Inline):
    """A fleet without memory for rows from one of its rounds on."""

    def __init__(self, threads, first):
        super().__init__(threads)
        self.first, self.rounds, self.given_up = first, 0, 0

    def round(self, message):
        self.rounds += 1
        if self.rounds >= self.first:
            self._shards.most = 0
        kept = self.count_kept()
        self._shards.relieve(self._program)
        self.given_up += kept - self.count_kept()
        return super().round(message)

    def count_kept(self):
        return sum(state.X is not None for state in self._shards.states.values())


def fitted(data, fleet):
    with fleet:
        return train(data, TrainOptions(kernel="linear", solver="newton", tol=1e-6), fleet)


@pytest.mark.parametrize("first_short_round", [1, 3])
def test_rows_given_up_change_no_bit(data, first_short_round):
    expected, short = fitted(data, Inline(2)), Short(2, first_short_round)
    found = fitted(data, short)
    assert short.rounds > 3 and short.given_up > 0
    assert found.coef.tobytes() == expected.coef.tobytes()
    assert found.intercept.tobytes() == expected.intercept.tobytes()


def test_a_process_without_room_opens_shards_without_rows(data):
    program = NewtonProgram(Design(data), CSvc(1.0, 1))
    size = program.kept_bytes(0)
    start, stop = data.shard(0)
    assert size == int((stop - start) * data.row_bytes) > 0
    assert replace(program, resident=0.0).kept_bytes(0) == 0 == program.lean().kept_bytes(0)
    for most, kept in ((None, True), (2**50, True), (0, False)):
        held = Shards(1, most)
        held.restore(program, [0], None)
        assert (held.states[0].X is not None) == kept
    joint = lockstep.Joint({"a": program, "b": program.lean()})
    assert joint.kept_bytes(0) == size and joint.lean().kept_bytes(0) == 0
    state = joint.open(0)
    assert joint.give_up(state) > 0 == joint.give_up(state)
    assert state.members["a"].state.X is None
