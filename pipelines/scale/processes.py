"""The memory that `bigscreen plan` predicts for each process of a fit on workers, and the peaks.

    python -m pipelines.scale.processes
    python -m pipelines.scale.processes --kill 1 --only "1,000,000 rows, m=300, stored, 1200 MiB"

Six fits on two worker processes of this machine, each in the memory that it is allowed, most of
them in less than their rows or features take. Every row is made up. The plan is made first, then
the same options are fitted, and the memory (PSS) of every process is read five times a second.
Required: no process holds more than the plan says, and every fit ends. With ``--kill N``, N workers
are killed, one after the other, once the solve has begun. The case
"5,000,000 rows" needs 20 GB of disk, and runs only where it is named.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from bigscreen.data.synthetic import susy_like
from bigscreen.intake.ingest import ingest
from pipelines.bench import common

WORKERS = 2
LOOK_SECONDS = 0.2


class Case(NamedTuple):
    """A case: how its rows are made, how many, and the options of its fit."""

    rows: Callable[[int], Any]
    n: int
    options: tuple[object, ...]


SUSY = ("--gamma", 1 / 32, "--C", 1.25)
STORED = ("--landmarks", 300, "--features", "stored", *SUSY)
CASES = {
    **{
        f"1,000,000 rows, m=300, stored, {mib} MiB": Case(
            susy_like, 1_000_000, (*STORED, "--memory", f"{mib}MiB")
        )
        for mib in (1200, 1600, 2048)
    },
    "1,000,000 rows, m=300, recomputed": Case(
        susy_like,
        1_000_000,
        ("--landmarks", 300, "--features", "recomputed", "--memory", "1200MiB", *SUSY),
    ),
    "1,000,000 rows, linear": Case(
        susy_like, 1_000_000, ("--kernel", "linear", "--memory", "1200MiB")
    ),
    "20,000 rows, exact": Case(susy_like, 20_000, ("--exact", "--memory", "2GiB", *SUSY)),
}
LARGE = {
    "5,000,000 rows, m=1000, stored, 4 GiB": Case(
        susy_like,
        5_000_000,
        ("--landmarks", 1000, "--features", "stored", "--memory", "4GiB", *SUSY),
    )
}


def main() -> None:
    """Ingest, plan and fit every case; print the table."""
    about = "What plan says of each process beside what it takes."
    parser = common.arguments(about, [*CASES, *LARGE])
    parser.set_defaults(only=list(CASES))
    parser.add_argument("--scale", type=float, default=1.0, metavar="S", help="rows times S [1]")
    parser.add_argument("--kill", type=int, default=0, metavar="N", help="workers to kill [0]")
    given = parser.parse_args()
    results: dict[str, dict[str, Any]] = {}
    rows = []
    with common.work_folder(given.work) as work:
        for name in given.only:
            found = results[name] = one({**CASES, **LARGE}[name], work, given.scale, given.kill)
            pairs = zip(found["planned"], found["peaks"], strict=True)
            sizes = [f"{a / 2**20:,.0f} / {b / 2**20:,.0f} MiB" for a, b in pairs]
            rows.append((name, *sizes, common.verdict(found["within"]), found["killed"]))
    heads = ("fit", "coordinator, planned / measured", "a worker, at most", "no more", "killed")
    common.show("Plan beside measured, by process (made-up rows)", heads, rows)
    common.save(given.out, "processes", {"scale": given.scale, "results": results})


def one(case: Case, work: Path, scale: float, kill: int = 0) -> dict[str, Any]:
    """Plan one case, and measure its peaks."""
    n = max(1000, int(case.n * scale))
    store, model = work / f"rows-{n}.store", work / "model.bsm"
    if not store.exists():
        ingest(case.rows(n), store)
    options = *case.options, "--workers", WORKERS
    plan = common.bigscreen("plan", store, *options)
    own = plan["peak_bytes"] - WORKERS * plan["worker_bytes"]
    peaks, killed = watched(("fit", store, model, "--overwrite", *options), kill)
    return {
        "rows": n,
        "options": list(map(str, options)),
        "solver": plan["solver"],
        "resident": plan["resident"],
        "planned": [own, plan["worker_bytes"]],
        "peaks": peaks,
        "within": peaks[0] <= own and peaks[1] <= plan["worker_bytes"],
        "killed": killed,
    }


def watched(words: tuple[object, ...], kill: int) -> tuple[list[int], int]:
    """Watch a command: the peaks of its process and its largest worker; how many were killed."""
    code = "from bigscreen.cli import main; main(prog_name='bigscreen')"
    line = [sys.executable, "-c", code, *map(str, words)]
    print("$", "bigscreen", *line[3:], flush=True)
    told = Path(str(words[2]) + ".jsonl")
    told.unlink(missing_ok=True)
    line += ["--log", str(told)]
    peaks, killed = [0, 0], 0
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as ran:
        while ran.poll() is None:
            for process in workers_of(ran.pid):
                note(peaks, 1, process)
            note(peaks, 0, psutil.Process(ran.pid))
            if killed < kill and solving(told):
                found = workers_of(ran.pid)
                if len(found) == WORKERS:
                    found[0].kill()
                    killed += 1
            time.sleep(LOOK_SECONDS)
        if ran.returncode:
            assert ran.stderr is not None
            sys.exit(f"error: {' '.join(line)} failed:\n{ran.stderr.read()}")
    return peaks, killed


def workers_of(number: int) -> list[psutil.Process]:
    """Find the worker processes of a command."""
    try:
        found = psutil.Process(number).children(recursive=True)
        return [one for one in found if "spawn_main" in " ".join(one.cmdline())]
    except psutil.Error:
        return []


def note(peaks: list[int], place: int, process: psutil.Process) -> None:
    """Update the largest memory of a process."""
    with contextlib.suppress(psutil.Error):  # it has just ended
        peaks[place] = max(peaks[place], process.memory_full_info().pss)


def solving(told: Path) -> bool:
    """Whether a fit's log says that its solve has begun."""
    try:
        events = [json.loads(line) for line in told.read_text().splitlines()]
    except (OSError, ValueError):
        return False
    return any(one.get("phase") == "solve" or one.get("event") == "pass" for one in events)


if __name__ == "__main__":
    main()
