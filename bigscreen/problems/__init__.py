"""The optimisation problems: their common dual form, solver iterates and certificates."""

from bigscreen.problems.recipes import (
    CSvc,
    Lad,
    NuSvc,
    NuSvr,
    OneClass,
    Problem,
    Quantile,
    SquaredSvc,
    SquaredSvr,
    Sublinear,
    Svr,
)

__all__ = [
    "CSvc",
    "Lad",
    "NuSvc",
    "NuSvr",
    "OneClass",
    "Problem",
    "Quantile",
    "SquaredSvc",
    "SquaredSvr",
    "Sublinear",
    "Svr",
]
