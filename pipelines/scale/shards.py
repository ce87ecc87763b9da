"""What smaller shards cost on the threads of one machine.

    python -m pipelines.scale.shards [--rows 1000000] [--repeat 3] [--out FOLDER]

The same made-up rows of SUSY's shape are fitted in shards of the size that data of their number
have, and of a quarter, in turns. Printed: medians of processor seconds.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from bigscreen.data.layout import row_grid
from pipelines.bench import common
from pipelines.scale.scaling import count_inline, write_rows

LANDMARKS = (300, 1000)


def main() -> None:
    """Fit, print the table, write the record."""
    parser = common.arguments(__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000, metavar="N")
    parser.add_argument("--repeat", type=int, default=3, metavar="N")
    given = parser.parse_args()
    with common.work_folder(given.work) as work:
        record = measure(work, given.rows, given.repeat, LANDMARKS)
    rows = [
        (m, *(f"{shard_rows:,}: {s:.2f} s" for shard_rows, s in found.items()))
        for m, found in record.items()
    ]
    heads = ("landmarks", "rows of a shard: processor s", "a quarter")
    common.show(f"{given.rows:,} rows on threads", heads, rows)
    common.save(given.out, "shards", {"rows": given.rows, "seconds": record})


def measure(work: Path, n: int, repeat: int, landmarks: tuple[int, ...]) -> dict[int, Any]:
    """Fit in turns; return medians of processor seconds, by landmarks and rows of a shard."""
    sizes = [row_grid(n, 72)[0] // part for part in (1, 4)]
    stores = {size: write_rows(work, n, size) for size in sizes}
    found = {}
    for m in landmarks:
        count_inline(stores[sizes[0]], m)  # compiles, or reads what is compiled
        took: dict[int, list[float]] = {size: [] for size in sizes}
        for k in range(repeat):
            for size in sizes[:: 1 - 2 * (k % 2)]:
                took[size].append(count_inline(stores[size], m)[1])
        found[m] = {size: statistics.median(each) for size, each in took.items()}
    return found


if __name__ == "__main__":
    main()
