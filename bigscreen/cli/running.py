"""Where the options of a command let it run: threads, worker processes, a cluster."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from bigscreen.cli.signals import closing, inherited_ignore
from bigscreen.errors import InputError

if TYPE_CHECKING:
    from bigscreen.fleet import Fleet

TLS = ("tls_ca", "tls_cert", "tls_key")


def deadline_of(budget: float | None) -> float | None:
    """When the time budget of a command that begins now is spent, by ``time.monotonic()``."""
    return None if budget is None else time.monotonic() + budget


def check_fleet(values: dict[str, Any]) -> None:
    """Refuse contradicting ways to run, before anything is started."""
    chosen = [f"--{name}" for name in ("workers", "scheduler", "threads") if values[name]]
    if len(chosen) > 1:
        raise InputError(
            f"{' and '.join(chosen)} are different ways to run (processes here, a cluster, threads "
            "of one process); give one"
        )
    flags = [f"--{name.replace('_', '-')}" for name in TLS]
    given = [flag for flag, name in zip(flags, TLS, strict=True) if values[name]]
    if given and not (values["scheduler"] or "").startswith("tls://"):
        raise InputError(
            f"{given[0]} is for a --scheduler of the form tls://HOST:PORT; leave it out"
        )
    if given and len(given) < len(TLS):
        raise InputError(f"{' and '.join(given)} alone will not do: give {', '.join(flags)}")


@contextmanager
def open_fleet(values: dict[str, Any], deadline: float | None = None) -> Iterator["Fleet"]:
    """What computes: threads, local worker processes or a Dask scheduler; closed at the end.

    ``deadline``, a value of ``time.monotonic()``, bounds the waiting for workers.
    """
    with _opened(values, deadline) as fleet:
        try:
            yield fleet
        except BaseException:
            closing()
            raise


def _opened(values: dict[str, Any], deadline: float | None) -> AbstractContextManager["Fleet"]:
    from bigscreen.fleet import Inline

    if not (values["workers"] or values["scheduler"]):
        return Inline(values["threads"])
    # Dask is slow to import, and threads need none of it.
    from bigscreen.fleet_secure import certificates
    from bigscreen.fleet_start import connect, local_cluster

    if values["scheduler"]:
        files = [values[name] for name in TLS if values.get(name)]
        security = certificates(*files) if files else None
        return connect(values["scheduler"], security=security, deadline=deadline)
    # The coordinating process needs its share of the memory too.
    share = values["memory"] and values["memory"] // (values["workers"] + 1)
    # Ctrl-C reaches every process of the terminal: the workers go on until the pass has ended and
    # its checkpoint is written.
    with inherited_ignore():
        return local_cluster(values["workers"], share, deadline=deadline)
