"""What the scripted experiments share: options, where the rows come from, fits, table and JSON."""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from sklearn.exceptions import ConvergenceWarning

from bigscreen.cli.common import open_fleet
from bigscreen.data.synthetic import Blocks
from bigscreen.fleet.protocol import Fleet
from bigscreen.intake.ingest import ingest
from bigscreen.intake.settle import Ingested
from bigscreen.model.evaluate import evaluate
from bigscreen.report import certificate, report
from bigscreen.train.options import TrainOptions
from bigscreen.train.run import train


def arguments(description: str) -> argparse.ArgumentParser:
    """The options that every experiment has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--data", nargs="+", metavar="FILE", help="the real file(s) [a stand-in of the same shape]"
    )
    parser.add_argument("--rows", type=int, metavar="N", help="take so many rows alone [all]")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--scheduler", metavar="ADDRESS", help="Dask scheduler, tcp://HOST:8786")
    where.add_argument("--workers", type=int, metavar="N", help="processes here [threads]")
    parser.add_argument(
        "--work",
        type=Path,
        metavar="FOLDER",
        help="new folder for stores, kept; with --scheduler one that all machines see [temporary]",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the record as JSON")
    return parser


class Experiment:
    """One run: a store, a fleet, and the record that grows.

    Parameters
    ----------
    name : str
    given : Namespace
        Of `arguments`.
    standin : callable
        Makes the rows, ``standin(rows, seed)``, where there is no real file.
    full_rows : int
        Rows of the real data set.
    about : str
        What the stand-in is.
    """

    def __init__(
        self,
        name: str,
        given: argparse.Namespace,
        standin: Callable[[int, int], Blocks],
        full_rows: int,
        about: str,
    ) -> None:
        self.given, self.standin, self.full_rows = given, standin, full_rows
        real = f"{name}: {', '.join(given.data or ())}"
        self.title = real if given.data else f"{name}, a STAND-IN and no real data ({about})"
        self.record: dict[str, Any] = {"data": self.title, "standin": not given.data, "fits": {}}
        print(self.title, flush=True)

    @contextmanager
    def ready(self, holdout: float, **options: Any) -> Iterator[None]:
        """Ingest with a hold-out, and start what computes; `options` are those of a real file."""
        given = self.given
        with tempfile.TemporaryDirectory(prefix="bigscreen-") as temporary:
            self.folder = given.work or Path(temporary)
            self.folder.mkdir(parents=True, exist_ok=True)
            began = time.monotonic()
            self.made = self._ingest(holdout, options)
            self.record["seconds_ingest"] = time.monotonic() - began
            self.record["rows"] = self.made.store.n_rows
            self.record["rows_held_out"] = self._held_out.n_rows
            ways = {"threads": None, "memory": None}
            ways |= {"workers": given.workers, "scheduler": given.scheduler}
            with open_fleet(ways) as self.fleet:
                yield

    fleet: Fleet

    def fit(self, name: str, **options: Any) -> None:
        """Fit, evaluate on the hold-out, keep both in the record."""
        chosen = TrainOptions(seed=self.given.seed, work=self.folder / f"work-{name}", **options)
        with warnings.catch_warnings(), report.FitReport() as show:
            # The table says it, with its numbers.
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = train(self.made.store, chosen, self.fleet, show)
        model.save(self.folder / f"{name}.bsm")
        found = evaluate(model, self._held_out, self.fleet.each)
        self.record["fits"][name] = {**certificate.fit_record(model), "evaluation": found}

    def finish(self) -> None:
        """Print the table and write the JSON file."""
        record = self.record
        print(self.title)
        print(
            f"{record['rows']:,} rows to train on, {record['rows_held_out']:,} held out, "
            f"ingested in {report.seconds(record['seconds_ingest'])}"
        )
        table = Table()
        for head in ("model", "error", "relative gap", "time", "peak memory"):
            table.add_column(head)
        for name, fit in record["fits"].items():
            error, gap = fit["evaluation"]["error"], fit["relative_gap"]
            took, peak = fit["seconds"]["total"], fit["peak_pss_bytes"]
            row = (f"{error:.2%}", f"{gap:.1e}", report.seconds(took), report.size(peak))
            table.add_row(name, *row)
        if "bayes_error" in record:
            table.add_row("best possible", f"{record['bayes_error']:.2%}")
        Console(highlight=False).print(table)
        if self.given.json:
            report.write_json(self.given.json, record)

    @property
    def _held_out(self) -> Any:
        assert self.made.holdout is not None
        return self.made.holdout

    def _ingest(self, holdout: float, options: dict[str, Any]) -> Ingested:
        given = self.given
        scale = options.pop("scale", "none")
        store = self.folder / "data.store"
        if given.data:
            rows = None if given.rows is None else f"0:{given.rows}"
            source, more = given.data, {"rows": rows, **options}
        else:
            source, more = self.standin(given.rows or self.full_rows, given.seed), {}
        with report.IngestBar() as progress:
            return ingest(
                source,
                store,
                holdout=holdout,
                scale=scale,
                seed=given.seed,
                progress=progress,
                **more,
            )
