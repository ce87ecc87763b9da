"""Test whether label sets and intervals contain the truth as often as promised, for any machine.

    python -m pipelines.bench.coverage [--only collapsed tiny ...] [--repeats 8] [--out DIR]

Twelve settings of made-up rows: 1 to 50 % of the second label, machines that give nearly every row
the same score, separable rows, few rows, balanced weights, three labels. Measured: coverage of the
sets at alpha .05, .1 and .2 over 10,000 new rows, and the mean probability of the last label next
to its share. The promise holds on average over draws of training and test rows, so figures are
means over several draws.

Five settings of targets whose noise grows with a column: intervals of a regression, split and
cross; of two quantile machines; of a machine that predicts one number; of few rows. Each fits
100,000 rows (60) and covers as many new ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigscreen import SVR, NystroemSVC, QuantileRegressor
from pipelines.bench import common

ALPHAS = (0.05, 0.1, 0.2)

NEW_ROWS = 10_000

OVERALL, BY_LABEL = 0.02, 0.05
"""Goals: coverage is within these of 1 - alpha over all rows, and over the rows of a label."""

LEAST_ROWS = 100
"""The goal by label counts for labels with at least this many fitted rows on average."""

Rows = tuple[NDArray[np.float64], NDArray[np.int64]]


class Setting(NamedTuple):
    """One setting: how its rows are drawn, and the options of the machine fitted to them."""

    draw: Callable[[int, np.random.Generator], Rows]
    machine: dict[str, Any]
    fitted: int = 6000
    times: int = 1
    """Factor on the number of draws: settings of few rows need more of them."""


def logistic(share: float, strength: float) -> Callable[[int, np.random.Generator], Rows]:
    """Draw five normal columns, and labels by a logistic of x0 and sin(2 x1) with a given share."""

    def sums(X: NDArray[np.float64]) -> NDArray[np.float64]:
        return strength * (X[:, 0] + np.sin(2 * X[:, 1]))

    many = sums(np.random.default_rng(0).normal(size=(100_000, 5)))
    low, high = -30.0, 30.0
    for _ in range(60):
        offset = 0.5 * (low + high)
        above = np.mean(1 / (1 + np.exp(-many - offset))) > share
        low, high = (low, offset) if above else (offset, high)

    def draw(n: int, rng: np.random.Generator) -> Rows:
        X = rng.normal(size=(n, 5))
        p = 1 / (1 + np.exp(-sums(X) - offset))
        return X, (rng.random(n) < p).astype(np.int64)

    return draw


def separable(n: int, rng: np.random.Generator) -> Rows:
    """Draw two labels with a wide margin between them."""
    y = np.arange(n) % 2
    return rng.normal(size=(n, 5)) + 8.0 * y[:, None], y


def three(n: int, rng: np.random.Generator) -> Rows:
    """Draw three overlapping labels of 70, 20 and 10 % of the rows."""
    y = rng.choice(3, n, p=(0.7, 0.2, 0.1))
    return rng.normal(size=(n, 5)) + 1.2 * np.eye(3, 5)[y], y


PLAIN: dict[str, Any] = {"n_components": 200, "C": 1.0, "gamma": 0.1}
BALANCED = {**PLAIN, "class_weight": "balanced"}

SETTINGS = {
    "1 %": Setting(logistic(0.01, 1.5), PLAIN),
    "5 %": Setting(logistic(0.05, 1.5), PLAIN),
    "12 %": Setting(logistic(0.12, 1.5), PLAIN),
    "30 %": Setting(logistic(0.30, 1.5), PLAIN),
    "50 %": Setting(logistic(0.50, 1.5), PLAIN),
    "collapsed": Setting(logistic(0.12, 1.0), PLAIN),
    "collapsed, tol 1e-5": Setting(logistic(0.12, 0.5), {**PLAIN, "tol": 1e-5}),
    "balanced": Setting(logistic(0.12, 1.0), BALANCED),
    "1 %, balanced": Setting(logistic(0.01, 1.5), BALANCED),
    "separable": Setting(separable, PLAIN),
    "tiny": Setting(logistic(0.30, 1.5), {**PLAIN, "n_components": 40}, 60, 25),
    "three labels": Setting(three, PLAIN),
}


def judged(name: str, repeats: int) -> dict[str, Any]:
    """Measure one setting's coverage, over all rows and by label, as means over draws of rows."""
    setting = SETTINGS[name]
    covered: list[Any] = []
    counts, size, said, share = [], [], [], []
    for repeat in range(repeats * setting.times):
        rng = np.random.default_rng([repeat, *name.encode()])
        (X, y), (new, truth) = setting.draw(setting.fitted, rng), setting.draw(NEW_ROWS, rng)
        machine = NystroemSVC(probability=True, random_state=repeat, **setting.machine).fit(X, y)
        sets = np.stack([machine.predict_set(new, alpha) for alpha in ALPHAS])
        hit = sets[:, np.arange(NEW_ROWS), truth]
        labels = range(len(machine.classes_))
        covered.append([hit.mean(axis=1), *(hit[:, truth == c].mean(axis=1) for c in labels)])
        counts.append(np.bincount(y, minlength=len(labels)))
        size.append(sets.sum(axis=2).mean(axis=1))
        said.append(machine.predict_proba(new)[:, -1].mean())
        share.append(np.mean(truth == labels[-1]))
    means = np.mean(covered, axis=0)
    return {
        "fitted": np.mean(counts, axis=0).tolist(),
        "coverage": means[0].tolist(),
        "by_label": means[1:].tolist(),
        "size": np.mean(size, axis=0).tolist(),
        "probability": float(np.mean(said)),
        "share": float(np.mean(share)),
    }


def off(found: dict[str, Any]) -> tuple[float, float]:
    """Compute the largest deviation of coverage from 1 - alpha: over all rows, and by label."""
    goal = 1 - np.array(ALPHAS)
    large = [k for k, rows in enumerate(found["fitted"]) if rows >= LEAST_ROWS]
    labels = [float(np.max(np.abs(np.array(found["by_label"][k]) - goal))) for k in large]
    return float(np.max(np.abs(np.array(found["coverage"]) - goal))), max(labels, default=0.0)


INTERVALS_OFF = 0.01
"""Goal: intervals hold the target of this much less or more than 1 - alpha of the rows, at most."""

Targets = tuple[NDArray[np.float64], NDArray[np.float64]]


def heteroscedastic(n: int, rng: np.random.Generator) -> Targets:
    """Draw four uniform columns, and targets whose noise grows with the first one."""
    X = rng.uniform(-2, 2, size=(n, 4))
    noise = 0.1 + 0.5 * np.abs(X[:, 0])
    return X, np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + noise * rng.normal(size=n)


class Regression(NamedTuple):
    """One setting: the options of the machine, how intervals are laid, and the rows."""

    machine: dict[str, Any]
    cross: bool = False
    quantiles: bool = False
    fitted: int = 100_000
    times: int = 1


REGRESSION: dict[str, Any] = {"n_components": 200, "gamma": 0.3, "C": 1.0}

REGRESSIONS = {
    "targets": Regression(REGRESSION),
    "targets, cross": Regression(REGRESSION, cross=True),
    "targets, two quantiles": Regression(REGRESSION, quantiles=True),
    "targets, one number": Regression({**REGRESSION, "C": 1e-9}),
    "targets, tiny": Regression({**REGRESSION, "n_components": 40}, True, fitted=60, times=200),
}


def interval_ends(setting: Regression, seed: int, fitted: Targets, X: Any) -> NDArray[np.float64]:
    """Fit a setting's machine and predict intervals of the rows X, (alphas, rows, 2)."""
    how: dict[str, Any] = {"probability": True, "random_state": seed, **setting.machine}
    if not setting.quantiles:
        machine = SVR(**how).fit(*fitted)
        return np.stack([machine.predict_interval(X, a, cross=setting.cross) for a in ALPHAS])
    out = np.empty((len(ALPHAS), len(X), 2))
    for place, alpha in enumerate(ALPHAS):
        for end, tau in enumerate((alpha / 2, 1 - alpha / 2)):
            one = QuantileRegressor(quantile=tau, **how).fit(*fitted)
            out[place, :, end] = one.predict_interval(X, alpha / 2)[:, end]
    return out


def judged_targets(name: str, repeats: int) -> dict[str, Any]:
    """Measure the coverage and width of a setting's intervals, as means over draws of rows.

    ``quiet``, ``noisy``: coverage of the tenth of the rows with the least and the most noise.
    """
    setting = REGRESSIONS[name]
    covered, width, quiet, noisy = [], [], [], []
    for repeat in range(repeats * setting.times):
        rng = np.random.default_rng([repeat, *name.encode()])
        (X, y), (new, truth) = (
            heteroscedastic(n, rng) for n in (setting.fitted, max(setting.fitted, 1000))
        )
        ends = interval_ends(setting, repeat, (X, y), new)
        hit = (ends[..., 0] <= truth) & (truth <= ends[..., 1])
        order = np.argsort(np.abs(new[:, 0]))
        tenth = len(order) // 10
        covered.append(hit.mean(axis=1))
        quiet.append(hit[:, order[:tenth]].mean(axis=1))
        noisy.append(hit[:, order[-tenth:]].mean(axis=1))
        width.append(np.mean(ends[..., 1] - ends[..., 0], axis=1))
    named = {"coverage": covered, "quiet": quiet, "noisy": noisy, "width": width}
    return {what: np.mean(each, axis=0).tolist() for what, each in named.items()}


def main() -> None:
    """Run, print, and write the record."""
    parser = common.arguments(__doc__.splitlines()[0], (*SETTINGS, *REGRESSIONS))
    parser.add_argument("--repeats", type=int, default=8, help="draws of each setting's rows [8]")
    options = parser.parse_args()
    record = {}
    for name in options.only:
        record[name] = (judged if name in SETTINGS else judged_targets)(name, options.repeats)
    lines = []
    for name, found in record.items():
        if name in REGRESSIONS:
            continue
        overall, by_label = off(found)
        coverage = (f"{share:.3f}" for share in found["coverage"])
        labels = " | ".join(" ".join(f"{s:.3f}" for s in each) for each in found["by_label"])
        says = f"{found['probability']:.3f} / {found['share']:.3f}"
        met = common.verdict(overall <= OVERALL and by_label <= BY_LABEL)
        lines.append([name, *coverage, labels, says, f"{overall:.3f} {by_label:.3f}", met])
    heads = ("setting", *(f"at {alpha:g}" for alpha in ALPHAS), "by label", "mean P / share")
    if lines:
        common.show("coverage of label sets", (*heads, "worst off", "goal"), lines)
    targets = []
    for name in (name for name in record if name in REGRESSIONS):
        found = record[name]
        short = np.array(found["coverage"]) - (1 - np.array(ALPHAS))
        met = common.verdict(float(np.max(np.abs(short))) <= INTERVALS_OFF)
        texts = [[f"{value:.3f}" for value in found[what]] for what in ("coverage", "width")]
        tenths = [" ".join(f"{value:.3f}" for value in found[what]) for what in ("quiet", "noisy")]
        targets.append([name, *texts[0], " ".join(texts[1]), *tenths, met])
    heads = (
        "setting",
        *(f"at {alpha:g}" for alpha in ALPHAS),
        "width",
        "quietest tenth",
        "noisiest",
    )
    if targets:
        common.show("coverage of intervals", (*heads, "goal"), targets)
    common.save(options.out, "coverage", record)


if __name__ == "__main__":
    main()
