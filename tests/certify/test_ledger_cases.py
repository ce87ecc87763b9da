"""Ledgers of every estimator are true of an independent optimum; the judge convicts a lie."""

import warnings
from collections import Counter
from dataclasses import replace

import ledger_cases
import numpy as np
import pytest
from certificate_cases import PROBLEMS, Rows, Spec
from ledger_cases import JUDGED, SEARCHES, Case, judge_ledgers

import bigscreen
from bigscreen.model.ledger import Ledger
from bigscreen.options import train as options

WORDS = {"c-svc": "squared-svc", "svr": "squared-svr"}
"""Problems that a spec can square."""


def has_ledger(name):
    """Whether a class of the package publishes a ledger, of a small fit that is proved."""
    made = getattr(bigscreen, name)
    if not (isinstance(made, type) and hasattr(made, "fit") and hasattr(made, "get_params")):
        return False
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    y = (X[:, 0] + 0.3 * rng.normal(size=60) > 0).astype(int)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(made().fit(X, y), "ledger_", None) is not None


def test_the_judge_covers_every_estimator_with_a_ledger():
    unjudged = [name for name in bigscreen.__all__ if has_ledger(name) and name not in JUDGED]
    assert unjudged == []
    # A name that is judged has a ledger: the list does not only hold names.
    assert has_ledger("NuSVR") and not has_ledger("SVCPathCV") and not has_ledger("Model")


def test_the_judge_covers_every_problem():
    drawn = [ledger_cases.drawn_case(number).spec for number in range(20 * len(JUDGED))]
    problems = {WORDS[PROBLEMS[s.machine]] if s.squared else PROBLEMS[s.machine] for s in drawn}
    assert sorted(set(options.PROBLEMS) - problems) == []
    # Of each estimator with one offset and with another, weighted and with rows of weight 0.
    kinds = {(s.machine, s.intercept) for s in drawn}
    assert {(name, False) for name in PROBLEMS if name != "OneClassSVM"} <= kinds
    assert {s.weights for s in drawn} == {"none", "some", "zeros"}


@pytest.mark.slow
@pytest.mark.parametrize("name", JUDGED)
def test_ledgers_of_random_estimators_are_true(name):
    first, figures, names = JUDGED.index(name), Counter(), Counter()
    for number in range(first, first + 8 * len(JUDGED), len(JUDGED)):
        outcome = judge_ledgers(number)
        assert not outcome.wrong, outcome
        figures.update(outcome.figures)
        names[outcome.name] += 1
    assert names["judged"] >= 4, names
    assert figures[name, "out"] + figures[name, "bound"] > 0


def lying(case, change):
    """The outcome where a fit's ledger is another than it was made."""

    def fit(case, rows):
        fitted = ledger_cases_fit(case, rows)
        fitted.ledger_ = change(fitted.ledger_)
        return fitted

    ledger_cases_fit, ledger_cases.fit = ledger_cases.fit, fit
    drawn, ledger_cases.drawn_case = ledger_cases.drawn_case, lambda number: case
    try:
        return judge_ledgers(0)
    finally:
        ledger_cases.fit, ledger_cases.drawn_case = ledger_cases_fit, drawn


LIES = {
    "out": lambda book: Ledger(np.full_like(book.margins, 2), 0.1, book.rows),
    "bound": lambda book: Ledger(np.full_like(book.margins, -2), 0.1, book.rows),
    "rows": lambda book: Ledger(book.margins[:-1], 0.1),
    "ledger": lambda book: None,
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("name", ["SVC", "NuSVR", "SVR", "LinearSVC", "OneClassSVM"])
def test_the_judge_convicts_a_lie(name, lie):
    kernel = "linear" if name.startswith("Linear") else "rbf"
    case = Case(name, Spec(7, name, kernel, single=True, weights="some", tol=1e-9, seconds=10.0))
    assert not lying(case, lambda book: book).wrong
    (wrong,) = lying(case, LIES[lie]).wrong
    assert wrong in (lie, f"{name}: {lie}")


def test_the_judge_convicts_mirrored_rows_that_share_a_number():
    """What `NuSVR.ledger_` once was: the lower side's margins in the place of the upper's."""
    case = Case("NuSVR", Spec(5, "NuSVR", C=0.5, tol=1e-9, nu=0.5, single=True, seconds=10.0))

    def later(self, sides):
        return Ledger(self.margins[len(self) // sides :], self.radius)

    folded, Ledger.fold_sides = Ledger.fold_sides, later
    try:
        assert "NuSVR: out" in lying(case, lambda book: book).wrong
    finally:
        Ledger.fold_sides = folded
    assert not lying(case, lambda book: book).wrong


def test_searches_are_judged_at_what_they_chose():
    for name in SEARCHES:
        case = ledger_cases.drawn_case(JUDGED.index(name))
        case = replace(case, spec=replace(case.spec, tol=1e-8))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fitted = ledger_cases.fit(case, Rows(case.spec))
        assert {"C", "nu"} & set(fitted.best_params_)
