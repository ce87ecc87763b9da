"""The ledger: what a certificate proves of every row holds for the optimum itself."""

import pickle
import warnings

import numpy as np
import pytest
import safety_cases
from scipy import sparse
from sklearn.datasets import load_iris
from trained import fitted_by

import bigscreen
from bigscreen.certify import ledger as certify_ledger
from bigscreen.certify.ledger import Evidence
from bigscreen.data.memory import MemoryDataset
from bigscreen.features.design import Design
from bigscreen.fleet.inline import Inline
from bigscreen.model.ledger import BOUND, OPEN, OUT, Ledger, from_arrays, round_margins, to_arrays
from bigscreen.options.train import TrainOptions
from bigscreen.problems.recipes import CSvc
from bigscreen.train.exact import ExactJob


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_no_row_is_decided_wrongly_however_rough_the_solution(part):
    tally = safety_cases.Tally()
    for seed in range(40 * part, 40 * part + 40):
        safety_cases.try_ledger(safety_cases.Case(safety_cases.drawn(seed)), tally)
    assert tally.cases["ledger"] >= 38 and tally.cases["ledger of w"] > 5
    assert not tally.guilty
    assert tally.decided["ledger"] > 0.2 * tally.rows["ledger"]


def test_a_radius_that_is_too_small_would_be_caught():
    tally = safety_cases.Tally()
    for seed in range(60):
        safety_cases.try_ledger(
            safety_cases.Case(safety_cases.drawn(seed)), tally, radius_factor=0.2
        )
    assert {name for name, _ in tally.guilty} == {"ledger", "ledger of w"}


def rough(n=1500, d=4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, (X[:, 0] + 0.4 * rng.normal(size=n) > 0).astype(int)


MACHINES = {
    "exact": lambda tol: bigscreen.SVC(gamma=0.3, tol=tol),
    "nystrom": lambda tol: bigscreen.NystroemSVC(
        n_components=60, random_state=0, gamma=0.3, tol=tol
    ),
    "nystrom, offset": lambda tol: bigscreen.NystroemSVC(
        n_components=60, random_state=0, gamma=0.3, tol=tol, fit_intercept=True
    ),
    "linear": lambda tol: bigscreen.LinearSVC(loss="hinge", tol=tol),
    "squared hinge": lambda tol: bigscreen.LinearSVC(tol=tol),
}


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("csr", [False, True])
def test_rows_proved_by_a_coarse_fit_are_right_at_a_smaller_gap(name, csr):
    X, y = rough()
    X = sparse.csr_array(np.where(np.abs(X) < 0.3, 0.0, X)) if csr else X
    known = MACHINES[name](1e-4).fit(X, y).ledger_
    close = MACHINES[name](1e-10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        close.fit(X, y)
    margin = np.where(y == 1, 1, -1) * close.decision_function(X)
    assert len(known) == len(y) and known.counts[OUT] > 100
    assert margin[known.status == OUT].min() > 1
    if name == "squared hinge":
        assert known.counts[BOUND] == 0
    else:
        assert margin[known.status == BOUND].max(initial=-1) < 1
        # A fit to a smaller gap decides the open rows, except rows at their hinge point.
        assert close.ledger_.counts[OPEN] < 0.6 * known.counts[OPEN]


def test_the_ledger_leaves_out_rows_without_weight_and_keeps_row_numbers():
    X, y = rough(400)
    weight = np.ones(400)
    weight[::3] = 0
    machine = bigscreen.SVC(tol=1e-6).fit(X, y, weight)
    used = np.flatnonzero(weight)
    assert np.array_equal(machine.ledger_.numbers(), used)
    alone = bigscreen.SVC(tol=1e-6, gamma=machine._gamma).fit(X[used], y[used])
    assert np.array_equal(machine.ledger_.status, alone.ledger_.status)


def test_the_ledger_of_a_pair_of_labels_holds_only_their_rows():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(300, 3)) + 4 * np.eye(3)[np.arange(300) % 3]
    y = np.arange(300) % 3
    books = bigscreen.SVC(tol=1e-6).fit(X, y).ledger_
    for book, pair in zip(books, [(0, 1), (0, 2), (1, 2)], strict=True):
        assert np.array_equal(book.numbers(), np.flatnonzero(np.isin(y, pair)))
    rest = bigscreen.LinearSVC(loss="hinge").fit(X, y).ledger_
    assert [len(book) for book in rest] == [300] * 3


def test_there_is_no_ledger_if_nothing_is_proved():
    X, y = rough(200)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        machine = bigscreen.SVC(kernel="sigmoid", gamma=2, coef0=1).fit(X, y)
    assert machine.ledger_ is None and machine.model_.ledger is None


@pytest.mark.parametrize(
    "rows",
    [None, np.array([0, 3, 4]), np.array([7, 700, 70_000]), np.array([2**40, 2**40 + 1, 2**41])],
)
def test_a_model_file_holds_the_whole_ledger(rows):
    books = [Ledger(np.array([2.0, -3.0, 0.5], np.float16), 0.25, rows)]
    books.append(Ledger(np.array([-0.1], np.float16), 1e-9, None if rows is None else rows[:1]))
    for book, again in zip(books, from_arrays(to_arrays(books)), strict=True):
        assert again.radius == book.radius and np.array_equal(again.margins, book.margins)
        assert np.array_equal(again.numbers(), book.numbers())
    broken = {**to_arrays(books), "ledger_sizes": np.array([3, 3])}
    with pytest.raises(ValueError, match="do not fit"):
        from_arrays(broken)


def test_margins_are_rounded_so_that_none_is_promised_too_much():
    reach = np.random.default_rng(0).uniform(0, 3, 10_000)
    book = Ledger(round_margins(reach, reach > 1), 1.0)
    assert np.all(np.abs(book.margins.astype(float)) <= reach)
    assert np.all(reach[book.status != OPEN] > 1)
    assert Ledger(round_margins(np.array([np.inf]), np.array([False])), 1.0).status[0] == OUT


@pytest.mark.parametrize("intercept", ["none", "true"])
def test_margins_count_the_slack_of_scores(intercept):
    """Margins are (distance - slack) / norm / radius; an offset adds what it may move by."""
    X, y = rough(200)
    design, problem = Design(MemoryDataset(X, y, [0, 1])), CSvc(1.0, 1, intercept=intercept)
    scores, norms = X[:, 0] * 2, np.linalg.norm(X.astype(np.float32), axis=1)
    distance = np.abs(1 - np.where(y == 1, 1, -1) * scores)
    mu = ((0.0, 0.0), (-0.1, 0.1))[intercept == "true"]
    length = norms + (norms.max() if intercept == "true" else 0.0)
    for slack in (0.0, 0.3):
        doubt = slack if intercept == "none" else 2 * slack + 0.1
        expected = np.maximum(distance - doubt, 0.0) / length / 0.05
        book = certify_ledger.make_ledger(design, problem, Evidence(scores, slack, 0.05, mu))
        np.testing.assert_allclose(np.abs(book.margins), expected, rtol=1e-3, atol=1e-6)


def test_margins_of_pairs_of_labels_are_computed_on_first_use():
    """Unless the pairs have many rows together: then at once, and to the same bits."""

    class AtOnce(ExactJob):
        max_later_rows = 299

    X, y = load_iris(return_X_y=True)
    data = MemoryDataset(X, y, [0, 1, 2])
    options, models = TrainOptions(exact=True, strategy="one", gamma=0.3, tol=1e-6), []
    with Inline(1) as fleet:
        for kind in (ExactJob, AtOnce):
            models.append(fitted_by(kind, data, options, fleet))
            waiting = [callable(book._margins) for book in models[-1].ledger]
            assert waiting == [kind is ExactJob] * 3
    again = pickle.loads(pickle.dumps(models[0]))
    for one, other, copy, codes in zip(
        models[0].ledger, models[1].ledger, again.ledger, ((0, 1), (0, 2), (1, 2)), strict=True
    ):
        np.testing.assert_array_equal(one.numbers(), np.flatnonzero(np.isin(y, codes)))
        np.testing.assert_array_equal(one.numbers(), other.numbers())
        np.testing.assert_array_equal(one.margins, other.margins)
        np.testing.assert_array_equal(copy.margins, other.margins)
