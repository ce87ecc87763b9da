"""An independent check of published models on the user's own numbers, for `certificate_cases`.

All of it is naive: whole kernel matrices in numpy's long double, by formulas written here only;
of the package it uses only what estimators publish. Every number has a bound of the check's own
error, and only differences beyond it count as faults.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
import reference

LONG = np.longdouble
EPS = float(np.finfo(LONG).eps)
ROUNDED = 2.0**-52
"""Spacing of float64 numbers at 1."""

RESCALED = 2.0**-50
"""Of coefficients that were published in another scale, and of their sum, by which it is found."""

SCORE, SUMMED = 2.0**-10, 1e-11
"""Allowed errors of a score: a part of the row's largest score, and of the sum of the summands'
sizes."""

LEAST = 1e-300
"""Kernel entries below this have no full float64 precision."""

SOLVED = 60
"""Compute the optimum of machines on features for at most this many rows."""

PROVED = ("primal", "dual", "gap", "relative_gap", "rounding_bound")


def entries(kind: str, A, B, gamma, degree, coef0) -> tuple[np.ndarray, np.ndarray]:
    """Compute kernel entries, and bounds on their distance from the exact ones."""
    d = A.shape[1]
    with np.errstate(under="ignore"):
        if kind in ("rbf", "laplacian"):
            apart = A[:, None, :] - B[None, :, :]
            size = np.abs(apart) if kind == "laplacian" else apart * apart
            exponent = LONG(gamma) * size.sum(axis=2)
            K = np.exp(-exponent)
            return K, EPS * K * ((d + 6) * exponent + 4)
        K, size = A @ B.T, np.abs(A) @ np.abs(B).T
        if kind == "linear":
            return K, EPS * (d + 2) * size
        base, size = LONG(gamma) * K + LONG(coef0), LONG(gamma) * size + abs(LONG(coef0))
        return base**degree, EPS * degree * (d + 6) * size**degree


def bound_of(certificate: dict[str, Any], name: str) -> float:
    """Return the stated rounding of P, D or the gap; older records have one number for all."""
    own = [k for k in certificate if k.startswith(name) and k != name]
    own = [k for k in own if "round" in k or "bound" in k or "error" in k]
    return float(certificate[own[0]] if own else certificate["rounding_bound"])


@dataclass
class Machine:
    """One score function: ``f = K c + b`` in its problem's scale; ``scale`` times it is published.

    ``s``: +-1, or 1; ``y``: targets; ``box``: C times the weight; ``rows``: that count.
    """

    rows: np.ndarray
    s: np.ndarray
    y: np.ndarray
    box: np.ndarray
    coef: np.ndarray
    b: Any
    scale: Any
    certificate: dict[str, Any]
    order: tuple[int, ...]


@dataclass
class Value:
    """A number, and a bound on its distance from the exact one."""

    value: Any
    error: Any


class Published:
    """A fitted estimator with the rows that it was fitted to, and naive formulas for its claims."""

    def __init__(self, spec: Any, rows: Any, fitted: Any) -> None:
        self.spec, self.given, self.fitted = spec, rows, fitted
        self.problem, self.intercept = rows.problem, spec.intercept
        self.scaling = LONG(getattr(fitted, "intercept_scaling", 1))
        self.X = rows.X.astype(LONG)
        self.exact = hasattr(fitted, "dual_coef_")
        self.landmarks = None if self.exact else getattr(fitted, "components_", None)
        weights = np.ones(spec.n) if rows.weights is None else rows.weights
        self.weights = weights.astype(LONG)
        self.kept = np.flatnonzero(weights > 0)

    # -- the kernel --------------------------------------------------------------------------------
    @cached_property
    def gamma(self) -> Any:
        """As given; "scale" by its definition, unless the model's is the same but for rounding."""
        if not isinstance(self.spec.gamma, str):
            return getattr(self.fitted, "gamma", 1.0)
        X = self.X[self.kept]
        gamma = 1.0 / (X.shape[1] * X.var()) if X.var() > 0 else LONG(1.0)
        own = getattr(self.fitted.model_.kernel, "gamma", gamma)
        return own if abs(own / gamma - 1) < 1e-5 else gamma

    def _entries(self, A, B) -> tuple[np.ndarray, np.ndarray]:
        spec = self.spec
        return entries(spec.kernel, A, B, self.gamma, spec.degree, spec.coef0)

    @cached_property
    def columns(self) -> tuple[np.ndarray, np.ndarray]:
        """Compute the columns that scores are sums of, (n, m), and their error."""
        if self.exact:
            support = self.fitted.support_
            if self.spec.kernel == "precomputed":
                return self.X[:, support], 0 * self.X[:, support]
            return self._entries(self.X, self.X[support])
        if self.landmarks is None:
            return self.X, 0 * self.X
        return self._entries(self.X, self._dense(self.landmarks))

    @cached_property
    def gram(self) -> tuple[np.ndarray, np.ndarray]:
        """Products of the same columns' features: ``||w||^2 = c' gram c``."""
        if self.exact:
            K, error = self.columns
            return K[self.fitted.support_], error[self.fitted.support_]
        if self.landmarks is None:
            one = np.eye(self.X.shape[1], dtype=LONG)
            return one, 0 * one
        Z = self._dense(self.landmarks)
        return self._entries(Z, Z)

    @staticmethod
    def _dense(Z: Any) -> np.ndarray:
        return np.asarray(Z.toarray() if hasattr(Z, "toarray") else Z).astype(LONG)

    # -- the machines ------------------------------------------------------------------------------
    @cached_property
    def machines(self) -> list[Machine]:
        fitted, y, kept = self.fitted, self.given.y, self.kept
        certificates = fitted.certificate_
        zero, one = np.zeros(self.spec.n, LONG), np.ones(self.spec.n, LONG)
        if self.problem == "one-class":
            return [self._machine(kept, one, zero, self.weights, 0, certificates[0], ())]
        if self.problem not in ("c-svc", "nu-svc"):
            targets = y.astype(LONG)
            return [self._machine(kept, one, targets, self.weights, 0, certificates[0], ())]
        classes = fitted.classes_.tolist()
        weights = self.weights * self._class_weights(classes)
        if len(classes) == 2:
            sign = np.where(y == classes[1], one, -one)
            return [self._machine(kept, sign, zero, weights, 0, certificates[0], ())]
        machines = []
        if hasattr(fitted, "decision_function_shape"):
            for k, (i, j) in enumerate(combinations(range(len(classes)), 2)):
                sign = np.where(y == classes[i], one, -one)
                own = kept[np.isin(y[kept], [classes[i], classes[j]])]
                machines.append(self._machine(own, sign, zero, weights, k, certificates[k], (i, j)))
            return machines
        for k, label in enumerate(classes):
            sign = np.where(y == label, one, -one)
            machines.append(self._machine(kept, sign, zero, weights, k, certificates[k], (k,)))
        return machines

    def _class_weights(self, classes: list[int]) -> np.ndarray:
        given, y = self.fitted.class_weight, self.given.y
        if given is None:
            return np.ones(self.spec.n, LONG)
        if given == "balanced":
            totals = {c: self.weights[y == c].sum() for c in classes}
            whole = sum(totals.values())
            given = {c: whole / (len(classes) * totals[c]) for c in classes}
        return np.array([given.get(label, 1.0) for label in y.tolist()], LONG)

    def _machine(self, rows, s, y, weights, k, certificate, order) -> Machine:
        coef, b = self._coefficients(k, order)
        mass = weights[rows].sum()
        scale: Any = LONG(1)
        if self.problem == "one-class":
            scale = self.spec.nu * mass
            box = weights / (LONG(self.spec.nu) * mass)
        elif self.problem == "nu-svc":
            box = weights / mass
            if self.exact:
                scale = np.abs(coef).sum() / LONG(self.spec.nu)
            else:
                # Divided by rho, unless w is next to nothing: the offset tells, or what is said.
                rho, own = -np.mean(certificate["multiplier"]), abs(certificate["intercept"])
                size = np.max(np.sum(self.X[self.kept] ** 2, axis=1))
                divided = rho > 1e-9 * min(1, size or 1) and "best w is 0" not in str(
                    certificate.get("hindrance")
                )
                if own:
                    divided = abs(abs(b) * rho - own) < abs(abs(b) - own)
                scale = 1 / LONG(rho) if rho > 0 and divided else scale
        else:
            box = LONG(self.fitted.C) * weights
        return Machine(
            rows, s[rows], y[rows], box[rows], coef / scale, b / scale, scale, certificate, order
        )

    def _coefficients(self, k: int, order: tuple[int, ...]) -> tuple[np.ndarray, Any]:
        """Return the coefficients of machine k, whose scores are above 0 for its class +1."""
        fitted = self.fitted
        if not self.exact:
            turned = -1 if len(order) == 2 else 1
            # (Of pairs of labels coef_ is in scikit-learn's layout, and turned.)
            if hasattr(fitted, "coef_") and not hasattr(fitted, "decision_function_shape"):
                coef, b = np.atleast_2d(fitted.coef_)[k], fitted.intercept_[k]
            else:
                coef, b = fitted.model_.coef[k], fitted.model_.intercept[k]
            return turned * coef.astype(LONG), turned * LONG(b)
        given, b = self._dense(fitted.dual_coef_), LONG(fitted.intercept_[k])
        if len(order) < 2:
            return given[k], b
        i, j = order
        code = np.repeat(np.arange(len(fitted.n_support_)), fitted.n_support_)
        return np.where(code == i, given[j - 1], np.where(code == j, given[i], 0)), b

    # -- P, D and scores ---------------------------------------------------------------------------
    def scores(self, m: Machine, coef=None, b=None) -> Value:
        """Compute ``f`` of all rows, in the scale of the problem."""
        K, error = self.columns
        coef, b = (m.coef, m.b) if coef is None else (coef, b)
        size = np.abs(K) @ np.abs(coef)
        off = error @ np.abs(coef) + EPS * ((len(coef) + 4) * size + 4 * abs(b))
        if m.scale != 1:
            off += RESCALED * (size + abs(b))
        return Value(K @ coef + b, off)

    def square(self, m: Machine, coef=None) -> Value:
        """Compute ``||w||^2``."""
        G, error = self.gram
        coef = m.coef if coef is None else coef
        off = np.abs(coef) @ (error + EPS * (2 * len(coef) + 4) * np.abs(G)) @ np.abs(coef)
        if m.scale != 1:
            off += 2 * RESCALED * (np.abs(coef) @ np.abs(G) @ np.abs(coef))
        return Value(coef @ G @ coef, off)

    def primal(self, m: Machine, coef=None, b=None) -> Value:
        """Compute P of the published machine, or of other coefficients."""
        b = m.b if coef is None else b
        f, w_sq = self.scores(m, coef, b), self.square(m, coef)
        u, off, spec = f.value[m.rows], f.error[m.rows], self.spec
        total = 0.5 * w_sq.value
        if self.problem != "one-class" and self.intercept == "penalized":
            total = total + 0.5 * (b / self.scaling) ** 2
        constant = LONG(0)
        if self.problem == "c-svc":
            lost = np.maximum(0, 1 - m.s * u)
            losses = m.box * (lost**2 if spec.squared else lost)
        elif self.problem == "nu-svc":
            rho = None if self.exact else -LONG(np.mean(m.certificate["multiplier"]))
            losses, constant = self._margin(m, m.s * u, rho)
        elif self.problem == "one-class":  # b = -rho
            losses, constant = m.box * np.maximum(0, -u), b
        else:
            rest = m.y - u
            if self.problem == "svr":
                lost = np.maximum(0, np.abs(rest) - LONG(self.fitted.epsilon))
                losses = m.box * (lost**2 if spec.squared else lost)
            elif self.problem == "nu-svr":
                losses, constant = self._tube(m, np.abs(rest))
            elif self.problem == "lad":
                losses = m.box * np.abs(rest)
            else:
                tau = LONG(spec.quantile)
                losses = m.box * np.maximum(tau * rest, (tau - 1) * rest)
        # A row certainly without loss errs by nothing.
        off = off + EPS * 4 * (np.abs(u) + np.abs(m.y) + 1)
        if spec.squared:
            off = off * (2 * lost + off)
        sums = EPS * (len(u) + 8) * (abs(total) + np.sum(np.abs(losses)) + abs(constant))
        error = 0.5 * w_sq.error + np.sum(m.box * off) + sums + EPS * 4 * (b / self.scaling) ** 2
        if self.problem == "one-class" and m.scale != 1:
            error += RESCALED * abs(b)
        return Value(total + constant + np.sum(losses), error)

    def _margin(self, m: Machine, margins, rho) -> tuple[np.ndarray, Any]:
        """Compute losses and ``-nu rho``; rho None: the best one, which is one of the margins."""
        nu = LONG(self.spec.nu)
        if rho is not None:
            return m.box * np.maximum(0, rho - margins), -nu * rho
        order = np.argsort(margins)
        x, h = margins[order], m.box[order]
        below, weighed = np.cumsum(h), np.cumsum(h * x)
        k = int(np.argmin(-nu * x + x * below - weighed))
        return m.box * np.maximum(0, x[k] - margins), -nu * x[k]

    def _tube(self, m: Machine, size) -> tuple[np.ndarray, Any]:
        """Compute losses and ``nu epsilon sum box`` at the best epsilon: 0 or one of the errors."""
        total = LONG(self.spec.nu) * np.sum(m.box)
        order = np.argsort(-size)
        x, h = size[order], m.box[order]
        k = int(np.argmin(total * x + np.cumsum(h * x) - np.cumsum(h) * x))
        at = min((x[k], LONG(0)), key=lambda e: total * e + np.sum(h * np.maximum(0, x - e)))
        return m.box * np.maximum(0, size - at), total * at

    def dual(self, m: Machine) -> tuple[Value, str]:
        """Compute D of the published alpha, and list what is wrong with alpha."""
        support, c = self.fitted.support_, m.coef
        place = np.full(self.spec.n, -1)
        place[m.rows] = np.arange(len(m.rows))
        outside = (place[support] < 0) & (c != 0)
        if outside.any():
            return Value(0, 0), f"coefficients of {outside.sum()} rows that do not count"
        own = place[support] >= 0
        c, at = c[own], place[support][own]
        s, y, box = m.s[at], m.y[at], m.box[at]
        alpha = s * c
        low, high = {
            "c-svc": (0, box), "nu-svc": (0, box), "one-class": (0, box), "svr": (-box, box),
            "lad": (-box, box), "nu-svr": (-box, box),
            "quantile": ((LONG(self.spec.quantile) - 1) * box, LONG(self.spec.quantile) * box),
        }[self.problem]  # fmt: skip
        beyond = np.maximum(alpha - high, low - alpha) / np.where(box > 0, box, 1)
        if np.any(beyond > 1e-12):
            return Value(0, 0), f"alpha outside of its box by {float(beyond.max()):.2g} of it"
        linear = {"c-svc": alpha, "nu-svc": 0 * alpha, "one-class": 0 * alpha}.get(
            self.problem, y * alpha
        )
        if self.problem == "svr":
            linear = linear - LONG(self.fitted.epsilon) * np.abs(alpha)
        w_sq = self.square(m)
        size = w_sq.value
        if self.intercept == "penalized" and self.problem != "one-class":
            size = size + c.sum() ** 2
        error = 0.5 * w_sq.error + EPS * (len(c) + 8) * (np.sum(np.abs(linear)) + abs(size))
        # What alpha breaks the coupling by may have been mended either way.
        f = self.scores(m).value[m.rows]
        wanted: list[tuple[np.ndarray, Any]] = []
        if self.problem == "one-class":
            wanted = [(np.ones(len(c), bool), LONG(1))]
        elif self.problem == "nu-svc" and self.intercept is True:
            wanted = [(s > 0, LONG(self.spec.nu) / 2), (s < 0, LONG(self.spec.nu) / 2)]
        elif self.intercept is True and self.problem != "nu-svc":
            wanted = [(np.ones(len(c), bool), LONG(0))]
        signed = c if self.problem not in ("nu-svc", "one-class") else alpha
        # (Of a nu-SVR both sides of a row can be large, and what is published is their difference.)
        most = LONG(0)
        if self.problem == "nu-svr":
            most, beyond = LONG(self.spec.nu) * np.sum(m.box), np.sum(np.abs(alpha))
            if beyond > most * (1 + 1e-9):
                return Value(
                    0, 0
                ), f"alpha outside of the tube's share: {float(beyond / most):.12g}"
            error += (
                (max(beyond - most, 0) + EPS * len(c) * most)
                * 4
                * (np.max(np.abs(f)) + np.max(np.abs(m.y)))
            )
        for group, total in wanted:
            excess = abs(signed[group].sum() - total)
            whole = np.abs(signed[group]).sum()
            if excess > 1e-9 * (whole + abs(total) + most):
                return Value(0, 0), f"the coupling is broken by {float(excess / whole):.2g}"
            slope = np.max(np.abs(f)) + np.max(np.abs(m.y)) + (self.problem == "c-svc")
            longest = np.sqrt(np.max(np.diag(self.gram[0]), initial=0))
            error += 4 * (excess + EPS * whole * len(c)) * slope + (4 * excess * longest) ** 2
        return Value(np.sum(linear) - 0.5 * size, error), ""

    def optimum(self, m: Machine) -> Value | None:
        """Compute P of the best machine on the features, or of one near it: never below P*."""
        if self.exact or len(m.rows) > SOLVED:
            return None
        K = self.columns[0][m.rows].astype(np.float64)
        T = self._factor()
        phi = K @ T
        unit = 2.0 ** np.floor(np.log2(max(np.abs(phi).max(), 1e-300)))
        times = 1.0 if self.problem in ("nu-svc", "one-class") else unit * unit
        box, y, s = (v.astype(np.float64) for v in (m.box * LONG(times), m.y, m.s))
        width = phi.shape[1]
        phi = phi / unit
        if self.intercept == "penalized" and self.problem != "one-class":
            phi = np.hstack([phi, np.full((len(phi), 1), float(self.scaling) / unit)])
        q = self._oracle(phi, s, y, box)
        try:
            with np.errstate(all="ignore"):
                best = reference.solve(q, 60)
        except np.linalg.LinAlgError:
            return None
        back = unit if times == 1.0 else 1 / unit
        coef = (T @ (best.w[:width] * back)).astype(LONG)
        if self.intercept == "penalized" and self.problem != "one-class":
            b = LONG(best.w[width] * back) * self.scaling
        elif self.intercept is False:
            b = LONG(0)
        else:
            mu = np.atleast_1d(best.mu) * (unit * unit if times == 1.0 else 1.0)
            b = LONG(0.5 * (mu[1] - mu[0]) if self.problem == "nu-svc" else mu[0])
        if not np.all(np.isfinite(coef)) or not np.isfinite(b):
            return None
        return self.primal(m, coef, b)

    def _factor(self) -> np.ndarray:
        """T of these landmarks: cut off a little earlier, for which P* is no lower."""
        if self.landmarks is None:
            return np.eye(self.X.shape[1])
        values, vectors = np.linalg.eigh(self.gram[0].astype(np.float64))
        record = self.fitted.model_.provenance.get("nystrom") or {}
        cutoff = float(record.get("cutoff", 1e-6))
        keep = values > 2 * max(cutoff, 1e-13) * values[-1]
        return vectors[:, keep] / np.sqrt(values[keep])

    def _oracle(self, phi, s, y, box) -> reference.Problem:
        one, zero = np.ones(len(s)), np.zeros(len(s))
        true, spec = self.intercept is True, self.spec
        if self.problem == "c-svc":
            q = reference.Problem(phi, s, one, zero, box, s if true else None)
            return reference.squared(q) if spec.squared else q
        if self.problem == "nu-svc":
            if true:
                group = (s > 0).astype(np.int64)
                return reference.Problem(
                    phi, s, zero, zero, box, one, np.full(2, spec.nu / 2), group
                )
            return reference.Problem(phi, s, zero, zero, box, one, spec.nu)
        if self.problem == "one-class":
            return reference.Problem(phi, one, zero, zero, box, one, 1.0)
        low, high, t = -box, box, one if true else None
        if self.problem == "quantile":
            low, high = (spec.quantile - 1) * box, spec.quantile * box
        tube = np.full(len(s), self.fitted.epsilon) if self.problem == "svr" else None
        if tube is not None and not tube.any():
            tube = None
        q = reference.Problem(phi, one, y, low, high, t, 0.0, None, tube)
        return reference.squared(q) if spec.squared else q

    # -- the verdict -------------------------------------------------------------------------------
    def faults(self, decided: np.ndarray, predicted: np.ndarray, done: bool) -> dict[str, str]:
        """List all faults by kind. ``done``: no warning said that the gap was missed."""
        with np.errstate(all="ignore"):
            return self._gamma() | self.proofs(done) | self._outputs(decided, predicted)

    def proofs(self, done: bool) -> dict[str, str]:
        """List the faults of the certificates by kind."""
        found: dict[str, str] = {}
        with np.errstate(all="ignore"):
            for m in self.machines:
                found |= self._certificate(m, done)
        return found

    def _gamma(self) -> dict[str, str]:
        if not isinstance(self.spec.gamma, str) or self.spec.kernel in ("linear", "precomputed"):
            return {}
        own = float(self.fitted.model_.kernel.gamma)
        two = np.log2(own / float(self.gamma)) if own > 0 else 0.5
        if abs(two - round(two)) < 1e-5:  # rows may be kept in another unit
            return {}
        return {"gamma": f"{own:.9g} for {float(self.gamma):.9g}"}

    def _certificate(self, m: Machine, done: bool) -> dict[str, str]:
        stated, found = m.certificate, {}
        gap = stated.get("gap")
        proves = stated.get("proved", True) and gap is not None
        if self.spec.indefinite:
            claimed = proves or (gap is not None and np.isfinite(gap))
            return {"indefinite with a gap": f"gap {gap}"} if claimed else {}
        if not proves:
            return {"nothing proved, nothing said": f"{stated}"} if done else {}
        for name in PROVED:
            if not np.isfinite(stated[name]):
                found["not finite"] = f"{ {k: stated[k] for k in PROVED} }"
        if found:
            return found
        bounds = {name: bound_of(stated, name) for name in ("primal", "dual", "gap")}
        room = bounds["gap"]
        P = self.primal(m)
        found |= _apart("P", stated["primal"], P, bounds["primal"])
        size = abs(float(stated["primal"]))
        tol = self.spec.tol * size
        none_left = P.value == 0 and gap <= 0
        if done and gap + room > tol * (1 + 1e-6) and not none_left:
            found["rounding beyond tol"] = f"gap {gap:.4g} +- {room:.3g}, asked {tol:.4g}"
        if self.exact:
            D, wrong = self.dual(m)
            if wrong:
                return found | {"infeasible alpha": wrong}
            found |= _apart("D", stated["dual"], D, bounds["dual"])
            true = Value(P.value - D.value, P.error + D.error)
            found |= _apart("gap", gap, true, room)
        else:
            best = self.optimum(m)
            if best is None or not np.isfinite(best.value):
                best = P
            over = stated["dual"] - best.value - best.error - bounds["dual"]
            if over > ROUNDED * abs(best.value):
                found["D above the optimum"] = (
                    f"D {stated['dual']:.12g} +- {bounds['dual']:.3g}, P of another machine "
                    f"{float(best.value):.12g} +- {float(best.error):.2g}"
                )
            over = P.value - best.value - P.error - best.error - gap - room
            if over > ROUNDED * abs(P.value):
                found["gap too small"] = (
                    f"gap {gap:.6g} +- {room:.3g}, another machine is better by "
                    f"{float(P.value - best.value):.6g}"
                )
            true = Value(P.value - best.value, P.error + best.error)
        if done and float(true.value - true.error) > tol * (1 + 1e-6) + room:
            found["gap missed without a warning"] = f"{float(true.value):.6g}, asked {tol:.6g}"
        return found

    def _outputs(self, decided: np.ndarray, predicted: np.ndarray) -> dict[str, str]:
        """Compare scores and predictions with the published machines."""
        found: dict[str, str] = {}
        decided = decided.reshape(len(decided), -1)
        told = []
        values = np.stack([self.scores(m).value * m.scale for m in self.machines], axis=1)
        K, largest = np.abs(self.columns[0]), np.max(np.abs(values), axis=1)
        for k, m in enumerate(self.machines):
            value, off = values[:, k], self.scores(m).error * m.scale
            size = (K @ np.abs(m.coef) + abs(m.b)) * m.scale
            off = off + SCORE * largest + SUMMED * size + LEAST * np.sum(np.abs(m.coef)) * m.scale
            wrong = np.abs(decided[:, k] - value) - off
            worst = int(np.argmax(wrong))
            if not np.all(wrong <= 0):
                found["scores"] = (
                    f"row {worst}: {decided[worst, k]:.9g} for {float(value[worst]):.9g}, largest "
                    f"{float(np.max(np.abs(value))):.6g}, terms {float(size[worst]):.6g}"
                )
            told.append((value, np.abs(value) > off))
        labels = self._labels(told)
        if labels is not None:
            sure, label = labels
            if np.any((predicted != label) & sure):
                found["predictions"] = f"{np.sum((predicted != label) & sure)} rows"
        return found

    def _labels(self, told: list) -> tuple[np.ndarray, np.ndarray] | None:
        """Compute the labels of rows whose scores are all clear; None for a regression."""
        (value, sure), fitted = told[0], self.fitted
        if self.problem == "one-class":
            return sure, np.where(value >= 0, 1, -1)
        if self.problem not in ("c-svc", "nu-svc"):
            return None
        if len(told) == 1:
            return sure, fitted.classes_[(value > 0).astype(int)]
        sure = np.all([one for _, one in told], axis=0)
        if len(self.machines[0].order) == 1:
            values = np.sort(np.stack([one for one, _ in told]), axis=0)
            sure = values[-1] - values[-2] > 2 * SCORE * np.max(np.abs(values))
            return sure, fitted.classes_[np.argmax([one for one, _ in told], axis=0)]
        votes = np.zeros((len(value), len(fitted.classes_)))
        for (one, _), m in zip(told, self.machines, strict=True):
            i, j = m.order
            votes[:, i] += one > 0
            votes[:, j] += one < 0
        return sure, fitted.classes_[np.argmax(votes, axis=1)]


def _apart(name: str, stated: float, true: Value, bound: float) -> dict[str, str]:
    """Whether a number lies outside of the stated bounds, beyond the last digit of their sum."""
    room = bound + true.error + ROUNDED * abs(true.value)
    off = stated - true.value
    if abs(off) <= room:
        return {}
    kind = f"{name} stated too {'high' if off > 0 else 'low'}"
    text = f"{stated:.17g} +- {bound:.3g} for {float(true.value):.17g} +- {float(true.error):.2g}"
    return {kind: f"{text} (off by {float(off):.3g})"}
