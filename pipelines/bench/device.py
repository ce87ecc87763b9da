"""Check and time the textbook Newton on a GPU.

    python -m pipelines.bench.device [--quick] [--out FOLDER]

Needs no network, no data, and some minutes. Next to bigscreen's own requirements a GPU needs the
wheel ``cupy-cuda12x[ctk]`` or ``cupy-cuda13x[ctk]`` (by the driver's CUDA), or PyTorch built for
CUDA. Without a GPU the script runs on the CPU, with fewer rows, and says why.

First, what must hold: on small problems the machine is that of the tuned Newton on the CPU, within
both gaps; and scores from float32 features are as far from float64 as float32 rounding explains.
Products with TF32 (11 bits) would be 1,000 times as far off: such a device is refused.

Second, the seconds of a solve from rows in host memory, with the landmarks' factor and the
features, until the gap of the solver's own sums is at most the requested one. The closing pass,
which runs on the CPU, is not part of it.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from bigscreen.data.memory import MemoryDataset
from bigscreen.data.views import Recast
from bigscreen.device.features import Features
from bigscreen.device.find import HOST, Device, find_device
from bigscreen.device.newton import DenseNewton, dense_bytes
from bigscreen.device.place import Place
from bigscreen.errors import InputError
from bigscreen.features import nystrom
from bigscreen.features.design import Design
from bigscreen.fit.loop import fit
from bigscreen.fit.monitor import Limits
from bigscreen.fleet.inline import Inline
from bigscreen.kernels.standard import make_kernel
from bigscreen.problems.point import Point
from bigscreen.problems.recipes import CSvc
from bigscreen.solvers.newton.solver import Newton
from bigscreen.solvers.protocol import Case, Run, Verdict
from pipelines.bench import common

MAX_SCORE_ERROR = 1e-5
"""Largest difference of float32 scores from float64 scores, as a fraction of the largest score."""

CASES = (
    ("SUSY", 1_000_000, 18, 1000, 1e-3, None),
    ("SUSY", 5_000_000, 18, 1000, 1e-3, None),
    ("SUSY", 5_000_000, 18, 1000, 1e-3, 2**32),
    ("SUSY", 5_000_000, 18, 1000, 1e-3, 0),
    ("SUSY", 5_000_000, 18, 4000, 1e-3, None),
    ("SUSY", 5_000_000, 18, 10_000, 1e-3, None),
    ("HIGGS", 11_000_000, 28, 1000, 1e-3, None),
)
"""Shape, rows, columns, landmarks, relative gap, and the bytes on the device that features, or else
rows, may take (None: all that is free)."""

GRIDS = (("a9a", 32_561, 123, 2000), ("ijcnn1", 49_990, 22, 2000))
"""Shape, rows, columns and landmarks of paths: 10 folds and all rows, each with 50 values of C."""

CPU_SHARE = {False: 100, True: 1000}
"""Without a GPU, rows are divided by this; with ``--quick`` by the second number."""


def find_room(device: Device) -> float:
    """Return the bytes that features may take on a device, or in memory on the CPU."""
    return 2.0**30 if device.free_bytes is None else 0.7 * device.free_bytes


def make_rows(n: int, d: int) -> MemoryDataset:
    """Make rows (n, d) and labels that no machine separates."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d), dtype=np.float32)
    score = X[:, 0] + 0.5 * X[:, 1] * X[:, 2] + rng.standard_normal(n, dtype=np.float32)
    return MemoryDataset(X, (score > 0).astype(np.int32), [0, 1])


def with_landmarks(data: MemoryDataset, landmarks: int) -> Design:
    """Return the design of rows with an RBF kernel and uniformly chosen landmarks."""
    kernel = make_kernel("rbf", 0.5 / data.n_features)
    side, _ = nystrom.choose_landmarks(data, kernel, landmarks, "uniform", 0)
    return nystrom.factor_landmarks(kernel, side).of(Design(data, kernel), side)


class Clock:
    """The check of a timed solve: stops at the gap, and counts iterations."""

    def __init__(self, target: float, most: int = 200) -> None:
        """Set the relative gap at which to stop, and the most iterations."""
        self.target, self.most, self.calls = target, most, 0

    def __call__(self, point: Point, stats: dict[str, Any], save: Any) -> Verdict | None:
        """Count a call; returns None if the gap is reached."""
        self.calls += 1
        ended = point.relative_gap <= self.target or stats["stalled"] or self.calls >= self.most
        return None if ended else Verdict()

    def restored(self, meta: dict[str, Any]) -> None:
        """Do nothing: no solve is resumed."""


def check_parity(place: Place) -> list[list[object]]:
    """Solve small problems there and by the tuned Newton on the CPU; returns rows of a table."""
    found, data = [], make_rows(2000, 6)
    with Inline(1) as fleet:
        for offset in ("none", "constant", "true"):
            for design in (Design(data), with_landmarks(data, 60)):
                run = Run(design, CSvc(1.0, 1, (), offset), fleet, spare=2**28)
                both = [
                    fit(run, solver, Limits(1e-4, 300))
                    for solver in (DenseNewton(1e-4, place), Newton(1e-4))
                ]
                proofs = [one.certificate for one in both]
                apart = float(np.linalg.norm(both[0].point.w - both[1].point.w))
                most = sum(np.sqrt(2 * (one.gap + one.rounding_bound)) for one in proofs)
                rank = "columns" if design.kernel is None else "landmarks"
                met = bool(proofs[0].relative_gap <= 1e-4 and apart <= most)
                found.append([rank, offset, proofs[0].relative_gap, apart, most, met])
    return found


def measure_rounding(place: Place, rows: int) -> float:
    """Return how far float32 scores are from float64 scores, relative to the largest score."""
    design = with_landmarks(make_rows(rows, 18), 200)
    w = np.random.default_rng(1).normal(size=(design.rank, 1))
    phi = [Features(design, (0, rows), place, dtype, 2.0**40) for dtype in (np.float32, np.float64)]
    # (The same features, so that only the product differs.)
    phi[1].kept = place.cast(phi[0].kept, np.float64)
    single, double = (place.take_back(one.dot(place.put(w))) for one in phi)
    return float(np.abs(single - double).max() / np.abs(double).max())


def time_grid(place: Place, room: float, case: tuple[str, int, int, int], share: int) -> list[Any]:
    """Solve the machines of a path with folds together, to 1e-4; returns a row of a table.

    Rows, folds and values are fewer if ``share`` is not 1; rows are divided by it, to 500 at least.
    """
    shape, rows, columns, landmarks = case
    folds, values = (10, 50) if share == 1 else (2, 5)
    data = make_rows(max(rows // share, 500), columns)
    began = time.perf_counter()
    design = with_landmarks(data, min(landmarks, data.n_rows // 20))
    fold = np.arange(data.n_rows) % folds
    weights = [None, *((fold != k).astype(float) for k in range(folds))]
    cases = [
        Case(CSvc(C, 1, (), "constant"), Recast(data, None, own))
        for own in weights
        for C in np.geomspace(1e-3, 1e3, values).tolist()
    ]
    # (Half of the room is for features.)
    some = max(1, int(0.5 * room // dense_bytes(data.n_rows, design.rank).rows))
    run = Run(design, cases[0].problem, Inline(1), spare=int(0.5 * room))
    points: list[Point] = []
    for first in range(0, len(cases), some):
        points += DenseNewton(1e-4, place).solve_many(run, cases[first : first + some], None)
    seconds = time.perf_counter() - began
    widest = max(point.relative_gap for point in points)
    return [shape, data.n_rows, design.width, len(points), min(some, len(points)), seconds, widest]


def main() -> None:
    """Check and measure, print the tables and write the record."""
    parser = common.arguments(__doc__ or "")
    parser.add_argument("--quick", action="store_true", help="fewer rows")
    given = parser.parse_args()
    try:
        device = find_device("cuda")
    except InputError as error:
        print(error)
        device = find_device("cpu")
    place, room = device.place, find_room(device)
    print(f"device: {device.name}, {device.library}")
    parity = check_parity(place)
    common.show(
        "The machine of the tuned Newton?",
        ("features", "offset", "relative gap", "||w - w'||", "at most", "met"),
        [[a, b, f"{g:.1e}", f"{x:.1e}", f"{m:.1e}", common.verdict(ok)]
         for a, b, g, x, m, ok in parity],
    )  # fmt: skip
    error = measure_rounding(place, 5000)
    print(f"float32 scores are off by {error:.1e} of the largest, at most {MAX_SCORE_ERROR:g}")
    if error > MAX_SCORE_ERROR or not all(row[-1] for row in parity):
        raise SystemExit("the device is not right: no times are measured")

    share = 1
    if device is HOST:
        share = CPU_SHARE[given.quick]
        print(f"no GPU: rows divided by {share}, and as few landmarks as rows allow")
    results = []
    for shape, rows, columns, landmarks, tol, cap in CASES:
        data = make_rows(rows // share, columns)
        began, clock = time.perf_counter(), Clock(tol)
        design = with_landmarks(data, min(landmarks, data.n_rows // 20))
        spare = int(room if cap is None else min(room, cap / share))
        run = Run(design, CSvc(1.0, 1, (), "constant"), Inline(1), spare=spare, resident=0.0)
        point = DenseNewton(tol, place).solve(run, clock)
        seconds = time.perf_counter() - began
        kept = 4 * data.n_rows * design.rank <= spare
        how = (
            "kept" if kept else "of kept rows" if spare >= 4 * rows // share * columns else "tiles"
        )
        results.append([shape, data.n_rows, design.width, how, seconds, clock.calls,
                        point.relative_gap])  # fmt: skip
    common.show(
        "Seconds, landmarks and features included",
        ("shape", "rows", "landmarks", "features", "seconds", "iterations", "relative gap"),
        [[*row[:4], f"{row[4]:.2f}", row[5], f"{row[6]:.1e}"] for row in results],
    )
    grids = [time_grid(place, room, case, share) for case in GRIDS]
    common.show(
        "Seconds of a path with folds, all machines to 1e-4",
        ("shape", "rows", "landmarks", "machines", "together", "seconds", "widest gap"),
        [[*row[:5], f"{row[5]:.2f}", f"{row[6]:.1e}"] for row in grids],
    )
    record = {"device": device.record, "rows_divided_by": share, "float32_error": error}
    common.save(
        given.out, "device", {**record, "parity": parity, "results": results, "grids": grids}
    )


if __name__ == "__main__":
    main()
