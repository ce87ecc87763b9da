"""The model of a fit's time on many workers: units of work, costs by least squares, and their sum.

`pipelines.scale.scaling` measures the costs and prints what follows from them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bigscreen.fleet.tuning import CLUSTER

NETWORK_BYTES_PER_SECOND = 1.25e9
"""Bytes per second that a machine sends or receives: 10 Gbit/s."""
MACHINE_WORKERS = 16
"""Workers on one machine, for the change that lets one process a machine pass calls on."""


@dataclass(frozen=True)
class Requests:
    """What a fit asks of any fleet; the same for any number of workers.

    ``counts`` are those of `count_requests`: rounds, tasks, rows, bytes.
    """

    rows: int
    landmarks: int
    shards: int
    counts: Counter[str]

    def units(
        self, workers: int, shared: bool, seconds: float = 0.0
    ) -> dict[str, dict[str, float]]:
        """Return the units that a number of workers pay for, by who spends the seconds.

        ``shared``: hosts add large totals up among themselves. ``seconds``: wall time of a measured
        fit, in which every process also sends heartbeats, samples memory, and so on.
        """
        m, of, shared = self.landmarks, self.counts, shared and workers > 2
        hosts = min(workers, self.shards)  # workers without a shard are not called in rounds
        calls, begun = of["rounds"] * hosts, of["starts"] * workers
        adding = of["large rounds"] * min(hosts, CLUSTER.max_sharing_hosts) * shared
        return {
            "workers": {
                "entry scored": (of["rows scored"] + self.rows) * m,  # one closing pass
                "entry multiplied": of["rows multiplied"] * m,
                "pair of entries": of["rows squared"] * m * m,
                "step of a shard": of["rounds"] * self.shards,
                "call": calls,
                "host begun": begun,
                "second": workers * seconds,
            },
            "starts": {"start": of["starts"], "host begun": begun},
            "rounds": {
                "round": of["rounds"],
                "call": calls + adding,
                "byte": self.bytes_received(workers, shared),
            },
            "algebra": {
                "fit": 1,
                "second": seconds,
                "row": self.rows,
                "m^2 of a product": of["rounds: product"] * m**2,
                "m^3 of a factor": (1 + of["rounds: sample"] + of["large rounds"]) * m**3,
            },
            "tasks": {"task": of["tasks"], "pass": 1},
            "scheduler": {"task": of["tasks"], "host begun": begun, "second": workers * seconds},
        }

    def bytes_received(self, workers: int, shared: bool) -> float:
        """Return the bytes that the coordinator receives: vectors of shards, totals of hosts."""
        totals = 1 if shared and workers > 2 else min(workers, self.shards)
        return self.counts["vector bytes"] + totals * self.counts["total bytes"]

    def with_shards(self, factor: int) -> Requests:
        """Return the same fit with ``factor`` times as many shards: steps, tasks and vectors."""
        grown = {name: factor * self.counts[name] for name in ("tasks", "vector bytes")}
        return replace(self, shards=factor * self.shards, counts=Counter({**self.counts, **grown}))

    def with_fused_rounds(self) -> Requests:
        """Return the same fit without the small rounds that a neighbour's message could carry."""
        small = ("rounding", "count_within", "count_near", "screen", "sample", "pick", "sides")
        fewer = self.counts["rounds"] - sum(self.counts[f"rounds: {kind}"] for kind in small)
        return replace(self, counts=Counter({**self.counts, "rounds": fewer}))


@dataclass(frozen=True)
class Costs:
    """Seconds for each unit, by least squares, with the covariance of their errors.

    ``spread``: the standard deviation of the relative errors that are left.
    """

    names: list[str]
    seconds: np.ndarray
    covariance: np.ndarray
    spread: float

    @property
    def errors(self) -> np.ndarray:
        """The standard errors of the costs."""
        return np.sqrt(np.diag(self.covariance))

    @classmethod
    def of(cls, units: Sequence[dict[str, float]], spent: Sequence[float]) -> Costs:
        """Fit costs to measured seconds; leave out a cost that is not twice its standard error."""
        names, b = list(units[0]), np.ones(len(spent))
        while True:
            A = np.array([[each[name] for name in names] for each in units], dtype=float)
            A /= np.asarray(spent)[:, None]  # relative errors count
            scale = np.abs(A).max(axis=0)
            _, singular, axes = np.linalg.svd(A / scale, full_matrices=False)
            # (What the data cannot tell apart at all gets errors that are huge, not infinite.)
            axes = axes / np.maximum(singular, 1e-8 * singular[0])[:, None]
            inverse = axes.T @ axes
            found = inverse @ (A / scale).T @ b
            left = b - A / scale @ found
            variance = left @ left / max(len(b) - len(names), 1)
            errors = np.sqrt(variance * np.diag(inverse))
            worst = int(np.argmin(found / np.maximum(errors, 1e-300)))
            if len(names) == 1 or found[worst] >= 2 * errors[worst]:
                covariance = variance * inverse / np.outer(scale, scale)
                return cls(names, found / scale, covariance, float(np.sqrt(variance)))
            del names[worst]

    def total(self, units: dict[str, float]) -> float:
        """Return the seconds that these units cost."""
        return float(self._known(units) @ self.seconds)

    def variance(self, units: dict[str, float]) -> float:
        """Return the squared standard error of `total`: the constants' and that of one fit."""
        known = self._known(units)
        return float(known @ self.covariance @ known + (self.spread * self.total(units)) ** 2)

    def _known(self, units: dict[str, float]) -> np.ndarray:
        return np.array([units.get(name, 0.0) for name in self.names])


@dataclass(frozen=True)
class Model:
    """The costs by who spends them, and the seconds of waiting in a round."""

    costs: dict[str, Costs]
    waiting: float

    def parts(
        self, requests: Requests, workers: int, relayed: int = 1
    ) -> dict[str, tuple[float, float]]:
        """Predict the seconds of a fit whose hosts share totals: parts, each with its variance.

        ``relayed``: workers to which one process passes the coordinator's calls on.
        """
        units, hosts = requests.units(workers, True), min(workers, requests.shards)
        hands, own, of = units["workers"], units["rounds"], requests.counts
        share = math.ceil(requests.shards / workers) / requests.shards
        apart = {"call": 1 / hosts, "host begun": 1 / workers}  # each worker pays for its own
        if relayed > 1:
            passed_on = of["rounds"] * min(relayed, hosts)
            own = {**own, "call": own["call"] * math.ceil(hosts / relayed) / hosts + passed_on}
        received = requests.bytes_received(workers, True) + hosts * of["message bytes"]
        begun = {"host begun": units["starts"]["host begun"], "task": of["tasks"]}
        return {
            "steps of shards": self.cost(
                "workers", {name: share * n for name, n in hands.items() if name not in apart}
            ),
            "calls at a worker": self.cost(
                "workers", {name: apart[name] * hands[name] for name in apart}
            ),
            "starts": self.cost("starts", units["starts"]),
            "rounds, calls, bytes": self.cost("rounds", own),
            "algebra": self.cost("algebra", units["algebra"]),
            "tasks": self.cost("tasks", units["tasks"]),
            "scheduler": self.cost("scheduler", begun),
            "network": (received / NETWORK_BYTES_PER_SECOND, 0.0),
            "waiting": (self.waiting * of["rounds"], 0.0),
        }

    def seconds(self, requests: Requests, workers: int, relayed: int = 1) -> tuple[float, float]:
        """Predict the seconds of a fit, and the half-width of their range (two standard errors)."""
        parts = self.parts(requests, workers, relayed).values()
        return sum(s for s, _ in parts), 2 * math.sqrt(sum(v for _, v in parts))

    def most_useful(self, requests: Requests) -> dict[str, int]:
        """Find the workers with which a fit ends first, and those after which doubling is little.

        Little is less than a tenth of the time.
        """
        took = {w: self.seconds(requests, w)[0] for w in range(1, 2001)}
        halted = next(w for w in range(1, 1001) if took[2 * w] > 0.9 * took[w])
        return {"fastest": min(took, key=took.__getitem__), "doubling gains a tenth up to": halted}

    def changes(self, requests: Requests, workers: int) -> dict[str, float]:
        """Predict the seconds of a fit on these workers with one change each."""
        return {
            "as it is": self.seconds(requests, workers)[0],
            "shards of half the rows": self.seconds(requests.with_shards(2), workers)[0],
            "shards of a quarter": self.seconds(requests.with_shards(4), workers)[0],
            "one relay a machine": self.seconds(requests, workers, relayed=MACHINE_WORKERS)[0],
            "small rounds fused": self.seconds(requests.with_fused_rounds(), workers)[0],
        }

    def cost(self, who: str, units: dict[str, float]) -> tuple[float, float]:
        """Return the seconds that these units cost, and the variance of their error."""
        return self.costs[who].total(units), self.costs[who].variance(units)
