"""Describe the workers of a cluster, and what would prevent or slow down a fit on them."""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from distributed import Client, Security
from distributed.worker import Worker

from bigscreen.errors import reason_of
from bigscreen.files.remote import RemotePath
from bigscreen.fleet.connecting import (
    ANSWER_SECONDS,
    SAME_PACKAGES,
    await_worker,
    make_client,
    pick_versions,
)
from bigscreen.fleet.inline import usable_processors
from bigscreen.fleet.memory import machine_memory
from bigscreen.fleet.tuning import CLUSTER
from bigscreen.fleet.worker import WORKER_ENVIRONMENT, file_digests, source_digest
from bigscreen.fleet.workers import first_difference


@dataclass
class WorkerSurvey:
    """The description of one worker: facts, faults and remarks.

    Attributes
    ----------
    address : str
    facts : dict
        JSON-able: host, pid, threads, cores, memory_limit, memory_free (bytes), load (of a minute),
        processor, computes, clock (seconds ahead of this process), versions.
    faults : list of str
        Reasons why a fit would refuse the worker, or leave it out.
    remarks : list of str
        Reasons why a fit would be slower, or differ in its last bits.
    """

    address: str
    facts: dict[str, Any] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def survey(
    address: str,
    files: Sequence[Path | RemotePath],
    folder: Path | None,
    computes: Callable[[], str],
    security: Security | None = None,
    deadline: float | None = None,
    timeout: float = ANSWER_SECONDS,
) -> list[WorkerSurvey]:
    """Describe every worker of a cluster, without leaving anything on it.

    Parameters
    ----------
    address : str
        Address of the scheduler.
    files : sequence of path
        Files that every worker must see with the same content as this process.
    folder : path or None
        A folder that every worker must be able to write to.
    computes : callable
        Returns the name of the instructions that a process computes kernel entries with. It is
        imported on the workers.
    security : distributed.Security, optional
        Certificates for a scheduler at ``tls://``.
    deadline : float, optional
        Value of ``time.monotonic()`` that bounds the waiting for scheduler and workers.
    timeout : float
        Seconds that the scheduler has for each answer.

    Returns
    -------
    list of WorkerSurvey
        The workers, sorted by address.

    Raises
    ------
    InputError
        If no scheduler answers, or it has no worker.
    ConnectionError
        If the scheduler stops answering.
    """
    until = time.monotonic() + CLUSTER.patience_seconds if deadline is None else deadline
    with closing(make_client(address, timeout, security, until)) as client:
        await_worker(client, address, until)
        found: Any = client.get_versions(packages=list(SAME_PACKAGES))
        own = pick_versions(found["client"])
        workers = {
            name: WorkerSurvey(name, {"versions": pick_versions(theirs)})
            for name, theirs in sorted(found["workers"].items())
        }
        for worker in workers.values():
            if unlike := first_difference(own, worker.facts["versions"]):
                worker.faults.append(f"it has {unlike}")
        code = source_digest()
        for worker, digest in _run_on_sound(client, workers, source_digest):
            if digest != code:
                worker.faults.append("it has other code of bigscreen, though of the same version")
        for worker, what in _run_on_sound(client, workers, computes):
            worker.facts["computes"] = what
        threads: Any = client.nthreads()
        before = time.time()
        machines = _run_on_sound(client, workers, _describe_machine)
        after = time.time()
        for worker, facts in machines:
            # The worker read its clock between these two moments.
            clock = facts.pop("time")
            worker.facts |= {
                **facts,
                "threads": threads.get(worker.address, 0),
                "clock": max(clock - after, 0.0) + min(clock - before, 0.0),
            }
        names = [str(file.absolute()) for file in files]
        here = file_digests(names)
        for worker, there in _run_on_sound(client, workers, file_digests, names):
            unlike = next((name for name in names if there[name] != here[name]), None)
            if unlike is not None:
                worker.faults.append(f"it does not see {unlike} as it is here")
        if folder is not None:
            # A fit makes missing folders within the nearest one that exists.
            place = folder.absolute()
            place = next((one for one in (place, *place.parents) if one.is_dir()), place)
            for worker, why in _run_on_sound(client, workers, _try_to_write, str(place)):
                if why is not None:
                    worker.faults.append(f"it cannot write to {place}: {why}")
    _add_remarks([worker for worker in workers.values() if not worker.faults])
    return list(workers.values())


def _run_on_sound(
    client: Client, workers: Mapping[str, WorkerSurvey], function: Callable[..., Any], *args: Any
) -> list[tuple[WorkerSurvey, Any]]:
    """Run ``function(*args)`` on each worker without a fault; an error becomes a fault.

    ``workers``: descriptions by address. Returns a pair of description and result for each worker
    that answered.
    """
    sound = [name for name, worker in workers.items() if not worker.faults]
    if not sound:
        return []
    found = []
    for name, answer in client.run(function, *args, workers=sound, on_error="return").items():
        worker = workers[name]
        if isinstance(answer, ModuleNotFoundError):
            worker.faults.append(f"it has no {answer.name}")
        elif isinstance(answer, BaseException):
            worker.faults.append(f"it does not answer: {type(answer).__name__}: {answer}")
        else:
            found.append((worker, answer))
    return found


def _describe_machine(dask_worker: Worker) -> dict[str, Any]:
    """Describe the machine and process of a worker, on which this function runs."""
    manager = dask_worker.memory_manager
    return {
        "host": platform.node(),
        "pid": os.getpid(),
        "cores": usable_processors(),
        "memory_limit": manager.memory_limit,
        "memory": machine_memory(),
        "memory_free": psutil.virtual_memory().available,
        "load": os.getloadavg()[0],
        "processor": _processor(),
        "environment": {name: os.environ.get(name) for name in WORKER_ENVIRONMENT},
        "time": time.time(),
    }


def _processor() -> str:
    """Return the name of the processor, if the system knows it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = (line.partition(":")[2].strip() for line in file if "model name" in line)
            return next(names, platform.processor())
    except OSError:
        return platform.processor()


def _try_to_write(folder: str) -> str | None:
    """Try to write a temporary file to a folder; returns why it failed, or None."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"bigscreen")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return reason_of(error)
    return None


def _add_remarks(sound: Sequence[WorkerSurvey], max_clock_seconds: float = 2.0) -> None:
    """Add remarks to workers without faults: what makes a fit slower or changes its last bits.

    Clocks may differ by ``max_clock_seconds``; beyond, times in logs and files disagree.
    """
    on_host = Counter(worker.facts["host"] for worker in sound)
    wanted: Counter[str] = Counter()
    for worker in sound:
        wanted[worker.facts["host"]] += int(worker.facts["memory_limit"] or 0)
    ways = Counter((worker.facts["computes"], worker.facts["processor"]) for worker in sound)
    usual = max(ways, key=lambda way: ways[way], default=None)
    for worker in sound:
        known = worker.facts
        say = worker.remarks.append
        if known["threads"] > 1:
            say(f"{known['threads']} threads in one process wait for each other: --nthreads 1")
        if on_host[known["host"]] > known["cores"]:
            say(f"{on_host[known['host']]} workers share the {known['cores']} cores of its machine")
        if not known["memory_limit"]:
            say("no memory limit: a fit that needs too much takes the machine down")
        elif wanted[known["host"]] > known["memory"]:
            say("the limits of its machine's workers are more than the memory there is")
        if abs(known["clock"]) > max_clock_seconds:
            say(f"its clock is {known['clock']:+.0f} s off")
        unset = [name for name, value in known["environment"].items() if value is None]
        if unset:
            say(f"{', '.join(unset)} not set before it started: slower")
        if (own := (known["computes"], known["processor"])) != usual and usual is not None:
            say(
                f"kernel entries by {' of '.join(own)}, those of most by {' of '.join(usual)}: as "
                "good, but not equal to the last bit"
            )
