"""`bigscreen warmup`: compile the loops that fits need, once for an installation."""

import os
import time

import click

from bigscreen.cli.common import check_json, json_option, threads_option


@click.command(short_help="Compile what fits need, once for an installation.")
@threads_option
@json_option
def warmup(threads: int | None, json_file: str | None) -> None:
    """Compile what ingest, fit and predict need, so that the first of them need not.

    Loops are compiled for this processor when they are first used, and kept next to the package (or
    in the folder that the environment variable NUMBA_CACHE_DIR names). Run it where an image of a
    container is built, or a cluster's workers are installed: it fits small machines of every kind
    to made-up rows, dense and sparse, and leaves nothing else behind.

    \b
    Example:
      bigscreen warmup
    """
    import warnings
    from pathlib import Path

    import numpy as np
    from scipy.sparse import csr_array
    from sklearn.datasets import dump_svmlight_file

    from bigscreen.data.memory import MemoryDataset
    from bigscreen.files.scratch import scratch
    from bigscreen.fleet.inline import Inline
    from bigscreen.intake.ingest import ingest
    from bigscreen.options.train import TrainOptions
    from bigscreen.plan.tuning import PLAN
    from bigscreen.report import report
    from bigscreen.train.run import train

    check_json(json_file)
    machines = {
        "landmarks": TrainOptions(landmarks=20),
        "linear": TrainOptions(kernel="linear"),
        "squared losses": TrainOptions(kernel="linear", problem="squared-svc"),
        "exact": TrainOptions(exact=True),
        "exact, true offset": TrainOptions(exact=True, intercept="true"),
    }
    spent: dict[str, float] = {}
    with scratch("warmup") as folder, Inline(threads) as fleet:
        for n in (300, PLAN.few_rows + 1):
            X = np.random.default_rng(0).normal(size=(n, 6))
            y = np.where(X[:, 0] * X[:, 1] > 0, 1, -1)
            for name in ("rows.svm", "rows.csv"):
                began, source = time.monotonic(), Path(folder, name)
                table = name == "rows.csv"
                if table:
                    np.savetxt(source, np.column_stack([y, X]), "%.4f", ",")
                else:
                    dump_svmlight_file(X, y, str(source), zero_based=False)
                data = ingest(
                    source,
                    Path(folder, f"{n}-{name}.store"),
                    label=0 if table else None,
                    header=False if table else None,
                    scale="standard" if table else "none",
                ).store
                spent["ingest"] = spent.get("ingest", 0.0) + time.monotonic() - began
                arrays = MemoryDataset(X if table else csr_array(X), (y > 0).astype(int), [-1, 1])
                for what, options in machines.items():
                    began = time.monotonic()
                    for rows in (data, arrays):
                        with warnings.catch_warnings():
                            warnings.simplefilter("ignore")
                            model = train(rows, options, fleet)
                        model.scores(rows.X(0, 100), prepared=True)
                    spent[what] = spent.get(what, 0.0) + time.monotonic() - began
    kept = os.environ.get("NUMBA_CACHE_DIR")
    if json_file:
        report.write_result(json_file, "warmup", {"kept": kept, "seconds": spent})
    report.table(
        f"Compiled, and kept in {kept or '__pycache__ of the package'}",
        {what: report.seconds(each) for what, each in spent.items()},
    )
