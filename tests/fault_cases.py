"""Random faults in real processes: every command ends with the same bits, or in one sentence.

    python tests/fault_cases.py --cases 100 --seed 0 [--only ingest,predict] [--victims disk,chunk]
    python tests/fault_cases.py --minutes 30 --seed 7
    python tests/fault_cases.py --cases 60 --victims start:2,scheduler:1,worker,coordinator,chunk

Each case is a small fit, path, search or prediction on two worker processes (started by the
command, or those of a scheduler of their own), or an ingest, in which something is killed,
terminated, interrupted, stopped or made ten times slower at a random moment; Ctrl-C comes while
workers start; the scheduler freezes for good; or a worker comes late, the disk fills, a byte of a
chunk is turned over, the client's connection is cut; a worker is retired, or both, or a new one
comes and both old ones are retired. It must end with what an undisturbed run writes, bit for bit;
or in one sentence, neither empty nor with a traceback, and then come to that with ``--resume`` (or
anew, where nothing was kept; an ingest goes on by itself). A run that is not over after ten times
its usual time (at least `HANGS` seconds) hangs. No process of it may be left, and no temporary
folder once the next command has run. Prints the counts, and every case that did not; also when
Ctrl-C ends it. Disks fill where the user may mount one. A victim with a colon and a number is drawn
this many times as often. With ``--minutes`` it is a soak test: one case after the other for this
time (inf: until Ctrl-C).
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import pyarrow
from distributed import Client
from pyarrow import parquet

from bigscreen.files.scratch import scratch
from bigscreen.intake.ingest import ingest
from bigscreen.model.model import Model
from bigscreen.model.solved_path import SolvedPath

sys.path.insert(0, str(Path(__file__).parent / "support"))

from cluster_processes import start_scheduler

ROWS, HANGS, LINGERS = 20_000, 400.0, 30.0
DISK = 1 << 30
ON_LANDMARKS = "--landmarks 60 --gamma .3"


class Job(NamedTuple):
    """A command: its words before and after the file that it writes."""

    words: str
    out: str
    options: str = ""
    workers: bool = True

    @property
    def kept(self) -> str:
        """The options with which an interrupted run continues."""
        return self.out + (".ingest.wip/journal.jsonl" if self.ingests else ".work/problem.json")

    @property
    def ingests(self) -> bool:
        """Whether the command continues an interrupted run without options."""
        return self.words.startswith("ingest")


JOBS = {
    "newton": Job(
        "fit rows.store",
        "m.bsm",
        "--landmarks 150 --gamma .3 --C 10 --features stored --solver newton --tol 1e-9 "
        "--max-iter 8",
    ),
    "recomputed": Job(
        "fit rows.store",
        "m.bsm",
        f"{ON_LANDMARKS} --features recomputed --solver newton --tol 1e-9 --max-iter 8",
    ),
    "block": Job(
        "fit few.store", "m.bsm", "--exact --gamma .3 --solver block --tol 1e-2 --cache 20MB"
    ),
    "ingest": Job("ingest rows.csv", "r.store", "--scale standard --holdout .2", workers=False),
    "ingest on workers": Job("ingest rows.csv", "r.store", "--scale standard --holdout .2"),
    "gzip": Job("ingest rows.csv.gz", "r.store", "--scale standard", workers=False),
    "parquet": Job("ingest rows.parquet", "r.store", "--label x8 --scale standard", workers=False),
    "parquet on workers": Job(
        "ingest rows.parquet", "r.store", "--label x8 --scale standard --holdout .2"
    ),
    "predict": Job("predict exact.bsm many.store", "p.npy", "--scores"),
    "path": Job("path rows.store", "p.bsp", f"{ON_LANDMARKS} --C .1:10:4 --folds 2 --tol 1e-4"),
    "exact path": Job("path few.store", "p.bsp", "--exact --gamma .3 --C .1:10:5 --tol 1e-3"),
    "tune": Job(
        "tune few.store",
        "t.bsm",
        "--gamma .1,.3,1 --C .1,1,10 --landmarks 60 --folds 3 --tol 1e-3",
    ),
}
BIGSCREEN = """
import os, signal
# (What is imported here is not imported under the command's own handlers.)
signal.signal(signal.SIGINT, lambda *_: os.write(2, b"interrupted\\n") and os._exit(130))
from dataclasses import replace
from functools import partial
from bigscreen.fit import monitor
from bigscreen.fleet import connecting, local
from bigscreen.fleet.tuning import CLUSTER
from bigscreen.intake import ingest as ingest_module
from bigscreen.intake.tuning import IngestTuning
from bigscreen.cli import main
monitor.MONITOR = monitor.MonitorTuning(checkpoint_seconds={every})
tuning = replace(CLUSTER, frozen_seconds={frozen}, look_seconds=0.5)
connecting.connect = partial(connecting.connect, tuning=tuning)
local.local_cluster = partial(local.local_cluster, tuning=tuning)
ingest_module.TUNING = IngestTuning(
    piece_bytes=1 << 18, checkpoint_seconds={every}, bucket_bytes=1 << 20, part_bytes=1 << 19
)
signal.signal(signal.SIGINT, signal.default_int_handler)
main(prog_name="bigscreen")
"""
ENDS = {2, 128 + signal.SIGINT, 128 + signal.SIGTERM}
FAULTS = {
    "start": ("INT", "INT INT", "TERM"),
    "worker": ("KILL", "KILL", "TERM", "STOP", "PAUSE", "SLOW"),
    "workers": ("KILL", "TERM", "STOP"),
    "coordinator": ("KILL", "TERM", "INT", "INT INT", "PAUSE"),
    "scheduler": ("KILL", "TERM", "PAUSE"),
    "frozen": ("STOP",),
    "late": ("JOIN",),
    "retired": ("ONE", "BOTH", "SWAP"),
    "connection": ("CUT",),
    "disk": ("FULL",),
    "chunk": ("FLIP",),
}
CLUSTERS = ("scheduler", "frozen", "late", "retired", "connection")
ALONE = ("coordinator", "disk", "chunk")
"""Victims that need a scheduler of their own, and victims of commands without workers."""
PATIENCE = 5
"""Seconds that a frozen scheduler has to answer, given by ``--scheduler-timeout``."""


@dataclass
class Case:
    """One random case: the fault, the command it is done to, and when."""

    job: str
    outer: bool
    victim: str
    fault: str
    moment: float
    every: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--minutes", type=float, help="for so long, however many cases that is")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(JOBS), metavar="JOB,JOB,...")
    parser.add_argument("--victims", default=",".join(FAULTS), metavar="VICTIM,VICTIM,...")
    parser.add_argument("--frozen", type=float, default=4.0, help="after how many seconds silent")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # with a summary, as Ctrl-C
    jobs = options.only.split(",")
    parts = [victim.partition(":") for victim in options.victims.split(",")]
    victims = [name for name, _, times in parts for _ in range(int(times or 1))]
    with tempfile.TemporaryDirectory(prefix="bigscreen-faults-") as folder:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "none", folder]
        if "disk" in victims and subprocess.run(mount).returncode:
            victims = [victim for victim in victims if victim != "disk"]
        try:
            return tried(World(Path(folder), jobs, options.frozen), options, victims)
        finally:
            if "disk" in victims:
                subprocess.run(["umount", "--lazy", folder], check=True)


def tried(world: World, options: argparse.Namespace, victims: list[str]) -> int:
    """Run the cases; 1 if one of them ended as none should."""
    chance = random.Random(options.seed)
    counts: Counter[str] = Counter()
    failed = []
    began = time.monotonic()
    with suppress(KeyboardInterrupt):
        for number in itertools.count(1):
            case = drawn(chance, world.seconds, victims)
            ended, said = world.run(case)
            counts[ended] += 1
            print(f"{number}: {case} -> {ended}", flush=True)
            if ended.startswith("WRONG"):
                print(said[-2000:], flush=True)
                failed.append({**vars(case), "ended": ended, "said": said})
            over = (time.monotonic() - began) / 60
            if number == options.cases if options.minutes is None else over >= options.minutes:
                break
    print(json.dumps({"cases": counts.total(), "counts": counts, "failed": failed}, indent=1))
    return int(bool(failed))


def drawn(chance: random.Random, seconds: dict[str, float], victims: list[str]) -> Case:
    """Draw a random case."""
    job = chance.choice(sorted(seconds))
    outer = chance.random() < 0.3 and JOBS[job].workers
    if not any(victim in ALONE for victim in victims):
        job = chance.choice([name for name in sorted(seconds) if JOBS[name].workers])
    fit = [victim for victim in victims if JOBS[job].workers or victim in ALONE]
    victim = chance.choice(fit)
    outer = (outer or victim in CLUSTERS) and victim != "start"
    # (Most commands are over sooner than the first one was.)
    share = 0.5 if victim in ("start", "frozen") else 1.1
    moment = chance.uniform(0.3, share * seconds[job])
    every = chance.choice((-1.0, 30.0))
    return Case(job, outer, victim, chance.choice(FAULTS[victim]), moment, every)


class World:
    """The files that commands read, and the results that they write undisturbed."""

    def __init__(self, folder: Path, jobs: list[str], frozen: float) -> None:
        self.folder, self.frozen = folder, frozen
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        tempfile.tempdir = str(self.temporary)
        rng = np.random.default_rng(0)
        X = rng.normal(size=(ROWS, 8))
        y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * rng.normal(size=ROWS) > 0
        small = X[:4000], y[:4000].astype(int)
        ingest((X, y.astype(int)), folder / "rows.store")
        ingest(small, folder / "few.store")
        ingest((np.tile(X, (10, 1)), np.tile(y.astype(int), 10)), folder / "many.store")
        table = np.tile(np.column_stack([X, y]), (5, 1))
        np.savetxt(folder / "rows.csv", table, delimiter=",")
        text = (folder / "rows.csv").read_bytes()
        (folder / "rows.csv.gz").write_bytes(gzip.compress(text, 1))
        columns = {f"x{k}": column for k, column in enumerate(table.T)}
        parquet.write_table(pyarrow.table(columns), folder / "rows.parquet", row_group_size=5000)
        exact = self._start("fit few.store exact.bsm --exact --gamma .3 --tol 1e-2", 30.0)
        code, said = self._wait(exact)
        assert code == 0, said
        self.expected, self.seconds = {}, {}
        for job in jobs:
            began = time.monotonic()
            where = "--workers 2" if JOBS[job].workers else ""
            code, said = self._wait(self._run(job, 30.0, where))
            assert code == 0, said
            self.seconds[job] = time.monotonic() - began
            self.expected[job] = self._bits(job)
            self._clear(job)

    def run(self, case: Case) -> tuple[str, str]:
        """Run a case; returns how it ended, and the output."""
        cluster: list[subprocess.Popen[str]] = []
        undo = ExitStack()
        try:
            where = "--workers 2" if JOBS[case.job].workers else ""
            relay = None
            if case.outer:
                cluster, address = started(self.folder, 1 if case.victim == "late" else 2)
                if case.victim == "connection":
                    relay = Relay(address)
                    undo.callback(relay.close)
                    address = relay.address
                where = f"--scheduler {address}"
                if case.victim == "frozen":
                    where += f" --scheduler-timeout {PATIENCE}s"
            command = self._run(case.job, case.every, where)
            time.sleep(case.moment)
            family, signalled, alive = below(command.pid), time.monotonic(), command.poll() is None
            if relay is not None:
                relay.cut()
            elif case.victim == "late":
                cluster.append(worker(self.folder, address))
            elif case.victim == "retired":
                retire(case, self.folder, address, cluster)
            elif case.victim == "disk":
                undo.callback(self._fill())
            elif case.victim == "chunk":
                undo.callback(self._flip(case))
            else:
                undo.callback(disturb(case, command, cluster))
            code, said = self._wait(command, max(HANGS, 10 * self.seconds[case.job]))
            undo.close()
            went_on = alive and time.monotonic() - signalled > LINGERS
            ended = self._judged(case, code, said)
            if case.victim == "start" and code == 0 and went_on:
                ended = "WRONG: the signal was dropped"
            _, stay = psutil.wait_procs(family, timeout=LINGERS)
            if stay and not ended.startswith("WRONG"):
                ended = f"WRONG: {len(stay)} processes are left"
            if not ended.startswith("WRONG") and (left := self._left()):
                ended = f"WRONG: {', '.join(left)} is left"
            return ended, said
        finally:
            undo.close()
            for process in cluster:
                end_all(process.pid)
                process.wait()
            self._clear(case.job)

    def _judged(self, case: Case, code: int | None, said: str) -> str:
        job = JOBS[case.job]
        if code is None:
            return "WRONG: it hangs"
        if "Traceback" in said:
            return "WRONG: a traceback"
        if code == 0:
            same = self._bits(case.job) == self.expected[case.job]
            return "the same bits" if same else "WRONG: other bits"
        silent = code in (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT)  # not to be caught
        known = ("error:", "interrupted", "stopped:")
        lines = [line for line in said.splitlines() if line.startswith(known)]
        empty = [line for line in lines if not line.partition(":")[2].strip()]
        if empty and lines[0].startswith(("error:", "stopped:")):
            return "WRONG: an empty sentence"
        if not silent and (code not in ENDS or len(lines) != 1):
            return f"WRONG: exit {code}, {len(lines)} sentences"
        resumed = (self.folder / job.kept).exists()
        how = "--threads 2"
        if not resumed or (self.folder / job.out).exists():
            how += " --overwrite"
        if resumed and not job.ingests:
            how += " --resume"
        code, again = self._wait(self._run(case.job, 30.0, how))
        if code == 2 and case.victim == "chunk" and len(again.splitlines()) == 1:
            how = "--threads 2 --overwrite"  # what was kept is what was damaged
            code, again = self._wait(self._run(case.job, 30.0, how))
        if code != 0 or self._bits(case.job) != self.expected[case.job]:
            return f"WRONG: exit {code} or other bits after {how} ({again[-300:]})"
        end = "killed" if silent else "one sentence"
        return f"{end}, then the same bits " + ("resumed" if resumed else "anew")

    def _left(self) -> list[str]:
        """Return the temporary folders that are left after a command that clears them."""
        with scratch("judge"):
            pass
        return sorted(path.name for path in self.temporary.iterdir())

    def _fill(self) -> Callable[[], None]:
        """Fill the disk; returns a function that frees it again."""
        path = self.folder / "filler"
        with suppress(OSError), open(path, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, psutil.disk_usage(str(self.folder)).free)
        with suppress(OSError), open(path, "ab") as file:
            while True:
                file.write(bytes(4096))
                file.flush()
        return lambda: path.unlink(missing_ok=True)

    def _flip(self, case: Case) -> Callable[[], None]:
        """Change a byte of a file that the command reads or keeps; returns what undoes it."""
        job, chance = JOBS[case.job], random.Random(case.moment)
        given = {self.folder / word for word in job.words.split() if "." in word}
        kept = Path(f"{self.folder / job.out}.work")
        files = [
            file
            for place in (*given, kept)
            for file in (place.rglob("*") if place.is_dir() else [])
            if file.is_file() and not file.name.endswith((".json", ".jsonl"))
        ]
        if not files:
            return lambda: None
        path = chance.choice(sorted(files))
        place = chance.randrange(max(path.stat().st_size, 1))

        def turn() -> None:
            with suppress(FileNotFoundError), open(path, "r+b") as file:
                file.seek(place)
                if byte := file.read(1):
                    file.seek(place)
                    file.write(bytes([byte[0] ^ 255]))

        turn()
        return turn if kept not in path.parents else lambda: None

    def _run(self, name: str, every: float, where: str) -> subprocess.Popen[str]:
        job = JOBS[name]
        return self._start(f"{job.words} {job.out} {job.options} {where}", every)

    def _start(self, command: str, every: float) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [
                sys.executable,
                "-c",
                BIGSCREEN.format(every=every, frozen=self.frozen),
                *command.split(),
            ],
            cwd=self.folder,
            env={**os.environ, "TMPDIR": str(self.temporary)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def _wait(self, command: subprocess.Popen[str], most: float = HANGS) -> tuple[int | None, str]:
        try:
            said = command.communicate(timeout=most)[1]
        except subprocess.TimeoutExpired:
            end_all(command.pid)
            return None, command.communicate()[1]
        except KeyboardInterrupt:
            end_all(command.pid)
            raise
        return command.returncode, said

    def _bits(self, name: str) -> bytes:
        return bits(self.folder / JOBS[name].out)

    def _clear(self, name: str) -> None:
        stem = JOBS[name].out.partition(".")[0]
        for path in [*self.folder.glob(f"{stem}.*"), *self.folder.glob(f"{stem}-holdout.*")]:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def started(folder: Path, workers: int) -> tuple[list[subprocess.Popen[str]], str]:
    """A scheduler and workers with nannies."""
    scheduler, address = start_scheduler(start_new_session=True)
    return [scheduler, *(worker(folder, address) for _ in range(workers))], address


def worker(folder: Path, address: str) -> subprocess.Popen[str]:
    """A worker with a nanny."""
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "distributed.cli.dask_worker",
            address,
            "--nthreads",
            "1",
            "--no-dashboard",
            "--host",
            "127.0.0.1",
            "--local-directory",
            str(folder),
        ],
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def retire(case: Case, folder: Path, address: str, cluster: list[subprocess.Popen[str]]) -> None:
    """Retire a worker, or both; or let a new one come before both are retired."""
    with suppress(OSError), Client(address, timeout=10, set_as_default=False) as client:
        workers = sorted(client.nthreads())
        if case.fault == "SWAP":
            cluster.append(worker(folder, address))
            client.wait_for_workers(len(workers) + 1, timeout=20)
        client.retire_workers(workers[:1] if case.fault == "ONE" else workers)


class Relay:
    """A proxy between a client and its scheduler that can cut all connections."""

    def __init__(self, address: str) -> None:
        host, port = address.rpartition("/")[2].split(":")
        self._to = host, int(port)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._server.getsockname()[1]}"
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """End every connection; new ones are taken."""
        for end in self._open:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Take no more."""
        self._server.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, far = self._server.accept()[0], socket.create_connection(self._to)
                self._open += [near, far]
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self._pass_on, args=ends, daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def disturb(
    case: Case, command: subprocess.Popen[str], cluster: list[subprocess.Popen[str]]
) -> Callable[[], None]:
    """Do the fault of a case; returns what to do at its end, such as to wake processes."""
    victims = [psutil.Process(command.pid)] if command.poll() is None else []
    if case.victim in ("scheduler", "frozen"):
        victims = [psutil.Process(cluster[0].pid)]
    elif case.victim not in ("coordinator", "start"):
        above = [process.pid for process in cluster[1:]] if case.outer else [command.pid]
        victims = [worker for pid in above for worker in workers_below(pid)]
        victims = victims[: 1 if case.victim == "worker" else 2]
    if case.fault == "SLOW":
        over = threading.Event()
        threading.Thread(target=slowed, args=(victims, over), daemon=True).start()
        return over.set
    for name in case.fault.split():
        number = signal.SIGSTOP if name == "PAUSE" else getattr(signal, f"SIG{name}")
        if case.victim == "start" and name == "INT":  # as a terminal sends it
            with suppress(ProcessLookupError):
                os.killpg(command.pid, number)
            victims = []
        for process in victims:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        time.sleep(0.5)
    if case.fault == "PAUSE":
        time.sleep(2.0)
        awake(victims)
    return lambda: awake(victims)


def slowed(victims: list[psutil.Process], over: threading.Event) -> None:
    """Let processes run a tenth of the time."""
    while not over.wait(0.03):
        for process in victims:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGSTOP)
        over.wait(0.27)
        awake(victims)


def awake(victims: list[psutil.Process]) -> None:
    """Let stopped processes go on."""
    for process in victims:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGCONT)


def below(pid: int) -> list[psutil.Process]:
    """Return all child processes of a process, and their children."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


def workers_below(pid: int) -> list[psutil.Process]:
    """Return the worker processes that a process has started."""
    try:
        return [child for child in below(pid) if "spawn_main" in " ".join(child.cmdline())]
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
    """Return the content of stores and predictions; of models what predictions depend on."""
    if path.suffix == ".npy":
        return path.read_bytes()
    if path.suffix == ".store":
        folders = (path, path.with_name(f"{path.stem}-holdout.store"))
        found = (file for folder in folders for file in sorted(folder.rglob("*")))
        return b"".join(file.name.encode() + file.read_bytes() for file in found if file.is_file())
    if path.suffix == ".bsp":
        solved = SolvedPath.load(path)
        return b"".join(model_bits(solved.model(k)) for k in range(len(solved)))
    return model_bits(Model.load(path))


def model_bits(model: Model) -> bytes:
    """Return all that the predictions of a model depend on."""
    rows = model.landmarks
    held = rows if isinstance(rows, np.ndarray) else rows.toarray()
    return model.coef.tobytes() + model.intercept.tobytes() + held.tobytes()


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(Path(__file__).parent.parent))
    sys.exit(main())
