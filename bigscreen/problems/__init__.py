"""One dual record for every machine, the recipes that make it, points and certificates."""

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
