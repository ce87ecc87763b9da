"""Keep worker processes running as SLURM jobs, for one command after another.

    pip install dask-jobqueue
    python cluster/slurm.py --jobs 4 --cores 16 --memory 64GiB --walltime 08:00:00 [--queue NAME]

submits the jobs, prints the option by which other commands reach the workers, ``--scheduler``, and
stays until Ctrl-C, which ends them. Run it on a node that the others reach (``--interface ib0``).
``--script`` prints the batch script alone, to be looked at.

The connections are not encrypted: inside a network you trust, or with Dask's own configuration for
TLS (see cluster/README.md).
"""

from __future__ import annotations

import argparse
import signal
from typing import Any

from bigscreen.fleet.worker import WORKER_ENVIRONMENT


def slurm(options: argparse.Namespace) -> Any:
    """The cluster of so many jobs, one worker process for every core."""
    from dask_jobqueue import SLURMCluster

    return SLURMCluster(
        cores=options.cores,
        processes=options.cores,
        memory=options.memory,
        walltime=options.walltime,
        queue=options.queue,
        account=options.account,
        interface=options.interface,
        # Read when a process starts, so they are there before: see cluster/README.md.
        job_script_prologue=[
            f"export {name}={value}" for name, value in WORKER_ENVIRONMENT.items()
        ],
        worker_extra_args=["--no-dashboard"],
        scheduler_options={"dashboard": False},
    )


def main() -> None:
    """Submit the jobs and wait for their end."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=1, help="batch jobs, one per node [1]")
    parser.add_argument("--cores", type=int, default=16, help="cores of each, one worker each [16]")
    parser.add_argument("--memory", default="64GiB", help="memory of each job, for all its workers")
    parser.add_argument("--walltime", default="08:00:00", help="HH:MM:SS of each [08:00:00]")
    parser.add_argument("--queue", help="partition [SLURM's default]")
    parser.add_argument("--account", help="project that pays [SLURM's default]")
    parser.add_argument("--interface", help="network interface, such as ib0 [any]")
    parser.add_argument("--script", action="store_true", help="print the batch script and end")
    options = parser.parse_args()
    signals = {signal.SIGINT, signal.SIGTERM}
    # before any thread starts, or one of those could take the signal
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    with slurm(options) as cluster:
        if options.script:
            print(cluster.job_script())
            return
        cluster.scale(jobs=options.jobs)
        print(f"--scheduler {cluster.scheduler_address}", flush=True)
        signal.sigwait(signals)


if __name__ == "__main__":
    main()
