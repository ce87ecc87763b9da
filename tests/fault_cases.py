"""Random faults in real processes: every fit ends with the same bits, or in one sentence.

    python tests/fault_cases.py --cases 100 --seed 0

Each case is a small fit on two worker processes (started by the command, or those of a scheduler of
their own) in which something is killed, terminated, interrupted or stopped at a random moment. It
must end with the model of an undisturbed fit, bit for bit; or in one sentence, without a traceback,
and then come to that model with ``--resume`` (or anew, where nothing was kept). Prints the counts,
and every case that did not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from bigscreen.intake.ingest import ingest
from bigscreen.model.model import Model

ROWS, HANGS = 20_000, 400.0
JOBS = {
    "newton": "--landmarks 150 --gamma .3 --C 10 --features stored --solver newton --tol 1e-9 "
    "--max-iter 8",
    "recomputed": "--landmarks 60 --gamma .3 --features recomputed --solver newton --tol 1e-9 "
    "--max-iter 8",
    "block": "--exact --gamma .3 --solver block --tol 1e-2 --cache 20MB",
}
BIGSCREEN = """
from bigscreen.fit import monitor
from bigscreen.fleet import workers
from bigscreen.cli import main
monitor.CHECKPOINT_SECONDS, workers.FROZEN_SECONDS = {every}, 4.0
main(prog_name="bigscreen")
"""
ENDS = {2, 128 + signal.SIGINT, 128 + signal.SIGTERM}
FAULTS = {
    "worker": ("KILL", "KILL", "TERM", "STOP", "PAUSE"),
    "workers": ("KILL", "TERM", "STOP"),
    "coordinator": ("KILL", "TERM", "INT", "INT INT", "PAUSE"),
    "scheduler": ("KILL", "TERM", "PAUSE"),
}


@dataclass
class Case:
    """What is done to a fit, and when."""

    job: str
    outer: bool
    victim: str
    fault: str
    moment: float
    every: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="bigscreen-faults-") as folder:
        world = World(Path(folder))
        counts: Counter[str] = Counter()
        failed = []
        for number in range(options.cases):
            case = drawn(chance, world.seconds)
            ended, said = world.run(case)
            counts[ended] += 1
            print(f"{number + 1}: {case} -> {ended}", flush=True)
            if ended.startswith("WRONG"):
                failed.append({**vars(case), "ended": ended, "said": said})
    print(json.dumps({"cases": options.cases, "counts": counts, "failed": failed}, indent=1))
    return int(bool(failed))


def drawn(chance: random.Random, seconds: dict[str, float]) -> Case:
    """A random case."""
    job, outer = chance.choice(sorted(JOBS)), chance.random() < 0.3
    victims = ["worker", "worker", "workers", "coordinator"] + ["scheduler"] * outer
    victim = chance.choice(victims)
    moment = chance.uniform(0.3, 1.1 * seconds[job])
    every = chance.choice((-1.0, 30.0))
    return Case(job, outer, victim, chance.choice(FAULTS[victim]), moment, every)


class World:
    """A store, and what undisturbed fits of it give."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        rng = np.random.default_rng(0)
        X = rng.normal(size=(ROWS, 8))
        y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * rng.normal(size=ROWS) > 0
        small = X[:4000], y[:4000].astype(int)
        ingest((X, y.astype(int)), folder / "rows.store")
        ingest(small, folder / "few.store")
        self.expected, self.seconds = {}, {}
        for job in JOBS:
            began = time.monotonic()
            code, said = self._wait(self._fit(job, "whole.bsm", 30.0, "--workers 2"))
            assert code == 0, said
            self.seconds[job] = time.monotonic() - began
            self.expected[job] = bits(folder / "whole.bsm")
            (folder / "whole.bsm").unlink()

    def run(self, case: Case) -> tuple[str, str]:
        """How a case ends, and what was said."""
        cluster: list[subprocess.Popen[str]] = []
        try:
            where = "--workers 2"
            if case.outer:
                cluster, address = started(self.folder)
                where = f"--scheduler {address}"
            fit = self._fit(case.job, "m.bsm", case.every, where)
            time.sleep(case.moment)
            stopped = disturb(case, fit, cluster)
            code, said = self._wait(fit)
            for process in stopped:
                if process.is_running():
                    process.send_signal(signal.SIGCONT)
            return self._judged(case, code, said), said
        finally:
            for process in cluster:
                end_all(process.pid)
                process.wait()
            for left in ("m.bsm", "m.bsm.work"):
                path = self.folder / left
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    def _judged(self, case: Case, code: int | None, said: str) -> str:
        if code is None:
            return "WRONG: it hangs"
        if "Traceback" in said:
            return "WRONG: a traceback"
        if code == 0:
            same = bits(self.folder / "m.bsm") == self.expected[case.job]
            return "the same bits" if same else "WRONG: other bits"
        silent = code in (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT)  # not to be caught
        lines = [line for line in said.splitlines() if line.startswith(("error:", "interrupted"))]
        if not silent and (code not in ENDS or len(lines) != 1):
            return f"WRONG: exit {code}, {len(lines)} sentences"
        work = self.folder / "m.bsm.work"
        resumed = (work / "problem.json").exists()
        how = "--threads 2" + (" --resume" if resumed else " --overwrite")
        code, again = self._wait(self._fit(case.job, "m.bsm", 30.0, how))
        if code != 0 or bits(self.folder / "m.bsm") != self.expected[case.job]:
            return f"WRONG: exit {code} or other bits after resuming ({again[-300:]})"
        end = "killed" if silent else "one sentence"
        return f"{end}, then the same bits " + ("resumed" if resumed else "anew")

    def _fit(self, job: str, model: str, every: float, where: str) -> subprocess.Popen[str]:
        store = "few.store" if job == "block" else "rows.store"
        command = [sys.executable, "-c", BIGSCREEN.format(every=every), "fit", store, model]
        return subprocess.Popen(
            [*command, *JOBS[job].split(), *where.split()],
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def _wait(self, fit: subprocess.Popen[str]) -> tuple[int | None, str]:
        try:
            said = fit.communicate(timeout=HANGS)[1]
        except subprocess.TimeoutExpired:
            end_all(fit.pid)
            return None, fit.communicate()[1]
        return fit.returncode, said


def started(folder: Path) -> tuple[list[subprocess.Popen[str]], str]:
    """A scheduler and two workers with nannies."""
    dask = [sys.executable, "-m"]
    scheduler = subprocess.Popen(
        [*dask, "distributed.cli.dask_scheduler", "--host", "tcp://127.0.0.1", "--port", "0"]
        + ["--no-dashboard"],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert scheduler.stderr is not None
    address = next(line.split()[-1] for line in scheduler.stderr if "Scheduler at" in line)
    workers = [
        subprocess.Popen(
            [*dask, "distributed.cli.dask_worker", address, "--nthreads", "1", "--no-dashboard"]
            + ["--host", "127.0.0.1", "--local-directory", str(folder)],
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        for _ in range(2)
    ]
    return [scheduler, *workers], address


def disturb(
    case: Case, fit: subprocess.Popen[str], cluster: list[subprocess.Popen[str]]
) -> list[psutil.Process]:
    """Do it; the processes that are stopped and to be woken in the end."""
    victims = [psutil.Process(fit.pid)] if fit.poll() is None else []
    if case.victim == "scheduler":
        victims = [psutil.Process(cluster[0].pid)]
    elif case.victim != "coordinator":
        above = [process.pid for process in cluster[1:]] if case.outer else [fit.pid]
        victims = [worker for pid in above for worker in workers_below(pid)]
        victims = victims[: 1 if case.victim == "worker" else 2]
    for name in case.fault.split():
        for process in victims:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(
                    signal.SIGSTOP if name == "PAUSE" else getattr(signal, f"SIG{name}")
                )
        time.sleep(0.5)
    if case.fault == "PAUSE":
        time.sleep(2.0)
        for process in victims:
            if process.is_running():
                process.send_signal(signal.SIGCONT)
    return victims if case.fault == "STOP" else []


def workers_below(pid: int) -> list[psutil.Process]:
    """Worker processes that a process has started."""
    try:
        children = psutil.Process(pid).children(recursive=True)
        return [child for child in children if "spawn_main" in " ".join(child.cmdline())]
    except psutil.Error:
        return []


def end_all(pid: int) -> None:
    """Kill a process that was started here, and all below it."""
    try:
        family = [*psutil.Process(pid).children(recursive=True), psutil.Process(pid)]
    except psutil.NoSuchProcess:
        return
    for process in family:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def bits(path: Path) -> bytes:
    """All that a model's predictions depend on."""
    model = Model.load(path)
    rows = model.landmarks
    held = rows if isinstance(rows, np.ndarray) else rows.toarray()
    return model.coef.tobytes() + model.intercept.tobytes() + held.tobytes()


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(Path(__file__).parent.parent))
    sys.exit(main())
