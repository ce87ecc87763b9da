"""Shared parts of the large experiments: options, sources of rows, fits, table and JSON."""

from __future__ import annotations

import argparse
import json
import sys
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
from bigscreen.cli.report import write_page
from bigscreen.data.dataset import Dataset
from bigscreen.data.synthetic import Blocks, bayes_error
from bigscreen.evaluate.evaluate import evaluate
from bigscreen.fleet.protocol import Fleet
from bigscreen.intake.ingest import ingest
from bigscreen.model.model import Model
from bigscreen.options.train import TrainOptions
from bigscreen.report import certificate, report
from bigscreen.train.records import describe_difference
from bigscreen.train.run import train


def arguments(description: str) -> argparse.ArgumentParser:
    """Make the parser with the options that every experiment has."""
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
        help="folder for stores and models, kept: what is there is not done again; with "
        "--scheduler one that all machines see [temporary]",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument(
        "--pages", type=Path, metavar="FOLDER", help="also write a page of HTML for every model"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the record as JSON")
    return parser


class Experiment:
    """A run of an experiment: its store, its fleet, and its record.

    Parameters
    ----------
    name : str
    given : Namespace
        The parsed options (see `arguments`).
    standin : callable
        ``standin(rows, seed)`` makes rows if no real file is given.
    full_rows : int
        The number of rows of the real data set.
    about : str
        A description of the stand-in.
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
        """Ingest with a hold-out, and start the fleet; `options` are for ingesting a real file."""
        given = self.given
        with tempfile.TemporaryDirectory(prefix="bigscreen-") as temporary:
            self.folder = given.work or Path(temporary)
            self.folder.mkdir(parents=True, exist_ok=True)
            began = time.monotonic()
            self.made = self._ingest(holdout, options)
            self.record["seconds_ingest"] = time.monotonic() - began
            self.record["rows"] = self.made[0].n_rows
            self.record["rows_held_out"] = self._held_out.n_rows
            ways = {"threads": None, "memory": None}
            ways |= {"workers": given.workers, "scheduler": given.scheduler}
            with open_fleet(ways) as self.fleet:
                yield

    fleet: Fleet

    def fit(self, name: str, **options: Any) -> None:
        """Fit unless the model exists, evaluate on the hold-out, and record both."""
        file, work = self.folder / f"{name}.bsm", self.folder / f"work-{name}"
        resume = (work / "problem.json").exists()
        chosen = TrainOptions(seed=self.given.seed, work=work, resume=resume, **options)
        if file.exists():
            model = Model.load(file)
            if other := describe_difference(model.provenance, self.made[0], chosen):
                sys.exit(f"error: {file} is another model: {other}; give another --work")
        else:
            with warnings.catch_warnings(), report.FitReport() as show:
                # The table says it, with its numbers.
                warnings.simplefilter("ignore", ConvergenceWarning)
                model = train(self.made[0], chosen, self.fleet, show)
            model.save(file)
        pages = self.given.pages
        found = evaluate(model, self._held_out, self.fleet.each, curves=pages is not None)
        if pages is not None:
            pages.mkdir(parents=True, exist_ok=True)
            page = pages / f"{name}.html"
            write_page(str(page), model, f"{self.title}: {name}", self._held_out, found)
            found = {key: value for key, value in found.items() if key != "curves"}
            print(f"written: {page}")
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
        for head in ("model", "error", "AUC", "relative gap", "time", "peak memory"):
            table.add_column(head)
        for name, fit in record["fits"].items():
            error, gap = fit["evaluation"]["error"], fit["relative_gap"]
            took, peak = fit["seconds"]["total"], fit["peak_pss_bytes"]
            auc = f"{fit['evaluation']['auc']:.4f}"
            row = (f"{error:.2%}", auc, f"{gap:.1e}", report.seconds(took), report.size(peak))
            table.add_row(name, *row)
        if "bayes_error" in record:
            table.add_row("best possible", f"{record['bayes_error']:.2%}")
        Console(highlight=False).print(table)
        if self.given.json:
            report.write_json(self.given.json, record)

    @property
    def _held_out(self) -> Any:
        assert self.made[1] is not None
        return self.made[1]

    def _ingest(self, holdout: float, options: dict[str, Any]) -> tuple[Dataset, Dataset | None]:
        """Ingest the rows to train on and to hold out, or open the stores in the folder."""
        given = self.given
        scale = options.pop("scale", "none")
        store, rest = self.folder / "data.store", self.folder / "data-holdout.store"
        asked = {"data": given.data, "rows": given.rows, "seed": given.seed}
        said = self.folder / "asked.json"
        if store.exists():
            if not said.exists() or json.loads(said.read_text()) != asked:
                sys.exit(
                    f"error: {self.folder} holds what was made of other rows; give another --work"
                )
            return Dataset.open(store), Dataset.open(rest)
        said.write_text(json.dumps(asked))
        if given.data:
            rows = None if given.rows is None else f"0:{given.rows}"
            source, more = given.data, {"rows": rows, **options}
        else:
            source, more = self.standin(given.rows or self.full_rows, given.seed), {}
        with report.IngestBar() as progress:
            made = ingest(
                source,
                store,
                holdout=holdout,
                scale=scale,
                seed=given.seed,
                progress=progress,
                **more,
            )
        return made.store, made.holdout


def physics(
    name: str,
    description: str,
    standin: Callable[[int, int], Blocks],
    rows: int,
    holdout: float,
    rule: tuple[float, float],
) -> None:
    """Compare a Nystrom machine with a linear one on dense rows of two labels, label first."""
    parser = arguments(description)
    parser.add_argument("--landmarks", type=int, default=1000, metavar="M", help="[1000]")
    parser.add_argument("--gamma", type=float, default=1 / 32, help="[1/32]")
    parser.add_argument("--C", type=float, default=1.25, help="[1.25]")
    given = parser.parse_args()
    least = bayes_error(rule)
    about = f"a formula of a few features, Bayes error {least:.0%}"
    run = Experiment(name, given, standin, rows, about)
    with run.ready(holdout, scale="standard", label=0, header=False):
        run.fit("linear", kernel="linear", C=given.C)
        run.fit("rbf", kernel="rbf", gamma=given.gamma, C=given.C, landmarks=given.landmarks)
        if not given.data:
            run.record["bayes_error"] = least
        run.finish()
