"""The demonstration: ingest, fit, proof and evaluation on made-up data."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from bigscreen.cli.common import open_fleet, shown_warnings
from bigscreen.data import synthetic
from bigscreen.errors import InputError
from bigscreen.evaluate.evaluate import evaluate
from bigscreen.files.scratch import scratch
from bigscreen.fleet.protocol import Fleet
from bigscreen.intake.ingest import ingest
from bigscreen.model.model import Model
from bigscreen.options.train import TrainOptions
from bigscreen.options.tuning import Tuning
from bigscreen.problems.point import format_gap
from bigscreen.report import certificate, report
from bigscreen.train.run import train

STANDIN = (
    "a stand-in of the shape of SUSY, made by a formula: no real data, so that the smallest error "
    "possible is known"
)
"""Description of the made-up data, for the screen and for the record."""

Result = TypeVar("Result")


def run(
    rows: int = 1_000_000,
    landmarks: int = 500,
    workers: int = 2,
    keep: str | Path | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Run ingest, fit, certificate and evaluation on a stand-in for SUSY, on worker processes.

    Parameters
    ----------
    rows : int
        Rows to make, of which a fifth is held out.
    landmarks : int
        The number of landmarks of the curved model.
    workers : int
    keep : path, optional
        A new folder for the stores and models. Default: everything is removed at the end.
    seed : int

    Returns
    -------
    dict
        standin (a description of the data), rows, rows_trained, rows_held_out, landmarks, workers,
        error (curved, straight, bayes), curved and straight (the records of `fit --json`), seconds
        (by phase), peak_pss_bytes, kept.

    Raises
    ------
    InputError
        If there is no room on the disk, the folder to keep exists, or there are too few rows.
    """
    trained = rows * (1 - _Demo.holdout_fraction)
    if landmarks > trained:
        raise InputError(
            f"{landmarks} landmarks are more than the {trained:.0f} rows to train on; "
            "ask for fewer landmarks or more rows"
        )
    with _folder(keep) as folder:
        _check_disk(folder, rows, landmarks)
        ways = {"workers": workers, "scheduler": None, "threads": None, "memory": None}
        with open_fleet(ways) as fleet:
            return _Demo(fleet, folder, keep, rows, landmarks, seed).run()


class _Demo:
    """One demonstration: runs its parts in order, and measures the seconds of each."""

    holdout_fraction = 0.2

    def __init__(
        self,
        fleet: Fleet,
        folder: Path,
        keep: str | Path | None,
        rows: int,
        landmarks: int,
        seed: int,
    ) -> None:
        """Prepare a demonstration that runs on ``fleet`` (the workers) and writes into ``folder``.

        ``keep`` is the folder that the user named to keep the files, or None. ``rows`` is the
        number of made-up rows. ``seconds`` has the time of each phase.
        """
        self.fleet, self.folder, self.keep = fleet, folder, keep
        self.rows, self.landmarks, self.seed = rows, landmarks, seed
        self.seconds: dict[str, float] = {}

    def run(self) -> dict[str, Any]:
        """Ingest, fit both models, evaluate and print; return the record of the demonstration.

        The record has the numbers of rows, the models' errors and certificates, times and memory.
        """
        began = time.monotonic()
        report.note(
            f"{report.count(self.rows)} rows x {synthetic.SUSY_FEATURES} features: {STANDIN}."
        )
        made = self._timed("ingest", self._ingest)
        self.store, self.holdout = made.store, made.holdout
        trained, held = self.store.n_rows, self.holdout.n_rows
        report.note(
            f"ingested in {report.seconds(self.seconds['ingest'])}: {report.count(trained)} rows "
            f"to train on, {report.count(held)} held out"
        )
        curved = self._fit("rbf")
        certificate.show(certificate.fit_record(curved), "the curved model")
        straight = self._fit("linear")
        error = {
            "curved": self._timed("evaluate", lambda: self._error(curved)),
            "straight": self._timed("evaluate", lambda: self._error(straight)),
            "bayes": synthetic.bayes_error(),
        }
        self.seconds["total"] = time.monotonic() - began
        record = {
            "standin": STANDIN,
            "rows": self.rows,
            "rows_trained": trained,
            "rows_held_out": held,
            "landmarks": self.landmarks,
            "workers": self.fleet.workers,
            "error": error,
            "curved": certificate.fit_record(curved),
            "straight": certificate.fit_record(straight),
            "seconds": self.seconds,
            "peak_pss_bytes": self.fleet.peak_pss,
            "kept": None if self.keep is None else str(self.keep),
        }
        self._show(record)
        return record

    def _ingest(self) -> Any:
        """Write the made-up rows to a store, and a part of them to a store of held-out rows."""
        with report.IngestBar() as bar:

            def progress(event: Mapping[str, Any]) -> None:
                """Show the progress of an ingest of made-up rows."""
                # (Made-up data has no size in bytes, but a known number of rows.)
                bar({**event, "bytes": event["rows"], "bytes_total": self.rows})

            return ingest(
                synthetic.susy_like(self.rows, self.seed),
                self.folder / "susy.store",
                holdout=self.holdout_fraction,
                scale="standard",
                seed=self.seed,
                progress=progress,
            )

    def _fit(self, kernel: str) -> Model:
        """Fit and save a model with the kernel "rbf" (curved) or "linear" (straight)."""
        curved = kernel == "rbf"
        name = "curved" if curved else "straight"
        what = f"rbf kernel, {report.count(self.landmarks)} landmarks" if curved else "linear"
        report.note(f"fitting a {name} model ({what}) on {self.fleet.workers} worker processes")
        options = TrainOptions(
            kernel=kernel,
            gamma=1 / 36,
            landmarks=self.landmarks,
            tuning=Tuning(features="stored" if curved else "auto"),
            seed=self.seed,
            work=self.folder / "work",
        )
        with shown_warnings(), _FitShow() as show:
            model = self._timed(f"fit {name}", lambda: train(self.store, options, self.fleet, show))
        # (Features are large, and not needed again.)
        shutil.rmtree(self.folder / "work", ignore_errors=True)
        model.save(self.folder / f"{name}.bsm")
        return model

    def _error(self, model: Model) -> float:
        """Return the model's share of held-out rows that are predicted wrongly."""
        return float(evaluate(model, self.holdout, self.fleet.each)["error"])

    def _timed(self, phase: str, part: Callable[[], Result]) -> Result:
        """Call ``part``, add its seconds to the phase's total, and return its result."""
        began = time.monotonic()
        result = part()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.monotonic() - began
        return result

    def _show(self, record: Mapping[str, Any]) -> None:
        """Print the errors, times and memory of a demonstration's record."""
        table = Table(
            title=f"Error on {report.count(record['rows_held_out'])} rows that no fit has seen",
            title_justify="left",
        )
        for heading in ("model", "error", "relative gap", "fit"):
            table.add_column(heading, justify="left" if heading == "model" else "right")
        for name, label in (("straight", "straight (linear)"), ("curved", "curved (rbf)")):
            table.add_row(
                label,
                report.percent(record["error"][name]),
                format_gap(record[name]["relative_gap"]),
                report.seconds(self.seconds[f"fit {name}"]),
            )
        table.add_row("best possible, from the formula", report.percent(record["error"]["bayes"]))
        Console(highlight=False).print(table)
        facts = {
            "data": "made up (see above)",
            "time": ", ".join(f"{name} {report.seconds(s)}" for name, s in self.seconds.items()),
            "peak memory": f"{report.size(record['peak_pss_bytes'])}, all processes together",
        }
        if self.keep is None:
            facts["left behind"] = "nothing; `bigscreen demo --keep FOLDER` keeps data and models"
            facts["next"] = "bigscreen ingest --help, for your own file"
        else:
            model, data = self.folder / "curved.bsm", self.holdout.path
            facts["kept in"] = str(self.folder)
            facts["model"] = str(model)
            facts["next"] = f"bigscreen predict {model} {data} {self.folder / 'predictions.csv'}"
        report.table("Demo", facts)


@contextmanager
def _folder(keep: str | Path | None) -> Iterator[Path]:
    """Make a folder to work in: temporary, or new and kept unless the work fails."""
    if keep is None:
        with scratch("demo") as made:
            yield made
        return
    folder = Path(keep)
    try:
        folder.mkdir()
    except FileExistsError:
        raise InputError(f"{keep} exists; give --keep a folder that does not") from None
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _check_disk(folder: Path, rows: int, landmarks: int) -> None:
    """Refuse a demonstration for which the folder's disk has too little room."""
    # Rows are spilled and then stored, next to the stored features.
    wanted = int(rows * 4 * (3 * synthetic.SUSY_FEATURES + landmarks))
    free = shutil.disk_usage(folder).free
    if wanted > free:
        raise InputError(
            f"the demo needs about {report.size(wanted)} in {folder} and {report.size(free)} are "
            "free; give fewer --rows or --landmarks, or set TMPDIR to a folder on a larger disk"
        )


class _FeatureBar:
    """Shows a progress bar of the stored features, on terminals only."""

    def __init__(self) -> None:
        """Make the bar, which is hidden if standard error is no terminal."""
        console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description:<8}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("features", total=None)

    def __enter__(self) -> Self:
        """Start the display of the bar."""
        self._bar.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._bar.stop()

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Show an event of a fit: move the bar if it is the progress of stored features."""
        if event["event"] == "progress":
            self._bar.update(self._task, completed=event["done"], total=event["total"])


class _FitShow:
    """Shows events of a fit: a bar while features are stored, then `report.FitReport`'s line."""

    def __init__(self) -> None:
        """Begin with nothing shown; ``_show`` is the bar or the line, once there is one."""
        self._open = ExitStack()
        self._show: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        """Close the bar or line that is shown."""
        self._open.close()

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Show an event of a fit: on a bar while features are stored, else on a line."""
        kind = _FeatureBar if event.get("phase") == "features" else report.FitReport
        if not isinstance(self._show, kind):
            # (Only one of them can write to the terminal at a time.)
            self._open.close()
            self._show = self._open.enter_context(kind())
        self._show(event)
