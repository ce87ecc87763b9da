"""The optimisation problems: C-SVC, nu-SVC, regressions, one-class; each makes its `Dual`.

| recipe | s | p | e | box | coupling |
|---|---|---|---|---|---|
| CSvc | y | 1 | 0 | [0, C c] | true offset: sum y alpha = 0 |
| SquaredSvc | y | 1 | 0 | [0, inf) | true offset: sum y alpha = 0 |
| NuSvc | y | 0 | 0 | [0, c / mass] | sum alpha = nu; true offset: nu / 2 over each class |
| OneClass | 1 | 0 | 0 | [0, c / (nu mass)] | sum alpha = 1 |
| NuSvr (rows twice) | +-1 | s y | 0 | [0, C c] | sum alpha = C nu mass; true offset: half by s |
| Lad | 1 | y | 0 | [-C c, C c] | true offset: sum alpha = 0 |
| Svr | 1 | y | epsilon | [-C c, C c] | true offset: sum alpha = 0 |
| SquaredSvr | 1 | y | epsilon | (-inf, inf) | true offset: sum alpha = 0 |
| Quantile | 1 | y | 0 | [C (tau - 1) c, C tau c] | true offset: sum alpha = 0 |
| Sublinear | -sgn a | b / abs(a) | 0 | [C lower abs(a) c, C upper abs(a) c] | none |

``c`` is the weight of a row (sample weight times class weight), ``mass`` the sum of ``c`` over all
rows, ``y`` the class (+-1) or the target of a regression. The squared ones have the curve
``q = 1 / (2 C c)``, the others none; their boxes are points where c is 0. Multiplying a row's
weight by k is the same as having it k times, in every problem.

The bounded nu-SVC of Yang et al. (2024) asks for ``sum alpha >= nu``. Its objective is
``1/2 ||w(alpha)||^2`` alone, which scaling alpha down does not raise, so the equality has the same
optimal w.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from bigscreen.errors import InputError, is_number
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.dual import Dual, Mu

INTERCEPTS = ("none", "constant", "true")
"""How a problem gets its offset, see `Problem.intercept`."""


class Problem(Protocol):
    """An optimisation problem, as solvers, closing passes and paths see it."""

    @property
    def intercept(self) -> str:
        """How the problem gets its offset: "none", "constant" or "true".

        "constant": a 1 is appended to every phi; "true": there is a coupling, whose multiplier is
        (or gives) the offset.
        """

    @property
    def intercept_scaling(self) -> float:
        """The constant that is appended to every phi instead of a 1."""

    def dual(self, y: NDArray[Any], weights: FloatArray, scale: float = 1.0) -> Dual:
        """The dual of rows with these labels (codes) or targets, and these sample weights.

        ``scale`` multiplies the box: a subsample of one row in k is solved with scale k. The
        coupling's total does not change with the rows.
        """

    def offset(self, mu: Mu) -> float:
        """The decision function's offset at this multiplier (0 without a coupling)."""

    def at(self, value: float) -> Self:
        """The problem with another value of its parameter (C, or nu): a point of a path."""

    def factor(self, other: Self) -> float | None:
        """The ratio ``C / other.C`` if the boxes of both problems differ by it alone, else None."""


class _Offset:
    """Base class of problems whose offset is the coupling's multiplier mu, or that have none.

    Scores u enter the gradient as ``G = p - s (u + mu)``, because the coupling has ``t = s``.
    """

    intercept: str
    intercept_scaling = 1.0

    def offset(self, mu: Mu) -> float:
        """The multiplier if the offset is unpenalised, else 0; see `Problem`."""
        return float(np.sum(mu)) if self.intercept == "true" else 0.0


@dataclass(frozen=True)
class _Penalised(_Offset):
    """Base class of problems with a penalty C > 0 that scales the box of every dual variable."""

    C: float

    def __post_init__(self) -> None:
        """Raise `InputError` if C, the kind of offset or its scaling is not allowed."""
        if not (is_number(self.C) and self.C > 0):
            raise InputError(f"C must be a positive finite number, got {self.C!r}")
        if self.intercept not in INTERCEPTS:
            raise InputError(f"intercept must be none, constant or true, got {self.intercept!r}")
        if not (is_number(self.intercept_scaling) and self.intercept_scaling > 0):
            raise InputError(
                "intercept_scaling must be a positive finite number, got "
                f"{self.intercept_scaling!r}"
            )

    def at(self, value: float) -> Self:
        """Return the problem with ``value`` as its C."""
        return replace(self, C=value)

    def factor(self, other: Self) -> float | None:
        """``C / other.C`` if the problems differ in nothing but C, else None."""
        return self.C / other.C if replace(other, C=self.C) == self else None


@dataclass(frozen=True)
class CSvc(_Penalised):
    """The C-SVC.

    Parameters
    ----------
    C : float
        Penalty of a margin violation, > 0 (a lambda as in Tanji et al. 2023 is the same as
        ``C = 1 / (2 n lambda)``).
    positive : int
        The label code of class +1; every other code is class -1.
    code_weight : tuple of float
        One weight per label code (class weights); empty: all 1.
    intercept : {"none", "constant", "true"}
        No offset; a constant 1 appended to phi (penalised); or LIBSVM's unpenalised offset, which
        is the coupling ``sum y_i alpha_i = 0``.
    intercept_scaling : float
        The constant, in place of 1: the larger, the less the offset is penalised.
    """

    positive: int
    code_weight: tuple[float, ...] = ()
    intercept: str = "none"
    intercept_scaling: float = 1.0

    def dual(self, y: NDArray[Any], weights: FloatArray, scale: float = 1.0) -> Dual:
        """Return the dual of rows; ``y`` are label codes, ``weights`` the sample weights.

        ``scale`` multiplies the box (see `Problem.dual`).
        """
        n = len(y)
        sign = class_signs(y, self.positive)
        hi = self.C * scale * rows_weights(y, weights, self.code_weight)
        coupling = sign if self.intercept == "true" else None
        return Dual(sign, constant_array(1.0, n), constant_array(0.0, n), hi, coupling)


@dataclass(frozen=True)
class SquaredSvc(CSvc):
    """The C-SVC with squared losses ``C c max(0, 1 - y u)^2``; parameters as for `CSvc`."""

    def dual(self, y: NDArray[Any], weights: FloatArray, scale: float = 1.0) -> Dual:
        """Return the dual of rows; ``y`` are label codes, ``weights`` the sample weights.

        ``scale`` multiplies the box (see `Problem.dual`).
        """
        return _squared(super().dual(y, weights, scale))

    def factor(self, other: Self) -> float | None:
        """Return None: C does not scale the box, it is in the curve ``q = 1 / (2 C c)``."""
        return None


@dataclass(frozen=True)
class Lad(_Penalised):
    """Least absolute deviations: loss ``C c |y - u|`` (Wang et al. 2014, sec. 6).

    ``y`` are targets; ``intercept`` as for ``CSvc``.
    """

    intercept: str = "none"

    def dual(self, y: NDArray[Any], weights: FloatArray, scale: float = 1.0) -> Dual:
        """Return the dual of rows; ``y`` are targets, ``weights`` the sample weights.

        ``scale`` multiplies the box (see `Problem.dual`).
        """
        hi = self.C * scale * weights
        return _residual(y, -hi, hi, self.intercept)


@dataclass(frozen=True)
class Svr(_Penalised):
    """epsilon-SVR: loss ``C c max(0, |y - u| - epsilon)``; one variable a row (see ``dual``).

    ``intercept`` and ``intercept_scaling`` as for ``CSvc``.
    """

    epsilon: float
    intercept: str = "none"
    intercept_scaling: float = 1.0

    def __post_init__(self) -> None:
        """Raise `InputError` if C, the offset or epsilon is not allowed."""
        super().__post_init__()
        if not (is_number(self.epsilon) and self.epsilon >= 0):
            raise InputError(f"epsilon must be a finite number, 0 or more, got {self.epsilon!r}")

    def dual(self, y: NDArray[Any], weights: FloatArray, scale: float = 1.0) -> Dual:
        """Return the dual of rows; ``y`` are targets, ``weights`` the sample weights.

        ``scale`` multiplies the box (see `Problem.dual`).
        """
        hi = self.C * scale * weights
        tube = constant_array(self.epsilon, len(y)) if self.epsilon else None
        return replace(_residual(y, -hi, hi, self.intercept), tube=tube)


@dataclass(frozen=True)
class SquaredSvr(Svr):
    """epsilon-SVR with squared losses: ``C c max(0, |y - u| - epsilon)^2``."""

    def dual(self, y: NDArray[Any], weights: FloatArray, scale: float = 1.0) -> Dual:
        """Return the dual of rows; ``y`` are targets, ``weights`` the sample weights.

        ``scale`` multiplies the box (see `Problem.dual`).
        """
        return _squared(super().dual(y, weights, scale))

    def factor(self, other: Self) -> float | None:
        """Return None: C does not scale the box, it is in the curve ``q = 1 / (2 C c)``."""
        return None


@dataclass(frozen=True)
class Quantile(_Penalised):
    """Quantile regression: loss ``C c max(tau (y - u), (tau - 1) (y - u))``, ``0 < tau < 1``."""

    tau: float
    intercept: str = "none"

    def __post_init__(self) -> None:
        """Raise `InputError` if C, the offset or tau is not allowed."""
        super().__post_init__()
        if not (is_number(self.tau) and 0 < self.tau < 1):
            raise InputError(f"tau must lie strictly between 0 and 1, got {self.tau!r}")

    def dual(self, y: NDArray[Any], weights: FloatArray, scale: float = 1.0) -> Dual:
        """Return the dual of rows; ``y`` are targets, ``weights`` the sample weights.

        ``scale`` multiplies the box (see `Problem.dual`).
        """
        box = self.C * scale * weights
        return _residual(y, (self.tau - 1) * box, self.tau * box, self.intercept)


@dataclass(frozen=True, eq=False)
class Sublinear(_Penalised):
    """The problem of any sublinear loss phi: ``1/2 ||w||^2 + C sum c_i phi(a_i u_i + b_i)``.

    Wang et al. (2014), lemma 2: every sublinear function of one number is
    ``phi(z) = max(lower z, upper z)``. The hinge is ``a = -y, b = 1, [0, 1]``; LAD is
    ``a = -1, b = y, [-1, 1]``; weights in either are weights of the rows. The argument ``y`` of
    ``dual`` holds the rows' NUMBERS, by which a and b are looked up.

    Parameters
    ----------
    C : float
    a, b : float64 (n,)
        Any finite numbers.
    lower, upper : float
        ``lower <= upper``.
    """

    a: FloatArray
    b: FloatArray
    lower: float
    upper: float
    intercept: str = "none"

    def __post_init__(self) -> None:
        """Raise `InputError` if a parameter is not allowed, and convert a and b to float64."""
        super().__post_init__()
        if self.intercept == "true":
            raise InputError("the general problem has no unpenalised offset; use constant or none")
        if not (is_number(self.lower) and is_number(self.upper) and self.lower <= self.upper):
            raise InputError(
                "lower and upper must be finite numbers, lower at most upper, got "
                f"{self.lower!r} and {self.upper!r}"
            )
        for name in ("a", "b"):
            values = np.asarray(getattr(self, name), dtype=np.float64)
            if values.ndim != 1 or not np.isfinite(values).all():
                raise InputError(f"{name} must be finite numbers, one for every row")
            object.__setattr__(self, name, values)
        if len(self.a) != len(self.b):
            raise InputError(
                f"a and b must be as many numbers, one of each for every row, got {len(self.a)} "
                f"and {len(self.b)}"
            )

    def dual(self, y: NDArray[Any], weights: FloatArray, scale: float = 1.0) -> Dual:
        """Return the dual of rows; ``y`` are row numbers, ``weights`` the sample weights.

        ``scale`` multiplies the box (see `Problem.dual`).
        """
        rows = np.asarray(y).astype(np.int64)
        a, b = self.a[rows], self.b[rows]
        size = np.abs(a)
        box = self.C * scale * weights * size
        # The variable is |a| times that of the paper, so that the sign is +-1. A row with a = 0
        # has a constant loss.
        lin = np.divide(b, size, out=np.zeros(len(b)), where=size > 0)
        return Dual(np.where(a > 0, -1.0, 1.0), lin, self.lower * box, self.upper * box)

    def factor(self, other: Self) -> float | None:
        """``C / other.C`` if both problems have the same array objects and bounds, else None."""
        same = all(getattr(self, k) is getattr(other, k) for k in ("a", "b"))
        bounds = (self.lower, self.upper, self.intercept)
        same = same and bounds == (other.lower, other.upper, other.intercept)
        return self.C / other.C if same else None


def refuse_uncommon(problem: Problem) -> None:
    """Refuse problems that the solvers of exact kernel machines and of paths cannot solve.

    Raises
    ------
    InputError
        For squared losses, and an appended constant other than 1.
    """
    if isinstance(problem, (SquaredSvc, SquaredSvr)):
        raise InputError(
            "squared losses are solved on explicit features alone: use the newton solver or "
            "coordinate descent on a linear machine or landmarks, or losses that are not squared"
        )
    if problem.intercept == "constant" and problem.intercept_scaling != 1:
        raise InputError(
            "intercept_scaling is for the newton solver and coordinate descent on explicit "
            "features; leave it at 1"
        )


def class_signs(codes: NDArray[Any], positive: int) -> FloatArray:
    """The sign of each row's class (rows,): +1 for the label code ``positive``, -1 for others."""
    sign: FloatArray = (codes == positive).astype(np.float64)
    sign *= 2.0
    sign -= 1.0
    return sign


def rows_weights(
    codes: NDArray[Any], weights: FloatArray, code_weight: tuple[float, ...]
) -> FloatArray:
    """The weight ``c`` of each row (rows,): sample weight times the weight of its label code."""
    return weights * np.asarray(code_weight)[codes] if code_weight else weights


def _residual(y: NDArray[Any], lo: FloatArray, hi: FloatArray, intercept: str) -> Dual:
    """Make the dual of a regression whose loss is a function of the residual ``y - u``.

    ``lo``, ``hi`` (rows,): the box of each row.
    """
    one = constant_array(1.0, len(y))
    coupling = one if intercept == "true" else None
    return Dual(one, np.asarray(y, dtype=np.float64), lo, hi, coupling)


def _squared(dual: Dual) -> Dual:
    """Replace the linear losses of a dual by squared ones: a curve, and infinite boxes.

    Twice the old end of a row's box is the growth of alpha per unit of the gradient.
    """
    # (It overflows or vanishes for extreme weights: see `Dual.reach`.)
    with np.errstate(over="ignore"):
        steep = 2.0 * dual.hi
        curve = np.divide(1.0, steep, out=np.ones(len(dual)), where=steep > 0)
    free = np.where(steep > 0, np.inf, 0.0)
    return replace(dual, lo=np.where(dual.lo < 0, -free, 0.0), hi=free, curve=curve)


@lru_cache(maxsize=64)
def constant_array(value: float, n: int) -> FloatArray:
    """A read-only float64 array (n,) whose entries are all ``value``; it takes no memory."""
    return np.broadcast_to(np.float64(value), (n,))


@dataclass(frozen=True)
class NuSvc:
    """The nu-SVC, in the scale of Yang et al. 2024: ``alpha_i <= c_i / mass``, ``sum alpha = nu``.

    Parameters
    ----------
    nu : float
        In (0, 1]: at least this share of the weight belongs to support vectors.
    positive, code_weight
        As for ``CSvc``.
    mass : float
        ``sum c`` over ALL rows.
    intercept : {"none", "constant", "true"}
        "none" and "constant" are the bounded machine, whose one multiplier is ``-rho``; "true"
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
        """Raise `InputError` if nu, mass or the kind of offset is not allowed."""
        _check_nu(self.nu, self.mass)
        if self.intercept not in INTERCEPTS:
            raise InputError(f"intercept must be none, constant or true, got {self.intercept!r}")

    def dual(self, y: NDArray[Any], weights: FloatArray, scale: float = 1.0) -> Dual:
        """Return the dual of rows; ``y`` are label codes, ``weights`` the sample weights.

        ``scale`` multiplies the box (see `Problem.dual`).
        """
        n = len(y)
        sign = class_signs(y, self.positive)
        hi = scale / self.mass * rows_weights(y, weights, self.code_weight)
        total: Any = self.nu
        group = None
        if self.intercept == "true":
            group, total = (sign > 0).astype(np.int8), np.full(2, 0.5 * self.nu)
        zero = constant_array(0.0, n)
        return Dual(sign, zero, zero, hi, constant_array(1.0, n), total, group)

    def offset(self, mu: Mu) -> float:
        """``b``: half the difference of LIBSVM's two multipliers, 0 for the bounded machine."""
        return _difference(mu) if self.intercept == "true" else 0.0

    def rho(self, mu: Mu) -> float:
        """The margin: rows with ``y f(x) < rho`` are inside of it."""
        return -float(np.mean(mu))

    def at(self, value: float) -> Self:
        """Return the problem with ``value`` as its nu."""
        return replace(self, nu=value)

    def factor(self, other: Self) -> float | None:
        """Return None: the box of a nu-SVC does not depend on nu."""
        return None


@dataclass(frozen=True)
class NuSvr:
    """LIBSVM's nu-SVR: ``C sum c_i (nu epsilon + max(0, |y - u| - epsilon))`` over w and epsilon.

    Every row is there twice, once for either side of the tube (`Mirrored`), with
    ``alpha_i <= C c_i``. With an unpenalised offset each side has ``sum alpha = C nu mass / 2``,
    and the multipliers (of the lower side, the upper side) are ``epsilon -+ b``. Else both sides
    together have ``sum alpha = C nu mass``, and the multiplier is epsilon.

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
        """Raise `InputError` if nu, mass, C or the kind of offset is not allowed."""
        _check_nu(self.nu, self.mass)
        if not (is_number(self.C) and self.C > 0):
            raise InputError(f"C must be a positive finite number, got {self.C!r}")
        if self.intercept not in INTERCEPTS:
            raise InputError(f"intercept must be none, constant or true, got {self.intercept!r}")

    def dual(self, y: NDArray[Any], weights: FloatArray, scale: float = 1.0) -> Dual:
        """Return the dual of rows; ``y`` are targets and sides (rows, 2).

        A side is +1 or -1: every row is there twice. ``weights``: sample weights; ``scale``
        multiplies the box (see `Problem.dual`).
        """
        n = len(y)
        sign = np.ascontiguousarray(y[:, 1])
        total: Any = self.C * self.nu * self.mass
        group = None
        if self.intercept == "true":
            group, total = (sign > 0).astype(np.int8), np.full(2, 0.5 * total)
        box = constant_array(0.0, n), self.C * scale * weights
        return Dual(sign, sign * y[:, 0], *box, constant_array(1.0, n), total, group)

    def offset(self, mu: Mu) -> float:
        """Return the offset b: half the difference of the two multipliers, or 0 if there is one."""
        return _difference(mu) if self.intercept == "true" else 0.0

    def at(self, value: float) -> Self:
        """Return the problem with ``value`` as its C."""
        return replace(self, C=value)

    def factor(self, other: Self) -> float | None:
        """``C / other.C`` if the problems differ in C alone, else None; totals scale with C."""
        return self.C / other.C if replace(other, C=self.C) == self else None


@dataclass(frozen=True)
class OneClass:
    """The one-class machine: ``alpha_i <= c_i / (nu mass)``, ``sum alpha = 1``.

    Its decision function is ``<w, phi> - rho``, above 0 for rows like those it was fitted on, and
    ``rho`` is minus the multiplier. Labels are not used.

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
        """Raise `InputError` if nu or mass is not allowed."""
        _check_nu(self.nu, self.mass)

    def dual(self, y: NDArray[Any], weights: FloatArray, scale: float = 1.0) -> Dual:
        """Return the dual of rows; ``weights``: sample weights; of ``y`` only the length matters.

        ``scale`` multiplies the box (see `Problem.dual`).
        """
        one, zero = constant_array(1.0, len(y)), constant_array(0.0, len(y))
        return Dual(one, zero, zero, scale / (self.nu * self.mass) * weights, one, 1.0)

    def offset(self, mu: Mu) -> float:
        """Return the offset ``-rho`` of the decision function, which is the multiplier ``mu``."""
        return float(np.sum(mu))

    def at(self, value: float) -> Self:
        """Return the problem with ``value`` as its nu."""
        return replace(self, nu=value)

    def factor(self, other: Self) -> float | None:
        """Return None: the box scales with nu, but the coupling's total does not."""
        return None


def largest_nu(positive: float, negative: float, intercept: str) -> float:
    """Return the largest feasible nu of a nu-SVC, from the total weights of both classes.

    It is 1 unless the offset (``intercept``) is "true": each class then holds half of nu.
    """
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
    if positive + negative == 0 or (intercept == "true" and min(positive, negative) == 0):
        raise InputError(
            f"a nu-SVC needs rows of both classes that have some weight{where}; give weights "
            "above zero"
        )
    most = largest_nu(positive, negative, intercept)
    allowed = most * (1 + 1e-12)  # (the sums of weights are rounded)
    if nu > allowed:
        near = f"{most:.6g}"
        near = near if float(near) <= allowed else f"{most * (1 - 5e-6):.6g}"
        raise InputError(
            f"nu {nu:.10g} is infeasible{where}: one class has too little weight to hold half of "
            f"it; the largest feasible nu is {near}"
        )


def with_mass_of(problem: Problem, y: NDArray[Any], weights: FloatArray) -> Problem:
    """Return the problem with ``mass``, the total weight to which nu refers, from these rows.

    ``y`` (label codes or targets) and ``weights`` of the rows. Problems without nu are returned as
    they are.
    """
    if isinstance(problem, NuSvc):
        own = rows_weights(y, weights, problem.code_weight)
    elif isinstance(problem, OneClass):
        own = weights
    else:
        return problem
    return replace(problem, mass=float(np.sum(own)) or 1.0)


def _difference(mu: Mu) -> float:
    """Half the difference of the multipliers (minus, plus) of two groups: the offset."""
    minus, plus = np.asarray(mu, dtype=np.float64)
    return 0.5 * float(plus - minus)


def _check_nu(nu: float, mass: float) -> None:
    """Raise InputError unless nu is in (0, 1] and ``mass``, the rows' total weight, positive."""
    if not (is_number(nu) and 0 < nu <= 1):
        raise InputError(f"nu must lie in (0, 1], got {nu!r}")
    if not (is_number(mass) and mass > 0):
        raise InputError(f"mass must be the weight of all rows, above 0, got {mass!r}")
