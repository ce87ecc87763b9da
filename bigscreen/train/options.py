"""Everything a fit can be asked for, checked when it is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from bigscreen.errors import InputError, is_number
from bigscreen.kernels.standard import make_kernel
from bigscreen.screening.dynamic import check_rule

__all__ = ["CLASSIFIERS", "PARAMETERS", "SQUARED", "TrainOptions", "coupled"]


@dataclass(frozen=True)
class TrainOptions:
    """Everything a fit can be asked for.

    Parameters
    ----------
    problem : {"c-svc", "squared-svc", "nu-svc", "one-class", "lad", "svr", "squared-svr", \
"quantile"}
        Classifiers; the machine that tells rows like those it has seen from others; regressions by
        least absolute deviations, by epsilon-SVR, and of a quantile (`bigscreen.problems`). The
        squared ones are for linear machines and landmarks; "nu-svr" is for exact machines on rows
        that are there twice (`store.Mirrored`).
    nu : float
        In (0, 1], of nu-svc and one-class: the part of the rows' weight that is inside the margin
        (at most) and supports it (at least).
    epsilon : float
        Of svr and squared-svr: errors up to this cost nothing.
    tau : float
        Of quantile: the quantile, strictly between 0 and 1.
    kernel : {"rbf", "linear", "polynomial", "laplacian", "sigmoid"}
        An exact machine also takes "precomputed" (rows in memory, a square matrix of entries) and
        a function ``f(A, B)`` that returns the entries between two sets of rows.
    gamma : {"scale", "auto"} or float
        "scale" is ``1 / (n_features * X.var())``, "auto" is ``1 / n_features``.
    degree, coef0
        Of the polynomial and sigmoid kernels.
    exact : bool
        Solve the kernel machine itself: no landmarks, no approximation.
    landmarks : int
        m, rows that every row is compared with; unused by the linear kernel and exact machines.
    sampling : {"uniform", "rpcholesky"}
    truncation : float or None
        Of landmarks: directions whose eigenvalue is below this part of the largest are dropped.
        None: below what float64 carries (1e-12) where features are stored, what float32 does (1e-6)
        where they are recomputed.
    seed : int
    C : float
        Penalty, of all problems without nu; ``lam`` gives it as ``C = 1 / (2 n lam)`` instead.
    class_weight : None, "balanced" or mapping from label to weight
        Of classifiers.
    strategy : {"rest", "one"}
        Of classifiers: more than two labels each against the rest, or one against one.
    tol : float
        Relative duality gap to prove. An exact machine whose kernel is not positive semidefinite
        (sigmoid, polynomial with coef0 below 0, a matrix or function that shows it) has none: tol
        is the violation of the KKT conditions, LIBSVM's eps.
    max_iter : int
    time_budget : float or None
        Seconds, after which the best point so far is certified and returned.
    memory : int or None
        Bytes that all processes together may use; None: 0.8 of the machine's.
    cache : int or None
        Bytes of kernel columns that an exact machine keeps; None: 0.3 of the memory, or less where
        less is left or needed. No result depends on it.
    intercept : {"constant", "true", "none"}
        A one-class machine's offset is its own; this is not looked at.
    intercept_scaling : float
        What a constant offset appends to the rows in place of 1: of c-svc, svr and the squared
        ones on linear machines and landmarks.
    solver : {"auto", "newton", "cd", "block", "pairs"}
        "block" and "pairs" are those of exact machines: "auto" is "pairs" up to 1,024 rows, else
        "block". "cd" moves one variable at a time: it solves problems without a coupling, which
        are those without nu and without an unpenalised offset.
    features : {"auto", "stored", "recomputed"}
        Of landmarks.
    screening : {"auto", "gap", "f-safe", "adaptive", "joachims", "none"}
        "auto" is "none" for an exact machine, else "gap".
    f : float
        Of f-safe screening.
    patience : int
        Of Joachims' shrinking: checks that a row has been at a bound for.
    start : {"auto", "cold", "divide", "nystrom"}
        Where the solve begins: at 0, at the solutions of parts of the rows, or at that of a
        Nystrom machine of few landmarks. "auto" is "cold".
    parts, levels : int or None, int
        Of divide and conquer: parts of the first level (None: by the rows), each next level having
        a quarter as many.
    early : bool
        Stop after the parts of divide and conquer: each row is scored by the machine of its part,
        and nothing is proved. Exact machines only.
    certify : {"float32", "float64"}
    work : Path or None
        Folder for checkpoints and for features that do not fit in memory.
    resume : bool
        Go on from the checkpoints in ``work``.
    """

    problem: str = "c-svc"
    nu: float = 0.5
    epsilon: float = 0.1
    tau: float = 0.5
    kernel: str | Callable[[Any, Any], Any] = "rbf"
    gamma: float | str = "scale"
    degree: int = 3
    coef0: float = 0.0
    exact: bool = False
    landmarks: int = 1000
    sampling: str = "uniform"
    truncation: float | None = None
    seed: int = 0
    C: float = 1.0
    lam: float | None = None
    class_weight: str | Mapping[Any, float] | None = None
    strategy: str = "rest"
    tol: float = 1e-3
    max_iter: int = 1000
    time_budget: float | None = None
    memory: int | None = None
    cache: int | None = None
    intercept: str = "constant"
    intercept_scaling: float = 1.0
    solver: str = "auto"
    features: str = "auto"
    screening: str = "auto"
    f: float = 0.1
    patience: int = 3
    start: str = "auto"
    parts: int | None = None
    levels: int = 1
    early: bool = False
    certify: str = "float32"
    work: Path | None = None
    resume: bool = False

    def __post_init__(self) -> None:
        check_values(self)
        self._check_problem()
        self._check_exact()
        self._check_start()
        self._check_solver()

    @property
    def record(self) -> dict[str, Any]:
        """The options as JSON can hold them, without the folder and how it is used."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        if callable(self.kernel):
            fields["kernel"] = getattr(self.kernel, "__qualname__", type(self.kernel).__qualname__)
        if self.intercept_scaling == 1:
            del fields["intercept_scaling"]  # as it was before there was any
        if isinstance(self.class_weight, Mapping):
            fields["class_weight"] = {str(k): _plain(v) for k, v in self.class_weight.items()}
        return {
            name: _plain(value) for name, value in fields.items() if name not in ("work", "resume")
        }

    @property
    def divided(self) -> bool:
        """Whether parts of the rows are solved first."""
        return self.early or self.start == "divide"

    @property
    def rule(self) -> str:
        """The screening rule that "auto" stands for."""
        if self.screening != "auto":
            return self.screening
        return "none" if self.exact else "gap"

    @property
    def classifies(self) -> bool:
        """Whether rows have labels, and there may be more than one problem."""
        return self.problem in CLASSIFIERS

    @property
    def offset(self) -> str:
        """``intercept``, as the problem has it."""
        return "true" if self.problem == "one-class" else self.intercept

    @property
    def coupled(self) -> bool:
        """Whether the dual has a coupling: no variable can move alone."""
        return coupled(self.problem, self.offset)

    @property
    def indefinite(self) -> bool:
        """Whether the kernel is not positive semidefinite, by its name, and not made features.

        Such a fit ends at a stationary point, and ``tol`` is its KKT violation.
        """
        if not self.exact or callable(self.kernel):
            return False
        return not make_kernel(self.kernel, 1.0, self.degree, self.coef0).psd

    def _check_problem(self) -> None:
        own = PARAMETERS[self.problem]
        if self.lam is not None and "C" not in own:
            raise InputError(f"lambda stands for C, which {self.problem} has not; use nu")
        if self.problem in SQUARED:
            self._check_squared()
        if self.problem == "nu-svr" and not (self.exact and not self.early):
            raise InputError("nu-svr is for exact machines, not for landmarks or early ends")
        common = self.exact or self.solver == "pairs" or self.problem in ("lad", "quantile")
        if self.intercept_scaling != 1 and self.intercept == "constant" and common:
            raise InputError(
                "intercept_scaling is for c-svc, svr and squared losses on linear machines or "
                "landmarks, by newton or cd; leave it at 1"
            )
        for name, given in (
            ("class_weight", self.class_weight is not None),
            ("strategy one", self.strategy == "one"),
        ):
            if given and not self.classifies:
                raise InputError(
                    f"{name} is for classifiers and {self.problem} knows no classes; leave it out"
                )

    def _check_squared(self) -> None:
        plain = self.problem.replace("squared", "c" if self.classifies else "").lstrip("-")
        for name, asked in (
            ("an exact machine", self.exact),
            ("solver pairs", self.solver == "pairs"),
            ("divide and conquer", self.divided),
            ("start nystrom", self.start == "nystrom"),
        ):
            if asked:
                raise InputError(
                    f"{name} does not solve {self.problem}, whose losses are squared: ask for a "
                    f"linear machine or landmarks, solver newton or cd, or for {plain}"
                )

    def _check_solver(self) -> None:
        if self.solver == "cd" and self.coupled:
            nu = "nu" in PARAMETERS[self.problem]
            raise InputError(
                f"coordinate descent cannot fit {self.problem if nu else 'an unpenalised offset'}, "
                "which ties the variables to each other; use the newton solver"
                + (", or pairs" if nu else ", pairs, or intercept constant")
            )

    def _check_exact(self) -> None:
        """What only an exact machine or its solvers have, and what they have not."""
        paired = self.exact or self.solver == "pairs"
        given = callable(self.kernel) or self.kernel == "precomputed"
        for name, lacking in (
            ("a precomputed kernel or one that is a function", given and not self.exact),
            ("solver block", self.solver == "block" and not self.exact),
            ("early", self.early and not self.exact),
            ("cache", self.cache is not None and not paired),
            ("screening joachims", self.screening == "joachims" and not paired),
        ):
            if lacking:
                raise InputError(f"{name} is for exact machines; leave it out or ask for exact")
        if self.truncation is not None and (self.exact or self.kernel == "linear"):
            raise InputError("truncation is for landmarks, and this machine has none; leave it out")
        if self.exact and self.solver in ("newton", "cd"):
            raise InputError(
                f"solver {self.solver} needs landmarks or a linear machine; "
                "use block or pairs for an exact one"
            )
        check_rule(self.rule, not self.indefinite)
        stored = self.exact or self.kernel == "linear" or self.features != "recomputed"
        if self.solver in ("cd", "pairs") and not stored:
            raise InputError(f"solver {self.solver} needs stored features; use features auto")

    def _check_start(self) -> None:
        if self.early and self.start not in ("auto", "divide"):
            raise InputError(f"early stops after the parts; it does not go with start {self.start}")
        if not self.divided and (self.parts is not None or self.levels > 1):
            raise InputError("parts and levels are those of start divide and of early; ask for one")
        if self.start == "nystrom" and (self.kernel == "precomputed" or callable(self.kernel)):
            raise InputError("start nystrom needs a kernel with a name; use cold or divide")
        if self.start == "nystrom" and self.kernel == "linear" and not self.exact:
            raise InputError("a linear machine has no landmarks to start from; use cold or divide")


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def coupled(problem: str, intercept: str) -> bool:
    """Whether a problem's dual has a coupling."""
    return "nu" in PARAMETERS[problem] or intercept == "true"


CLASSIFIERS = ("c-svc", "squared-svc", "nu-svc")
SQUARED = ("squared-svc", "squared-svr")

PARAMETERS = {
    "c-svc": ("C",),
    "squared-svc": ("C",),
    "nu-svc": ("nu",),
    "one-class": ("nu",),
    "nu-svr": ("C", "nu"),
    "lad": ("C",),
    "svr": ("C", "epsilon"),
    "squared-svr": ("C", "epsilon"),
    "quantile": ("C", "tau"),
}
"""What every problem is a function of."""

WORDS = {
    "problem": tuple(PARAMETERS),
    "sampling": ("uniform", "rpcholesky"),
    "solver": ("auto", "newton", "cd", "block", "pairs"),
    "features": ("auto", "stored", "recomputed"),
    "screening": ("auto", "gap", "f-safe", "adaptive", "joachims", "none"),
    "start": ("auto", "cold", "divide", "nystrom"),
    "strategy": ("rest", "one"),
    "certify": ("float32", "float64"),
    "intercept": ("constant", "true", "none"),
}
"""Options that are one of some words."""

COUNTS = {
    **dict.fromkeys(("landmarks", "max_iter", "patience", "levels", "parts", "degree"), 1),
    "seed": 0,
}
"""Options that are whole numbers, and the least that each may be."""


def _positive(value: float) -> bool:
    return value > 0


def _part(value: float) -> bool:
    return 0 < value < 1


NUMBERS: dict[str, tuple[str, Callable[[float], bool], str]] = {
    **{name: (name, _positive, "be a positive finite number") for name in ("tol", "C", "gamma")},
    "lam": ("lambda", _positive, "be a positive finite number"),
    "intercept_scaling": ("intercept_scaling", _positive, "be a positive finite number"),
    "nu": ("nu", lambda value: 0 < value <= 1, "lie in (0, 1]"),
    "epsilon": ("epsilon", lambda value: value >= 0, "be a finite number, 0 or more"),
    "truncation": ("truncation", lambda value: 0 < value < 1, "lie strictly between 0 and 1"),
    "tau": ("the quantile tau", _part, "lie strictly between 0 and 1"),
    "f": ("f", _part, "lie strictly between 0 and 1"),
    "coef0": ("coef0", lambda value: True, "be a finite number"),
    "time_budget": ("time_budget", _positive, "be a positive number of seconds"),
    **{
        name: (name, lambda value: value >= 1, "be a number of bytes, at least 1")
        for name in ("memory", "cache")
    },
}
"""Options that are numbers: what a message calls each, the test, and what it has to do."""

OPTIONAL = ("lam", "truncation", "time_budget", "memory", "cache", "parts")
"""Those that may be None."""


def check_values(options: Any) -> None:
    """Refuse a value that no fit could use; what goes with what is not looked at.

    Raises
    ------
    InputError
        Naming the option, what it may be, and what it is.
    """
    for name, words in WORDS.items():
        value = getattr(options, name)
        if not (isinstance(value, str) and value in words):
            raise InputError(f"{name} must be one of {', '.join(words)}, got {value!r}")
    for name, least in COUNTS.items():
        value = getattr(options, name)
        whole = isinstance(value, Integral) and not isinstance(value, bool)
        if not (whole and value >= least or value is None and name in OPTIONAL):
            raise InputError(f"{name} must be a whole number, at least {least}, got {value!r}")
    for name, (called, fits, must) in NUMBERS.items():
        value = getattr(options, name)
        named = isinstance(value, str) and name == "gamma" and value in ("scale", "auto")
        if not (named or is_number(value) and fits(value) or value is None and name in OPTIONAL):
            raise InputError(f"{called} must {must}, got {value!r}")
    if not (callable(options.kernel) or isinstance(options.kernel, str)):
        raise InputError(f"kernel must be a name or a function, got {options.kernel!r}")
    weights = options.class_weight
    if not (weights is None or isinstance(weights, Mapping) or weights == "balanced"):
        raise InputError(
            f"class_weight must be 'balanced' or a mapping from label to weight, got {weights!r}"
        )
