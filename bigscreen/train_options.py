"""Everything a fit can be asked for, checked when it is asked."""

from __future__ import annotations

from collections.abc import Mapping
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
    gamma : float or "scale"
        "scale" is ``1 / (n_features * X.var())``.
    degree, coef0
        Of the polynomial and sigmoid kernels.
    landmarks : int
        m, rows that every row is compared with; unused by the linear kernel.
    sampling : {"uniform", "rpcholesky"}
    seed : int
    C : float
        Penalty; ``lam`` gives it as ``C = 1 / (2 n lam)`` instead.
    class_weight : None, "balanced" or mapping from label to weight
    tol : float
        Relative duality gap to prove.
    max_iter : int
    time_budget : float or None
        Seconds, after which the best point so far is certified and returned.
    memory : int or None
        Bytes that all processes together may use; None: 0.8 of the machine's.
    intercept : {"constant", "true", "none"}
    solver : {"auto", "newton", "cd"}
    features : {"auto", "stored", "recomputed"}
    screening : {"gap", "f-safe", "none"}
    f : float
        Of f-safe screening.
    certify : {"float32", "float64"}
    work : Path or None
        Folder for checkpoints and for features that do not fit in memory.
    resume : bool
        Go on from the checkpoints in ``work``.
    """

    kernel: str = "rbf"
    gamma: float | str = "scale"
    degree: int = 3
    coef0: float = 0.0
    landmarks: int = 1000
    sampling: str = "uniform"
    seed: int = 0
    C: float = 1.0
    lam: float | None = None
    class_weight: str | Mapping[Any, float] | None = None
    tol: float = 1e-3
    max_iter: int = 1000
    time_budget: float | None = None
    memory: int | None = None
    intercept: str = "constant"
    solver: str = "auto"
    features: str = "auto"
    screening: str = "gap"
    f: float = 0.1
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
        _one_of("sampling", self.sampling, ("uniform", "rpcholesky"))
        _one_of("solver", self.solver, ("auto", "newton", "cd"))
        _one_of("features", self.features, ("auto", "stored", "recomputed"))
        _one_of("certify", self.certify, ("float32", "float64"))
        _one_of("intercept", self.intercept, ("constant", "true", "none"))
        for name in ("landmarks", "max_iter"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.solver == "cd" and self.intercept == "true":
            raise InputError(
                "coordinate descent cannot fit an unpenalised offset; "
                "use the newton solver, or intercept constant"
            )
        if self.solver == "cd" and self.features == "recomputed" and self.kernel != "linear":
            raise InputError("coordinate descent needs stored features; use features auto")


def _positive(name: str, value: Any) -> None:
    if isinstance(value, str) or not (np.isfinite(value) and value > 0):
        raise InputError(f"{name} must be a positive finite number, got {value!r}")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InputError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
