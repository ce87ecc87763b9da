"""Everything a fit can be asked for, checked when it is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bigscreen.errors import InputError


@dataclass(frozen=True)
class TrainOptions:
    """Everything a fit can be asked for.

    Parameters
    ----------
    kernel : {"rbf", "linear", "polynomial", "laplacian", "sigmoid"}
        An exact machine also takes "precomputed" (rows in memory, a square matrix of entries) and
        a function ``f(A, B)`` that returns the entries between two sets of rows.
    gamma : float or "scale"
        "scale" is ``1 / (n_features * X.var())``.
    degree, coef0
        Of the polynomial and sigmoid kernels.
    exact : bool
        Solve the kernel machine itself: no landmarks, no approximation.
    landmarks : int
        m, rows that every row is compared with; unused by the linear kernel and exact machines.
    sampling : {"uniform", "rpcholesky"}
    seed : int
    C : float
        Penalty; ``lam`` gives it as ``C = 1 / (2 n lam)`` instead.
    class_weight : None, "balanced" or mapping from label to weight
    strategy : {"rest", "one"}
        Of more than two labels each against the rest, or one against one.
    tol : float
        Relative duality gap to prove.
    max_iter : int
    time_budget : float or None
        Seconds, after which the best point so far is certified and returned.
    memory : int or None
        Bytes that all processes together may use; None: 0.8 of the machine's.
    cache : int or None
        Bytes of kernel columns that an exact machine keeps; None: 0.3 of the memory, or less where
        less is left or needed. No result depends on it.
    intercept : {"constant", "true", "none"}
    solver : {"auto", "newton", "cd", "block", "pairs"}
        "block" and "pairs" are those of exact machines: "auto" is "pairs" up to 1,024 rows, else
        "block".
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

    kernel: str | Callable[[Any, Any], Any] = "rbf"
    gamma: float | str = "scale"
    degree: int = 3
    coef0: float = 0.0
    exact: bool = False
    landmarks: int = 1000
    sampling: str = "uniform"
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
        _positive("tol", self.tol)
        _positive("C", self.C)
        if self.lam is not None:
            _positive("lambda", self.lam)
        if self.gamma != "scale":
            _positive("gamma", self.gamma)
        for name, allowed in _ALLOWED.items():
            if getattr(self, name) not in allowed:
                raise InputError(
                    f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}"
                )
        for name in ("landmarks", "max_iter", "patience", "levels", "parts", "cache"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} must be at least 1, got {value}")
        self._check_exact()
        self._check_start()
        if self.solver == "cd" and self.intercept == "true":
            raise InputError(
                "coordinate descent cannot fit an unpenalised offset; "
                "use the newton solver, or intercept constant"
            )

    @property
    def record(self) -> dict[str, Any]:
        """The options as JSON can hold them, without the folder and how it is used."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        if callable(self.kernel):
            fields["kernel"] = getattr(self.kernel, "__qualname__", type(self.kernel).__qualname__)
        if isinstance(self.class_weight, Mapping):
            fields["class_weight"] = {str(k): v for k, v in self.class_weight.items()}
        return {name: value for name, value in fields.items() if name not in ("work", "resume")}

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
        if self.exact and self.solver in ("newton", "cd"):
            raise InputError(
                f"solver {self.solver} needs landmarks or a linear machine; "
                "use block or pairs for an exact one"
            )
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


_ALLOWED = {
    "sampling": ("uniform", "rpcholesky"),
    "solver": ("auto", "newton", "cd", "block", "pairs"),
    "features": ("auto", "stored", "recomputed"),
    "screening": ("auto", "gap", "f-safe", "adaptive", "joachims", "none"),
    "start": ("auto", "cold", "divide", "nystrom"),
    "strategy": ("rest", "one"),
    "certify": ("float32", "float64"),
    "intercept": ("constant", "true", "none"),
}


def _positive(name: str, value: Any) -> None:
    if isinstance(value, str) or not (np.isfinite(value) and value > 0):
        raise InputError(f"{name} must be a positive finite number, got {value!r}")
