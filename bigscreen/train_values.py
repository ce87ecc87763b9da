"""The values that each option of a fit may have by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Any

from bigscreen.errors import InputError, is_number

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
