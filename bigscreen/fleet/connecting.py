"""Connect to a running Dask cluster, and check that its workers run the same code."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any

from distributed import Client, Security, Status

from bigscreen.errors import InputError
from bigscreen.fleet.cluster import Cluster
from bigscreen.fleet.secure import explain_failure
from bigscreen.fleet.tuning import CLUSTER, ClusterTuning
from bigscreen.fleet.worker import source_digest
from bigscreen.fleet.workers import Silent, first_difference

SAME_PACKAGES = ("bigscreen", "numba", "numpy", "distributed")
"""Packages of which all workers must have the same version as this process."""

CLOSED = ("closed", "closing", Status.closed, Status.closing)
"""States of a client or a cluster that has no scheduler any more."""

ANSWER_SECONDS = 30.0
"""Default time in seconds to wait for each answer of a Dask scheduler; a call that waits longer
raises an error."""


def connect(
    scheduler: Any,
    timeout: float = ANSWER_SECONDS,
    security: Security | None = None,
    deadline: float | None = None,
    tuning: ClusterTuning = CLUSTER,
) -> Cluster:
    """Connect to a Dask cluster that is already running.

    Parameters
    ----------
    scheduler : str, distributed.Client, or a cluster such as distributed.LocalCluster
        Address of the scheduler, ``tcp://HOST:8786`` or ``tls://HOST:8786``; or an object that is
        connected to it, whose address and certificates are used. The object is only borrowed: the
        fleet has a connection of its own, and closes that.
    timeout : float
        Seconds that the scheduler has to answer, now and in later calls. (A frozen scheduler keeps
        its connections open, so that only the missing answer shows it.)
    security : distributed.Security, optional
        Certificates for ``tls://``, made by `bigscreen.fleet.secure.certificates`. Default: those
        of the client or cluster, or from Dask's configuration.
    deadline : float, optional
        Value of ``time.monotonic()`` that bounds the waiting for scheduler and workers.
    tuning : ClusterTuning

    Returns
    -------
    Cluster
        A fleet that owns its connection; closing it leaves the cluster running.

    Raises
    ------
    InputError
        If no scheduler answers there, only one side encrypts, there is no worker, or a worker lacks
        bigscreen or has another version of bigscreen, numba, numpy or Python.
    ConnectionError
        If the scheduler stops answering; later calls of the fleet can raise it, too.
    """
    address, own = address_of(scheduler)
    security = security or own
    until = time.monotonic() + tuning.patience_seconds if deadline is None else deadline
    client = make_client(address, timeout, security, until)
    owned = ExitStack()
    owned.callback(client.close)
    try:
        await_worker(client, address, until)
        return Cluster(client, owned, deadline, check=_check_versions, tuning=tuning)
    except BaseException:
        owned.close()
        raise


def address_of(scheduler: Any) -> tuple[str, Security | None]:
    """Find the address of a scheduler and the certificates (or None) of its connections.

    ``scheduler`` is an address, which is returned without certificates, a Dask client or a Dask
    cluster. InputError if it has no scheduler.
    """
    if isinstance(scheduler, str):
        return scheduler, None
    if isinstance(scheduler, Client):
        address = None if scheduler.scheduler is None else scheduler.scheduler.address
    elif hasattr(scheduler, "scheduler_address"):
        address = scheduler.scheduler_address
    else:
        raise InputError(
            "scheduler must be the address of a Dask scheduler, such as tcp://HOST:8786, or a "
            f"Dask client or cluster, got {scheduler!r}"
        )
    if not address or "<" in address or getattr(scheduler, "status", None) in CLOSED:
        raise InputError(f"{scheduler!r} has no scheduler any more; make a new one")
    return address, scheduler.security


class _Client(Client):
    """A Dask client whose calls raise ConnectionError if its scheduler stops answering.

    If it fails to connect, its deletion does not wait for the connection.
    """

    def __init__(self, address: str, patience: float, **options: Any) -> None:
        """Connect to a scheduler, which has ``patience`` seconds for each answer."""
        self._address, self._patience, self._silent = address, patience, False
        try:
            super().__init__(address, **options)  # type: ignore[no-untyped-call]
        except BaseException:
            self.status = "closed"
            raise

    async def _start(self, timeout: Any = None, **options: Any) -> None:
        """Connect within a time limit: a frozen scheduler accepts connections but is silent."""
        start = super()._start(timeout=timeout, **options)  # type: ignore[no-untyped-call]
        await asyncio.wait_for(start, self._patience)

    def sync(
        self,
        func: Callable[..., Awaitable[Any]],
        *args: Any,
        asynchronous: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run the coroutine function ``func``, a call to the scheduler, and return its result.

        It replaces `distributed.Client.sync`: if the scheduler does not answer in time, it raises
        ConnectionError, and so does every later call.
        """
        kwargs.pop("callback_timeout", None)  # replaced by the time limit of this client

        async def watched() -> Any:
            call = asyncio.ensure_future(func(*args, **kwargs))
            try:
                while not (await asyncio.wait({call}, timeout=self._patience))[0]:
                    await self._listen()
                return await call
            finally:
                call.cancel()

        if self._silent:
            raise self._no_answer()
        return super().sync(watched, asynchronous=asynchronous)  # type: ignore[no-untyped-call]

    async def _listen(self) -> None:
        """Ask the scheduler for its identity; raise ConnectionError if no answer comes in time."""
        scheduler: Any = self.scheduler
        try:
            if scheduler is not None:
                await asyncio.wait_for(scheduler.identity(), self._patience)
                return
        except TimeoutError:
            pass
        except OSError:
            return  # the connection broke: the call itself will fail
        self._silent = True
        raise self._no_answer()

    def _no_answer(self) -> Silent:
        """Return the error to raise if the scheduler does not answer in time."""
        return Silent(
            f"the Dask scheduler at {self._address} has not answered for {self._patience:g} s: it "
            "stands still, or its machine is too busy; start it and its workers anew, or give it "
            "more time"
        )


def make_client(address: str, timeout: float, security: Security | None, until: float) -> Client:
    """Connect to a scheduler; raises an InputError that explains a failure.

    ``timeout``: seconds for each answer; ``until``: ``time.monotonic()`` to stop trying.
    """
    try:
        return _Client(
            address,
            timeout,
            timeout=min(timeout, max(0.1, until - time.monotonic())),
            direct_to_workers=True,
            set_as_default=False,
            **({} if security is None else {"security": security}),
        )
    except Silent:
        raise
    except (OSError, ValueError, RuntimeError, TypeError) as error:
        raise InputError(explain_failure(address, error)) from error


def await_worker(client: Client, address: str, until: float) -> None:
    """Wait for a worker of the scheduler at ``address``; InputError if none comes in time.

    ``until``: value of ``time.monotonic()`` at which to give up.
    """
    began = time.monotonic()
    while not client.nthreads():
        if time.monotonic() > until:
            raise InputError(
                f"the scheduler at {address} has had no worker for {until - began:.0f} s: start "
                "some with `dask worker`, and run again"
            )
        time.sleep(0.1)


def _check_versions(client: Client) -> None:
    """Raise InputError if a worker runs other code than this process."""
    address = client.scheduler.address  # type: ignore[union-attr]
    # `get_versions` works without bigscreen on the workers, and with another Python there.
    found: Any = client.get_versions(packages=list(SAME_PACKAGES))
    own = pick_versions(found["client"])
    everywhere = "install the same versions on every machine"
    for worker, theirs in found["workers"].items():
        if unlike := first_difference(own, pick_versions(theirs)):
            raise InputError(f"the worker {worker} of {address} has {unlike}: {everywhere}")
    code = source_digest()
    for worker, theirs in client.run(source_digest, on_error="return").items():
        if isinstance(theirs, ModuleNotFoundError):
            raise InputError(f"the worker {worker} of {address} has no bigscreen: {everywhere}")
        # An OSError means that the worker just died; any other error, that its code is different.
        if theirs != code and not isinstance(theirs, OSError):
            raise InputError(
                f"the worker {worker} of {address} has other code of bigscreen than this process, "
                f"though of the same version: {everywhere}"
            )


def pick_versions(process: dict[str, Any]) -> dict[str, Any]:
    """Pick the versions that must be equal everywhere from an entry of ``Client.get_versions``."""
    return {name: process["packages"].get(name) for name in ("python", *SAME_PACKAGES)}
