"""`bigscreen cluster-check`: check the workers of a cluster before a long job."""

import dataclasses
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bigscreen.cli.common import (
    TLS,
    check_fleet,
    check_json,
    deadline_of,
    json_option,
    time_option,
)
from bigscreen.cli.options import WHERE_IT_RUNS, fit_options
from bigscreen.errors import InputError

if TYPE_CHECKING:
    from bigscreen.fleet.survey import WorkerSurvey


@click.command("cluster-check", short_help="Look at a cluster's workers before a long job.")
@click.argument("store", required=False)
@click.option(
    "--scheduler", required=True, metavar="ADDRESS", help="The Dask scheduler, as fit has it."
)
@fit_options((), [WHERE_IT_RUNS[name] for name in ("scheduler_timeout", *TLS)])
@click.option(
    "--work", metavar="FOLDER", help="The folder for features and checkpoints, as fit has it."
)
@time_option
@json_option
def cluster_check(
    store: str | None,
    scheduler: str,
    scheduler_timeout: float | None,
    work: str | None,
    time_budget: float | None,
    json_file: str | None,
    **tls: str | None,
) -> None:
    """Ask every worker of a cluster what it is, and say what a fit would stumble over.

    Looked at: versions and code, what kernel entries are computed by, threads, memory, clocks, the
    environment; with STORE whether every worker sees it as it is here, with --work whether every
    worker can write there. Ends with 2 if a worker could not take part.

    \b
    Example:
      bigscreen cluster-check train.store \\
          --scheduler tcp://10.0.0.1:8786 --work /shared/work
    """
    from bigscreen.data.dataset import MANIFEST, Dataset
    from bigscreen.fleet.connecting import ANSWER_SECONDS
    from bigscreen.fleet.secure import certificates
    from bigscreen.fleet.survey import survey
    from bigscreen.kernels.standard import describe_products, make_kernel
    from bigscreen.report import report

    check_json(json_file)
    check_fleet({"scheduler": scheduler, "workers": None, "threads": None, **tls})
    given = [str(tls[name]) for name in TLS if tls[name]]
    files = []
    if store is not None:
        dataset = Dataset.open(store)
        files = [dataset.path / MANIFEST]
    found = survey(
        scheduler,
        files,
        None if work is None else Path(work),
        partial(describe_products, make_kernel("rbf")),
        certificates(*given) if given else None,
        deadline_of(time_budget),
        scheduler_timeout or ANSWER_SECONDS,
    )
    if json_file:
        workers = [dataclasses.asdict(worker) for worker in found]
        report.write_result(
            json_file, "cluster-check", {"scheduler": scheduler, "workers": workers}
        )
    for title, facts in _tables(found):
        report.table(title, facts)
    unfit = [worker for worker in found if worker.faults]
    if unfit:
        raise InputError(
            f"{len(unfit)} of {len(found)} workers could not take part in a fit; the first is "
            f"{unfit[0].address}: {unfit[0].faults[0]}"
        )
    report.note(f"all {len(found)} workers can take part")


def _tables(found: list["WorkerSurvey"]) -> list[tuple[str, dict[str, str]]]:
    """Make a table for each machine: its title, and names and texts.

    Workers that have the same fault or remark share a line. Workers of which no machine is known
    are in a table of their own.
    """
    from bigscreen.report.report import count, size

    hosts: dict[str, list[WorkerSurvey]] = {}
    for worker in found:
        hosts.setdefault(worker.facts.get("host", "unknown"), []).append(worker)
    tables = []
    for host, workers in sorted(hosts.items()):
        facts = {"workers": count(len(workers))}
        known = next((worker.facts for worker in workers if "host" in worker.facts), None)
        if known is not None:
            limits = sum(worker.facts.get("memory_limit") or 0 for worker in workers)
            facts |= {
                "threads, cores": f"{sum(w.facts.get('threads', 0) for w in workers)} of "
                f"{known['cores']}, load {known['load']:.1f}",
                "memory": f"limits {size(limits)} together; {size(known['memory_free'])} free of "
                f"{size(known['memory'])}",
                "processor": known["processor"],
                "kernel entries by": known["computes"],
            }
        for kind in ("faults", "remarks"):
            said: dict[str, list[str]] = {}
            for worker in workers:
                for sentence in getattr(worker, kind):
                    said.setdefault(sentence, []).append(worker.address)
            for sentence, which in said.items():
                where = "every worker" if len(which) == len(workers) else ", ".join(which)
                facts[f"{kind[:-1]}: {where}"] = sentence
        tables.append((f"machine {os.path.basename(host)}", facts))
    return tables
