"""What screening saves a single exact fit: processor seconds with the gap ball, and without rule.

    python -m pipelines.bench.screening --rows 10000 --tol 1e-6

One line for each of the exact races' tasks (a random part of its rows): the least processor seconds
of several fits of one thread each way, in turn; their ratio; and the rows left at the end.
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy import sparse

from bigscreen import SVC
from pipelines.bench.exact.tasks import TASKS


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Exact fits with and without the gap ball.")
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--tol", type=float, default=1e-6)
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    table = Table("task", "rows", "passes", "without", "gap ball", "ratio", "rows left")
    for name, task in TASKS.items():
        X, y, *_ = task.load()
        ids = np.random.default_rng(0).permutation(len(X))[: given.rows]
        X, y = X[ids], y[ids]
        if task.sparse:
            X = sparse.csr_array(X)
        least = {"none": np.inf, "gap": np.inf}
        for turn in range(given.repeat + 1):
            for rule in least:
                machine = SVC(C=task.C, gamma=task.gamma, tol=given.tol, screening=rule, n_jobs=1)
                began = time.process_time()
                machine.fit(X, y)
                if turn:  # the first fits compile
                    least[rule] = min(least[rule], time.process_time() - began)
        last = machine.history_[-1]
        seconds = [f"{found:.2f}" for found in least.values()]
        ratio = f"{least['gap'] / least['none']:.2f}"
        passes, left = str(len(machine.history_)), str(last["rows_alive"])
        table.add_row(name, str(len(y)), passes, *seconds, ratio, left)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
