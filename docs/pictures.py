"""The figures of these pages, each from a fit: `python docs/pictures.py FOLDER`."""

import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from bigscreen import MemoryDataset, NystroemSVC
from bigscreen.fleet.inline import Inline
from bigscreen.options.train import TrainOptions
from bigscreen.report.pages import model_page
from bigscreen.train.run import train

ROWS, FEW = 20_000, 3_000


def rows(seed=0):
    """A disc and what lies around it, overlapping: no machine gets all of them right."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(ROWS, 2))
    return X, (X**2).sum(axis=1) + 0.5 * rng.normal(size=ROWS) < 1.3


def make(folder):
    """Write all of them, unless they are there."""
    (folder / "page").mkdir(parents=True, exist_ok=True)
    if (folder / "page" / "example.html").exists():
        return
    X, y = rows()
    # Coordinate descent comes near step by step; the default takes five passes, and shows less.
    slow = NystroemSVC(n_components=100, gamma=1.0, solver="cd").fit(X[:FEW], y[:FEW])
    squeeze(slow).savefig(folder / "squeeze.svg", metadata={"Date": None})
    decided(X[:FEW], y[:FEW]).savefig(folder / "decided.svg", metadata={"Date": None})
    options = TrainOptions(landmarks=100, gamma=1.0, tol=1e-6)
    model = train(
        MemoryDataset(X.astype(np.float32), y.astype(int), ["out", "in"]), options, Inline()
    )
    model_page(model, "rings.bsm").write(folder / "page" / "example.html")


def squeeze(machine):
    """P and D, pass by pass: the best objective is between them."""
    history = machine.history_
    figure = Figure(figsize=(6, 3.4), layout="constrained")
    ax = figure.add_subplot()
    passes = [event["pass"] for event in history]
    primal, dual = ([event[name] for event in history] for name in ("primal", "dual"))
    ax.plot(passes, primal, "v-", label="P: what this machine costs")
    ax.plot(passes, dual, "^-", label="D: what every machine costs at least")
    ax.fill_between(passes, dual, primal, alpha=0.15)
    ax.set_ylim(0.5 * primal[-1], 1.4 * primal[-1])
    ax.set_xlabel("pass")
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set_ylabel("objective")
    ax.legend(frameon=False)
    return figure


def decided(X, y):
    """Rows that are proved to be out, at their bound, or neither, at gaps from 1e-2 to 1e-7."""
    figure = Figure(figsize=(6, 3.4), layout="constrained")
    ax = figure.add_subplot()
    gaps, shares = [], []
    for tol in (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7):
        machine = NystroemSVC(n_components=100, gamma=1.0, tol=tol).fit(X, y)
        counts = machine.ledger_.counts
        gaps.append(machine.relative_gap_)
        shares.append([counts[name] / len(y) for name in ("out", "bound", "open")])
    order = np.argsort(gaps)[::-1]
    parts = np.array(shares)[order].T
    names = [
        "out: the optimum is the same without it",
        "bound: its coefficient is as large as it may be",
        "open",
    ]
    ax.stackplot(
        np.array(gaps)[order], parts, labels=names, colors=["tab:blue", "tab:orange", "0.85"]
    )
    ax.set_xscale("log")
    ax.invert_xaxis()
    ax.set_ylim(0, 1)
    ax.set_xlabel("relative gap that is proved")
    ax.set_ylabel("part of the rows")
    ax.legend(frameon=False, loc="upper left", fontsize=8)
    return figure


if __name__ == "__main__":
    make(Path(sys.argv[1]))
