"""Judge random fits from the user's own numbers: what published models state must be true.

``python tests/certificate_cases.py`` judges 10,000 cases and prints a summary, also when it is
interrupted; ``KINDS`` lists what is judged. A ``Spec`` is one fit: an estimator, its parameters,
and rows that may be shifted, scaled, repeated, weighted, sparse or float32. The judge is
`published`, which knows the estimators' public attributes and has formulas of its own.

A ``PathSpec`` is a path over such rows: its points are judged by their models. Matrices, columns
and stored features are all reached by small paths, whose sizes are an argument of `train_path`.

A case is untrue where P, D or the gap lies outside of what is stated with its bound of rounding
(the judge's own error set aside), where the gap is missed without a warning, where scores or
predictions are not the published machine's, where a number is not finite, or where a fit ends in
anything else than a model or one sentence.
"""

from __future__ import annotations

import re
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

import bigscreen
from bigscreen.data.memory import MemoryDataset
from bigscreen.errors import InputError
from bigscreen.fleet.blas import blas_threads
from bigscreen.fleet.inline import Inline
from bigscreen.model.solved_path import SolvedPath
from bigscreen.options.train import TrainOptions
from bigscreen.path.options import PathOptions
from bigscreen.path.prepare import PathTuning
from bigscreen.path.run import train_path

sys.path.insert(0, str(Path(__file__).parent / "support"))
import edit_cases
import published
from case_runner import Kind, Outcome, run

PROBLEMS = {
    "SVC": "c-svc",
    "NuSVC": "nu-svc",
    "SVR": "svr",
    "LADRegressor": "lad",
    "QuantileRegressor": "quantile",
    "OneClassSVM": "one-class",
    "LinearSVC": "c-svc",
    "LinearSVR": "svr",
    "NystroemSVC": "c-svc",
}
DRAWN = tuple(PROBLEMS)
PROBLEMS["NuSVR"] = "nu-svr"
EXACT = ("SVC", "NuSVC", "NuSVR", "SVR", "LADRegressor", "QuantileRegressor", "OneClassSVM")
KERNELS = ("rbf", "linear", "poly", "laplacian", "precomputed")
CLASSIFIERS = ("c-svc", "nu-svc")
SECONDS = 1.0
"""The time budget of a fit in seconds: a fit that has not ended by then returns what it has."""


@dataclass(frozen=True)
class Spec:
    """A case. What has its default is plain; a minimal example has few fields that differ.

    ``offset``, ``scale``, ``huge``, ``target``: log10 of what all columns are shifted by, of what
    they are multiplied with, of what one column has in addition, and of the targets' size.
    ``whole``: the part of the columns that are small integers instead.
    ``gamma``: log10, of what suits the rows. ``C``: log10, for a kernel of size 1 if ``suited``.
    ``squared``: the squares of the losses. ``scaling``: log10, of the appended constant.
    ``edited``: the machine is amended by rows with fractions, whatever the first rows are.
    """

    seed: int = 0
    machine: str = "SVC"
    kernel: str = "rbf"
    n: int = 40
    d: int = 4
    classes: int = 2
    C: float = 0.0
    suited: bool = True
    nu: float = 0.3
    epsilon: float = 0.1
    quantile: float = 0.5
    gamma: float | str = 0.0
    degree: int = 3
    coef0: float = 1.0
    intercept: bool | str = True
    tol: float = 1e-3
    components: int | None = None
    sampling: str = "uniform"
    single: bool = False
    sparse: bool = False
    offset: float | None = None
    scale: float = 0.0
    huge: float | None = None
    whole: float = 0.0
    duplicates: bool = False
    indefinite: bool = False
    weights: str = "none"
    class_weight: str = "none"
    squared: bool = False
    scaling: float = 0.0
    target: float = 0.0
    solver: str = "auto"
    screening: str = "auto"
    start: str = "auto"
    seconds: float = SECONDS
    edited: bool = False

    @property
    def twists(self) -> int:
        """Fields that are not plain."""
        plain = Spec(machine=self.machine, kernel=self.kernel, seed=self.seed)
        return sum(getattr(self, f.name) != getattr(plain, f.name) for f in fields(self))

    def __str__(self) -> str:
        plain = asdict(Spec())
        mine = {k: v for k, v in asdict(self).items() if v != plain[k] or k in ("seed", "machine")}
        return "Spec(" + ", ".join(f"{k}={v!r}" for k, v in mine.items()) + ")"


def drawn(seed: int) -> Spec:
    """The case of this number."""
    rng = np.random.default_rng([seed, 0xCE27])
    own: dict[str, Any] = {"seed": seed, "machine": str(rng.choice(DRAWN))}
    machine, problem = own["machine"], PROBLEMS[own["machine"]]

    def some(chance: float) -> bool:
        return bool(rng.random() < chance)

    own["n"] = int(rng.integers(10, 80) if some(0.85) else rng.integers(80, 300))
    own["d"] = int(rng.integers(1, 9))
    if machine.startswith("Linear"):
        own["kernel"] = "linear"
    else:
        own["kernel"] = str(rng.choice(KERNELS if machine in EXACT else KERNELS[:4]))
        own["gamma"] = float(rng.uniform(-1.5, 1)) if some(0.8) else "scale"
        own["degree"], own["coef0"] = int(rng.integers(1, 6)), float(rng.choice([0.0, 0.5, 3.0]))
    if machine == "NystroemSVC" or (
        machine in EXACT and own["kernel"] != "precomputed" and some(0.2)
    ):
        own["components"] = int(rng.integers(2, 40))
        own["sampling"] = str(rng.choice(["uniform", "rpcholesky"]))
    own["indefinite"] = own["kernel"] == "precomputed" and some(0.2)
    own["classes"] = 3 if problem in CLASSIFIERS and some(0.2) else 2
    own["C"] = float(rng.uniform(-2, 2) if some(0.7) else rng.uniform(-4, 6))
    own["suited"] = some(0.8)
    own["nu"] = float(rng.uniform(0.05, 0.7))
    own["epsilon"] = float(rng.choice([0.0, 0.1, 0.5]))
    own["quantile"] = float(rng.uniform(0.05, 0.95))
    offset = (False, "penalized", True)[rng.integers(3)] if problem != "one-class" else True
    own["intercept"] = offset
    own["tol"] = float(10.0 ** (rng.uniform(-5, -2) if some(0.6) else rng.uniform(-9, -5)))
    own["single"], own["sparse"], own["duplicates"] = some(0.15), some(0.15), some(0.1)
    own["offset"] = float(rng.uniform(0, 6)) if some(0.2) else None
    own["scale"] = float(rng.uniform(-30, 30)) if some(0.15) else 0.0
    own["huge"] = float(rng.uniform(1, 9)) if some(0.1) else None
    if some(0.3):
        own["weights"] = str(rng.choice(["some", "zeros", "wide", "large"]))
    if problem in CLASSIFIERS and some(0.15):
        own["class_weight"] = str(rng.choice(["balanced", "uneven"]))
    if problem not in (*CLASSIFIERS, "one-class") and some(0.3):
        own["target"] = float(rng.uniform(-6, 6))
    if some(0.2) and machine in EXACT and own.get("components") is None:
        own["solver"] = str(rng.choice(["block", "pairs"]))
        own["screening"] = str(rng.choice(["none", "gap", "f-safe"]))
        own["start"] = str(rng.choice(["cold", "divide", "nystrom"]))
    if some(0.08):
        own["seconds"] = float(10.0 ** rng.uniform(-4, -1))
    if (machine not in EXACT or own.get("components")) and some(0.04):
        own["n"] = int(rng.integers(2000, 6000))  # more than the certificate takes a sample of
    if machine not in EXACT:
        own["squared"] = some(0.5)
        if machine != "NystroemSVC" and own["intercept"] == "penalized" and some(0.3):
            own["scaling"] = float(rng.uniform(-2, 3))
    if machine == "SVR" and own["kernel"] != "precomputed" and own.get("components") is None:
        # (Drawn so, the cases of other machines stay what they were.)
        machine = own["machine"] = str(rng.choice(["SVR", "NuSVR"]))
        problem = PROBLEMS[machine]
    # (Drawn by themselves, too.)
    own["edited"] = bool(np.random.default_rng([seed, 3]).random() < 0.4)
    own["whole"] = float(np.random.default_rng([seed, 2]).choice([0.0, 0.0, 0.0, 0.5, 1.0]))
    unused = {
        "C": problem in ("nu-svc", "one-class"),
        "nu": problem not in ("nu-svc", "nu-svr", "one-class"),
        "epsilon": problem != "svr", "quantile": problem != "quantile",
        "suited": own["kernel"] not in ("linear", "precomputed"),
        "degree": own["kernel"] != "poly", "coef0": own["kernel"] != "poly",
        "gamma": own["kernel"] in ("linear", "precomputed"), "whole": own["scale"] != 0,
        "sampling": own.get("components") is None or own["kernel"] == "linear",
        "edited": problem != "c-svc" or own["kernel"] == "precomputed" or own.get("squared"),
    }  # fmt: skip
    return Spec(**{name: value for name, value in own.items() if not unused.get(name)})


class Rows:
    """The user's data: rows, labels or targets, and weights."""

    def __init__(self, spec: Spec) -> None:
        rng, n, d = np.random.default_rng([spec.seed, 1]), spec.n, spec.d
        base = rng.normal(size=(n, d))
        if spec.sparse:
            base *= rng.random((n, d)) < 0.5
        if spec.duplicates:
            base = base[rng.integers(0, max(n // 3, 2), n)]
        signal = np.sin(base[:, 0]) + base @ rng.normal(size=d) / np.sqrt(d)
        signal += rng.uniform(0, 1) * rng.normal(size=n)
        self.problem, self.spec = PROBLEMS[spec.machine], spec
        self.y: Any = None
        if self.problem in CLASSIFIERS:
            ends = np.quantile(signal, np.linspace(0, 1, spec.classes + 1)[1:-1])
            self.y = np.searchsorted(ends, signal) * 2 + 1
        elif self.problem != "one-class":
            self.y = 10.0**spec.target * (signal + rng.normal())
        self.unit = 10.0**spec.scale
        X = base.copy()
        if spec.huge is not None:
            X[:, 0] *= 10.0**spec.huge
        if spec.offset is not None:
            X += 10.0**spec.offset * rng.uniform(0.5, 1, d)
        X *= self.unit
        small = int(np.ceil(spec.whole * d))
        X[:, :small] = np.rint(2.0 * base[:, :small])
        if spec.kernel == "precomputed":
            X = base @ base.T + (0.1 * np.eye(n) if rng.random() < 0.5 else 0.0)
            if spec.indefinite:
                X += np.diag(rng.normal(size=n) * (1 + np.diag(X)))
            X = self.unit * X
            X = 0.5 * (X + X.T)
        with np.errstate(over="ignore", under="ignore"):
            self.X = np.ascontiguousarray(X, np.float32 if spec.single else np.float64)
        self.given = sparse.csr_array(self.X) if spec.sparse else self.X
        self.weights = {
            "none": None, "some": rng.uniform(0.1, 3, n), "wide": 10.0 ** rng.uniform(-3, 9, n),
            "zeros": rng.uniform(0.1, 3, n) * (rng.random(n) > 0.3), "large": np.full(n, 1e9),
        }[spec.weights]  # fmt: skip
        if self.weights is not None and not self.weights.all():
            self.weights[: spec.classes * 4] = 1.0

    def _shift(self) -> float:
        return 0.0 if self.spec.offset is None else 10.0**self.spec.offset

    def size(self) -> float:
        """The typical distance between rows, for a suitable gamma."""
        huge = self.spec.huge is not None and self.spec.seed % 2
        return self.unit * (10.0 ** float(self.spec.huge or 0.0) if huge else 1.0)

    def gamma(self) -> float | str:
        if isinstance(self.spec.gamma, str):
            return self.spec.gamma
        size, d = self.size(), self.spec.d
        if self.spec.kernel == "laplacian":
            return 10.0**self.spec.gamma / (d * size)
        if self.spec.kernel == "poly":
            size = float(np.hypot(size, self.unit * self._shift()))
        return 10.0**self.spec.gamma / d / size / size

    def class_weight(self) -> Any:
        """The class weights as estimators take them."""
        if self.problem not in CLASSIFIERS or self.spec.class_weight == "none":
            return None
        uneven = {int(label): 1.0 + label for label in np.unique(self.y)}
        return "balanced" if self.spec.class_weight == "balanced" else uneven

    def penalty(self) -> float:
        """C, in inverse proportion to the size of the kernel's entries."""
        spec = self.spec
        if not spec.suited or spec.kernel not in ("linear", "precomputed"):
            return 10.0**spec.C
        with np.errstate(all="ignore"):
            if spec.kernel == "precomputed":
                size = float(np.mean(np.abs(np.diag(self.X))))
            else:
                size = float(np.mean(np.sum(self.X.astype(np.float64) ** 2, axis=1)))
        return 10.0**spec.C / size if 1e-300 < size < 1e300 else 10.0**spec.C


def machine(spec: Spec, rows: Rows) -> Any:
    """The estimator, not fitted."""
    how: dict[str, Any] = {"tol": spec.tol, "time_budget": spec.seconds, "n_jobs": 1}
    how |= {"random_state": spec.seed, "solver": spec.solver}
    problem = rows.problem
    if problem in ("nu-svc", "nu-svr", "one-class"):
        how["nu"] = spec.nu
    if problem not in ("nu-svc", "one-class"):
        how["C"] = rows.penalty()
    if problem == "svr":
        how["epsilon"] = spec.epsilon * 10.0**spec.target
    if problem == "quantile":
        how["quantile"] = spec.quantile
    if problem != "one-class":
        how["fit_intercept"] = spec.intercept
        if spec.intercept is True and spec.machine.startswith("Linear"):
            how["fit_intercept"] = "unpenalized"
    if not spec.machine.startswith("Linear"):
        how |= {"kernel": spec.kernel, "gamma": rows.gamma(), "degree": spec.degree}
        how |= {"coef0": spec.coef0}
        if spec.machine != "NuSVR":
            how["sampling"] = spec.sampling
        if spec.machine == "NystroemSVC" or spec.components is not None:
            how["n_components"] = min(spec.components or spec.n, spec.n // 2)
    if spec.machine in EXACT:
        how |= {"screening": spec.screening, "tuning": bigscreen.Tuning(start=spec.start)}
        if problem in CLASSIFIERS:
            how["decision_function_shape"] = "ovo"
    if spec.machine not in EXACT:
        loss = "epsilon_insensitive" if problem == "svr" else "hinge"
        how["loss"] = f"squared_{loss}" if spec.squared else loss
    if spec.machine.startswith("Linear"):
        how["intercept_scaling"] = 10.0**spec.scaling
    if problem in CLASSIFIERS:
        how["class_weight"] = rows.class_weight()
    return getattr(bigscreen, spec.machine)(**how)


@dataclass
class Verdict:
    """The result of judging one case: kinds of failure, each with a line of explanation."""

    spec: Spec | PathSpec
    outcome: str = "fitted"
    found: dict[str, str] = field(default_factory=dict)

    def failed(self, error: Exception) -> Verdict:
        """Take an error: one sentence refuses the case, anything else is a failure."""
        self.outcome = "refused"
        if not refusal(error):
            self.outcome = "traceback"
            self.found[f"traceback: {_place(error)}"] = f"{type(error).__name__}: {error}"
        return self


def tried(spec: Spec, make: Callable[[Spec, Rows], Any] = machine) -> Verdict:
    """Fit and judge one case; ``make`` returns the estimator."""
    verdict, rows = Verdict(spec), Rows(spec)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            fitted = make(spec, rows)
            if rows.problem == "one-class":
                fitted.fit(rows.given, sample_weight=rows.weights)
            else:
                fitted.fit(rows.given, rows.y, sample_weight=rows.weights)
            if spec.edited:
                spec, rows = edit_cases.edited(spec, rows, fitted)
            decided, predicted = _outputs(fitted, rows)
        except Exception as error:  # what it is decides
            return verdict.failed(error)
    done = not any(issubclass(w.category, ConvergenceWarning) for w in told)
    for w in told:
        if issubclass(w.category, RuntimeWarning):
            where = f"{Path(w.filename).name}:{w.lineno}"
            verdict.found[f"warning: {re.sub(r'[0-9.e+-]+', '#', str(w.message))}"] = where
    judged = published.Published(spec, rows, fitted)
    verdict.found |= judged.faults(decided, predicted, done)
    return verdict


PATHS = ("SVC", "NuSVC", "SVR", "LADRegressor", "QuantileRegressor", "OneClassSVM")


@dataclass(frozen=True)
class PathSpec:
    """A path of ``points`` values of C, or of nu, that end at the fit's own.

    ``apart``: log10 of the factor between two values of C. ``columns``: walk over kernel columns in
    place of the whole matrix. ``large``: as paths of many rows are solved, over float32 features.
    """

    fit: Spec
    points: int = 1
    apart: float = 0.5
    columns: bool = False
    large: bool = False
    rules: bool = True
    dynamic: bool = True

    @property
    def machine(self) -> str:
        """The estimator that fits one point."""
        return self.fit.machine

    @property
    def twists(self) -> int:
        """Fields that are not plain."""
        plain = PathSpec(self.fit)
        own = sum(getattr(self, f.name) != getattr(plain, f.name) for f in fields(self))
        return own + self.fit.twists


def drawn_path(seed: int) -> PathSpec:
    """The path of this number."""
    rng = np.random.default_rng([seed, 0x9A7B])
    name, spec = str(rng.choice(PATHS)), drawn(seed)
    problem = PROBLEMS[name]
    kernel = str(rng.choice(KERNELS))
    if problem == "nu-svc" and kernel == "linear":
        kernel = "rbf"  # (a linear model does not say which rho its scores were divided by)
    components = None
    if kernel not in ("linear", "precomputed") and problem != "nu-svc" and rng.random() < 0.3:
        components = int(rng.integers(2, 40))
    own: dict[str, Any] = {
        "machine": name, "kernel": kernel, "components": components, "squared": False,
        "n": min(spec.n, 120), "scaling": 0.0, "solver": "auto", "screening": "auto",
        "gamma": spec.gamma if isinstance(spec.gamma, float) else 0.0,
        "start": "auto", "sampling": "uniform", "seconds": 5.0 * SECONDS,
        "classes": 3 if problem == "c-svc" and rng.random() < 0.2 else 2,
        "class_weight": spec.class_weight if problem == "c-svc" else "none",
        "intercept": (False, "penalized", True)[2 if problem == "one-class" else rng.integers(3)],
        "indefinite": False,
    }  # fmt: skip
    if components is not None and rng.random() < 0.1:
        own["n"] = int(rng.integers(1200, 3000))  # more than the rounding takes a sample of
    chances = (bool(rng.random() < chance) for chance in (0.5, 0.3, 0.7, 0.7))
    points, apart = int(rng.integers(1, 5)), float(rng.uniform(0.05, 1.5))
    return PathSpec(replace(spec, **own), points, apart, *chances)


def solved_path(spec: PathSpec, rows: Rows) -> SolvedPath:
    """The path of a case."""
    own, n = spec.fit, spec.fit.n
    classes, y = None, rows.y
    if rows.problem in CLASSIFIERS:
        classes, y = np.unique(rows.y, return_inverse=True)
    labels = [] if rows.problem == "one-class" else None if classes is None else classes.tolist()
    data = MemoryDataset(rows.given, y, labels, rows.weights)
    if rows.problem in ("nu-svc", "one-class"):
        values = np.linspace(0.5 * own.nu, own.nu, spec.points + 1)[1:]
    else:
        values = rows.penalty() * 10.0 ** (spec.apart * np.arange(1 - spec.points, 1))
    given = {"gamma": rows.gamma()} if own.kernel not in ("linear", "precomputed") else {}
    options = TrainOptions(
        problem=rows.problem, kernel=own.kernel, degree=own.degree, coef0=own.coef0,
        exact=own.kernel != "linear" and own.components is None, tau=own.quantile,
        landmarks=min(own.components or n, n), epsilon=own.epsilon * 10.0**own.target,
        intercept={True: "true", False: "none"}.get(own.intercept, own.intercept),
        class_weight=rows.class_weight(), tol=own.tol, time_budget=own.seconds, **given,
    )  # fmt: skip
    asked = PathOptions(options, values, None, None if spec.rules else (), spec.dynamic)
    tuning = PathTuning(0 if spec.columns else n, 0 if spec.large else 1 << 22)
    with Inline(1) as fleet, blas_threads(1):
        return train_path(data, asked, fleet, tuning=tuning)


def tried_path(
    spec: PathSpec, spoil: Callable[[dict[str, Any]], None] = lambda proof: None
) -> Verdict:
    """Solve and judge one path; ``spoil`` may change what each certificate states."""
    verdict, rows = Verdict(spec), Rows(spec.fit)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            path = solved_path(spec, rows)
        except Exception as error:  # what it is decides
            return verdict.failed(error)
    verdict.outcome = path.record["provenance"]["solver"]
    done = not any(issubclass(w.category, ConvergenceWarning) for w in told)
    for k, value in enumerate(path.values.tolist()):
        model = path.model(k)
        for proof in model.provenance["certificates"]:
            spoil(proof)
        fitted = SimpleNamespace(
            model_=model, intercept_=model.intercept, gamma=rows.gamma(), C=value,
            certificate_=model.provenance["certificates"], classes_=np.array(model.labels),
            class_weight=rows.class_weight(), epsilon=spec.fit.epsilon * 10.0**spec.fit.target,
        )  # fmt: skip
        if model.support is not None:
            fitted.dual_coef_, fitted.support_ = model.coef, model.support
        elif model.landmarks is not None:
            fitted.components_ = model.landmarks
        judge = published.Published(replace(spec.fit, nu=value), rows, fitted)
        verdict.found |= {f"path: {kind}": what for kind, what in judge.proofs(done).items()}
    return verdict


def _outputs(fitted: Any, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    predicted = fitted.predict(rows.given)
    if hasattr(fitted, "decision_function"):
        return np.asarray(fitted.decision_function(rows.given)), predicted
    return predicted, predicted


def refusal(error: Exception) -> bool:
    """Whether an error is one sentence for a person: bigscreen's own, or scikit-learn's check."""
    last = traceback.extract_tb(error.__traceback__)[-1].filename
    own = isinstance(error, InputError)
    checked = type(error) is ValueError and "sklearn" in last
    return (own or checked) and len(str(error)) < 600


def _place(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "bigscreen" in f.filename and "tests" not in f.filename]
    last = (own or frames)[-1]
    return f"{type(error).__name__} in {Path(last.filename).name}, {last.name}"


def judge_fit(number: int) -> Outcome:
    """Judge the fit of this number."""
    return _outcome(tried(drawn(number)))


def judge_path(number: int) -> Outcome:
    """Judge the path of this number."""
    return _outcome(tried_path(drawn_path(number)))


def _outcome(verdict: Verdict) -> Outcome:
    return Outcome(str(verdict.spec), verdict.outcome, verdict.found, twists=verdict.spec.twists)


KINDS = {"fits": Kind(judge_fit, 7_000), "paths": Kind(judge_path, 3_000)}
"""What a run judges, and how many cases of each kind."""

if __name__ == "__main__":
    sys.exit(run(KINDS, __doc__))
