"""An index of the papers' numbered tables and figures, with a verdict and a reason for each.

Verdicts: agrees; differs; substitute data; not reproducible; no number printed (a drawing whose
curves are repeated, to be compared by eye); not run. If an experiment's record has ``verdicts``,
they are used; else the verdict sums up the last column of the tables that repeat the item.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipelines.papers import data_sets
from pipelines.papers.common import FEWER

NEAR = 0.05
"""A share of rows agrees with a share in the paper's text if they differ by at most this."""


class Verdict(NamedTuple):
    """The verdict on a table or figure, with its reason."""

    word: str
    why: str = ""


@dataclass(frozen=True)
class Item:
    """A numbered table or figure of a paper.

    Attributes
    ----------
    name : str
        As printed, such as "table 2".
    experiment : str
        The module that repeats it; empty if none does.
    why : str
        A remark in any case: why nothing repeats it, or which data it has.
    claims : dict
        Shares of rows that a rule rejects according to the text, by data set, if figures print no
        number.
    drawing : bool
        Whether it prints no number that could be compared.
    measured : callable or None
        Computes the verdict, if no experiment is needed.
    """

    name: str
    experiment: str = ""
    why: str = ""
    claims: Mapping[str, float] | None = None
    drawing: bool = False
    measured: Callable[[], Verdict] | None = None


DIGITS = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
"""Numbers of training images of the digits, as Yang's table IX prints them."""


def at_hand(name: str) -> Path | None:
    """Return a file of the data folder, or None if it is missing."""
    try:
        return data_sets.path(name)
    except SystemExit:
        return None


def digits() -> Verdict:
    """Compare table IX with the counted images."""
    file = at_hand("mnist/train-labels-idx1-ubyte.gz")
    if file is None:
        return Verdict("not run", "mnist is not in the data folder")
    labels = np.frombuffer(gzip.decompress(file.read_bytes())[8:], np.uint8)
    apart = [k for k in range(10) if np.count_nonzero(labels == k) != DIGITS[k]]
    if apart:
        return Verdict("differs", f"as many images as printed, but for {apart}")
    return Verdict("agrees", "as many training images of every digit")


ILLUSTRATION = "not an experiment: a drawing, or definitions"

DOCUMENTS: dict[str, tuple[Item, ...]] = {
    "Wang et al. 2014": (
        Item("table 1", "wang2014.toys"),
        Item("figure 1", "wang2014.toys", drawing=True),
        Item("table 2", "wang2014.svm", "covtype: 4,320 of the paper's 37,877 rows"),
        Item("figure 2", "wang2014.svm", claims={"ijcnn1": 0.8, "wine": 0.8, "covtype 6/7": 1.0}),
        Item("table 3", "wang2014.lad"),
        Item("figure 3", "wang2014.lad", claims={"magic": 0.9, "computer": 1.0, "houses": 1.0}),
    ),
    "Yang et al.: SRBO": (
        *(Item(name, "", ILLUSTRATION) for name in ("figure 1", "figure 2", "figure 3")),
        *(Item(name, "", ILLUSTRATION) for name in ("table I", "table II")),
        Item("table III", "", "a list of 30 data sets, most of which are not here"),
        Item("figure 4", "yang_srbo.toys", drawing=True),
        *(Item(f"table {n}", "yang_srbo.supervised") for n in ("IV", "V")),
        Item("figure 5", "yang_srbo.supervised", drawing=True),
        Item("figure 6", "yang_srbo.remaining", drawing=True),
        Item("figure 7", "yang_srbo.toys", drawing=True),
        *(Item(f"table {n}", "yang_srbo.one_class") for n in ("VI", "VII")),
        Item("table VIII", "yang_srbo.solvers"),
        Item("figure 8", "yang_srbo.solvers", drawing=True),
        Item("table IX", measured=digits),
        *(Item(f"table {n}", "yang_srbo.mnist") for n in ("X", "XI")),
        Item("table XII", "yang_srbo.wilcoxon"),
    ),
    "Zimmert et al. 2015": (
        Item("table 1", "zimmert2015.screening"),
        Item("figure 1", "zimmert2015.screening", drawing=True),
    ),
    "Tanji et al. 2023: Snacks": (
        Item("table I", "", "rates of convergence, not an experiment"),
        *(Item(f"table {n}", "tanji2023.tables") for n in ("II", "III", "IV", "V", "VI", "VII")),
        Item("figure 1", "tanji2023.figures"),
        Item("figure 2", "tanji2023.figures"),
    ),
    "Schmidt-Thieme: learning SVMs (slides)": (),
}


def verdict(item: Item, record: Mapping[str, Any], run: Mapping[str, Any] | None) -> Verdict:
    """Decide the verdict on a table or figure by the record of its experiment and its exit."""
    if item.measured is not None:
        return item.measured()
    if not item.experiment:
        return Verdict("not reproducible", item.why)
    if run is None:
        return Verdict("not run", item.why)
    if run["code"]:
        return Verdict("not run", "its experiment failed")
    if run.get("trial"):
        return Verdict("not run", "only as a trial on few rows")
    if item.name in record.get("verdicts", {}):
        word, *why = record["verdicts"][item.name]
        return Verdict(word, "; ".join(why))
    if item.claims is not None:
        return claimed(item.claims, record)
    if item.drawing:
        return Verdict("no number printed", item.why)
    why = [] if not item.why else [item.why]
    table = item.name.removeprefix("table ")
    if item.experiment.startswith("yang") and table in data_sets.TABLES and at_hand("."):
        why.append(data_sets.there(table).partition(": ")[2])
    tables = [table for table in record.get("tables", ()) if item.name in table["of"]]
    words = [row[-1] for table in tables for row in table["rows"] if row[-1]]
    judged = [word for word in words if word != FEWER]
    if not judged:
        return Verdict("not run", "; ".join([*why, "only on fewer rows or values of the grid"]))
    apart = sum(word.startswith("differs") for word in judged)
    if apart:
        return Verdict("differs", "; ".join([*why, f"{apart} of {len(judged)} rows differ"]))
    return Verdict("agrees", "; ".join(why))


def claimed(claims: Mapping[str, float], record: Mapping[str, Any]) -> Verdict:
    """Compare the shares that the text says DVI rejects with our means over the grid."""
    found = {}
    for one in record.get("sets", ()):
        if one["name"] in claims:
            found[one["name"]] = float(np.mean(np.sum(one["rejection"]["DVI"], axis=1)))
    said = ", ".join(f"{name} {share:.0%} ({claims[name]:.0%})" for name, share in found.items())
    good = found and all(share >= claims[name] - NEAR for name, share in found.items())
    return Verdict("agrees" if good else "differs", f"rejected by DVI (the text's): {said}")
