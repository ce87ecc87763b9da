"""The problems whose parameter is nu: recipes; `problems` shows their place among the others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bigscreen.dual import Dual, FloatArray, Mu
from bigscreen.errors import InputError, is_number
from bigscreen.problems import INTERCEPTS, classes, constant, rows_weights

_ROUNDED = 1 + 1e-12
"""A last digit of the sums is not what makes a nu infeasible."""


@dataclass(frozen=True)
class NuSvc:
    """The nu-SVC, in the scale of yang: ``alpha_i <= c_i / mass``, ``sum alpha = nu``.

    Parameters
    ----------
    nu : float
        In (0, 1]: at least this share of the weight supports the margin.
    positive, code_weight
        As for ``CSvc``.
    mass : float
        ``sum c`` over ALL rows.
    intercept : {"none", "constant", "true"}
        "none" and "constant" are yang's bounded machine, whose one multiplier is ``-rho``; "true"
        is LIBSVM's, with half of nu over either class: the multipliers (of class -1, class +1) are
        ``-rho -+ b``.
    """

    nu: float
    positive: int
    mass: float
    code_weight: tuple[float, ...] = ()
    intercept: str = "none"

    intercept_scaling = 1.0

    def __post_init__(self) -> None:
        _check_nu(self.nu, self.mass)
        if self.intercept not in INTERCEPTS:
            raise InputError(f"intercept must be none, constant or true, got {self.intercept!r}")

    def dual(self, y: NDArray[Any], weights: FloatArray, scale: float = 1.0) -> Dual:
        """See ``Problem``; ``y`` are label codes."""
        n = len(y)
        sign = classes(y, self.positive)
        hi = scale / self.mass * rows_weights(y, weights, self.code_weight)
        total: Any = self.nu
        group = None
        if self.intercept == "true":
            group, total = (sign > 0).astype(np.int8), np.full(2, 0.5 * self.nu)
        zero = constant(0.0, n)
        return Dual(sign, zero, zero, hi, constant(1.0, n), total, group)

    def offset(self, mu: Mu) -> float:
        """``b``: half the difference of LIBSVM's two multipliers, 0 for the bounded machine."""
        return _difference(mu) if self.intercept == "true" else 0.0

    def rho(self, mu: Mu) -> float:
        """The margin: rows with ``y f(x) < rho`` are inside of it."""
        return -float(np.mean(mu))

    def at(self, value: float) -> Self:
        return replace(self, nu=value)

    def factor(self, other: Self) -> float | None:
        """None: the box of a nu-SVC does not depend on nu."""
        return None


@dataclass(frozen=True)
class NuSvr:
    """LIBSVM's nu-SVR: ``C sum c_i (nu epsilon + max(0, |y - u| - epsilon))``, epsilon found too.

    Every row is there twice, once for either side of the tube (`store.Mirrored`): ``alpha_i <=
    C c_i``, and the two sides share ``sum alpha = C nu mass``, half of it each where the offset is
    unpenalised. The multipliers (of the lower side, the upper side) are ``epsilon -+ b`` then, else
    the one is epsilon.

    Parameters
    ----------
    C : float
    nu : float
        In (0, 1]: at most this share of the weight is outside of the tube.
    mass : float
        ``sum c`` over ALL rows, each counted once.
    intercept : {"none", "constant", "true"}
    """

    C: float
    nu: float
    mass: float
    intercept: str = "none"

    intercept_scaling = 1.0

    def __post_init__(self) -> None:
        _check_nu(self.nu, self.mass)
        if not (is_number(self.C) and self.C > 0):
            raise InputError(f"C must be a positive finite number, got {self.C!r}")
        if self.intercept not in INTERCEPTS:
            raise InputError(f"intercept must be none, constant or true, got {self.intercept!r}")

    def dual(self, y: NDArray[Any], weights: FloatArray, scale: float = 1.0) -> Dual:
        """See ``Problem``; ``y`` are targets and sides (rows, 2)."""
        n = len(y)
        sign = np.ascontiguousarray(y[:, 1])
        total: Any = self.C * self.nu * self.mass
        group = None
        if self.intercept == "true":
            group, total = (sign > 0).astype(np.int8), np.full(2, 0.5 * total)
        box = constant(0.0, n), self.C * scale * weights
        return Dual(sign, sign * y[:, 0], *box, constant(1.0, n), total, group)

    def offset(self, mu: Mu) -> float:
        """``b``: half the difference of the two multipliers."""
        return _difference(mu) if self.intercept == "true" else 0.0

    def at(self, value: float) -> Self:
        return replace(self, C=value)

    def factor(self, other: Self) -> float | None:
        """``C / C of other``: the totals scale with the box."""
        return self.C / other.C if replace(other, C=self.C) == self else None


@dataclass(frozen=True)
class OneClass:
    """The one-class machine: ``alpha_i <= c_i / (nu mass)``, ``sum alpha = 1``.

    Its decision function is ``<w, phi> - rho``, above 0 for rows like those it was fitted on, and
    ``rho`` is minus the multiplier. Labels are not looked at.

    Parameters
    ----------
    nu : float
        In (0, 1]: at most this share of the weight is outside.
    mass : float
        ``sum c`` over ALL rows.
    """

    nu: float
    mass: float

    intercept = "true"
    intercept_scaling = 1.0

    def __post_init__(self) -> None:
        _check_nu(self.nu, self.mass)

    def dual(self, y: NDArray[Any], weights: FloatArray, scale: float = 1.0) -> Dual:
        """See ``Problem``; of ``y`` only the length matters."""
        one, zero = constant(1.0, len(y)), constant(0.0, len(y))
        return Dual(one, zero, zero, scale / (self.nu * self.mass) * weights, one, 1.0)

    def offset(self, mu: Mu) -> float:
        """``-rho``."""
        return float(np.sum(mu))

    def at(self, value: float) -> Self:
        return replace(self, nu=value)

    def factor(self, other: Self) -> float | None:
        """None: the box scales with nu, but the total does not."""
        return None


def largest_nu(positive: float, negative: float, intercept: str) -> float:
    """The largest feasible nu of a nu-SVC, from the weights of both classes."""
    if intercept != "true":
        return 1.0
    return 2.0 * min(positive, negative) / (positive + negative)


def check_feasible(nu: float, positive: float, negative: float, intercept: str, where: str) -> None:
    """Refuse a nu-SVC that the weights of its classes do not allow.

    Parameters
    ----------
    positive, negative : float
        Weight of either class.
    intercept : str
        Only the unpenalised offset, which has half of nu over each class, has a limit below 1.
    where : str
        What the message calls the rows.

    Raises
    ------
    InputError
        With the largest feasible value.
    """
    if positive + negative == 0 or intercept == "true" and min(positive, negative) == 0:
        raise InputError(
            f"a nu-SVC needs rows of both classes that have some weight{where}; give weights "
            "above zero"
        )
    most = largest_nu(positive, negative, intercept)
    if nu > most * _ROUNDED:
        near = f"{most:.6g}"
        near = near if float(near) <= most * _ROUNDED else f"{most * (1 - 5e-6):.6g}"
        raise InputError(
            f"nu {nu:.10g} is infeasible{where}: one class has too little weight to hold half of "
            f"it; the largest feasible nu is {near}"
        )


def _difference(mu: Mu) -> float:
    minus, plus = np.asarray(mu, dtype=np.float64)
    return 0.5 * float(plus - minus)


def _check_nu(nu: float, mass: float) -> None:
    if not (is_number(nu) and 0 < nu <= 1):
        raise InputError(f"nu must lie in (0, 1], got {nu!r}")
    if not (is_number(mass) and mass > 0):
        raise InputError(f"mass must be the weight of all rows, above 0, got {mass!r}")
