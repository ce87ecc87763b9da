"""Connecting to a cluster that runs already: its scheduler, its workers, the code that they run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any

from distributed import Client, Security

from bigscreen.errors import InputError
from bigscreen.fleet.cluster import Cluster
from bigscreen.fleet.secure import explained
from bigscreen.fleet.worker import source_digest
from bigscreen.fleet.workers import PATIENCE_SECONDS, Silent, differing

SAME = ("bigscreen", "numba", "numpy", "distributed")
"""Packages whose versions must be those of this process, on every worker."""

ANSWER_SECONDS = 30.0
"""How long a scheduler may take to answer, unless a caller says otherwise."""


def connect(
    address: str,
    timeout: float = ANSWER_SECONDS,
    security: Security | None = None,
    deadline: float | None = None,
) -> Cluster:
    """Use a Dask cluster that runs already.

    Parameters
    ----------
    address : str
        Of its scheduler, ``tcp://HOST:8786`` or ``tls://HOST:8786``.
    timeout : float
        Seconds that the scheduler may take to answer, now and later: a scheduler that stands still
        keeps its connections, so that nothing else would tell.
    security : distributed.Security, optional
        For ``tls://``, as `bigscreen.fleet.secure.certificates` makes it. Default: Dask's own
        configuration.
    deadline : float, optional
        Value of ``time.monotonic()`` that bounds the waiting for scheduler and workers.

    Returns
    -------
    Cluster
        A fleet that owns its connection; closing it leaves the cluster running.

    Raises
    ------
    InputError
        If no scheduler answers there, one encrypts and the other does not, it has no worker, or a
        worker has another version of bigscreen, numba, numpy or Python, or none.
    ConnectionError
        If the scheduler stops answering; later calls of the fleet raise it, too.
    """
    until = time.monotonic() + PATIENCE_SECONDS if deadline is None else deadline
    client = client_of(address, timeout, security, until)
    owned = ExitStack()
    owned.callback(client.close)
    try:
        await_worker(client, address, until)
        return Cluster(client, owned, deadline, check=_check_versions)
    except BaseException:
        owned.close()
        raise


class _Client(Client):
    """A client whose calls raise ConnectionError when its scheduler stops answering.

    Having come to nothing, it does not wait for a connection when it is deleted.
    """

    def __init__(self, address: str, patience: float, **options: Any) -> None:
        self._address, self._patience, self._silent = address, patience, False
        try:
            super().__init__(address, **options)  # type: ignore[no-untyped-call]
        except BaseException:
            self.status = "closed"
            raise

    async def _start(self, timeout: Any = None, **options: Any) -> None:
        """Connect; a scheduler that stands still takes connections, and then says nothing."""
        start = super()._start(timeout=timeout, **options)  # type: ignore[no-untyped-call]
        await asyncio.wait_for(start, self._patience)

    def sync(
        self,
        func: Callable[..., Awaitable[Any]],
        *args: Any,
        asynchronous: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Call what talks to the scheduler; see `distributed.Client`."""
        kwargs.pop("callback_timeout", None)  # an answer has the time that this client gives

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
        """Raise ConnectionError if the scheduler does not say in time that it is there."""
        scheduler: Any = self.scheduler
        try:
            if scheduler is not None:
                await asyncio.wait_for(scheduler.identity(), self._patience)
                return
        except TimeoutError:
            pass
        except OSError:
            return  # a connection that broke, which the call finds out itself
        self._silent = True
        raise self._no_answer()

    def _no_answer(self) -> Silent:
        return Silent(
            f"the Dask scheduler at {self._address} has not answered for {self._patience:g} s: it "
            "stands still, or its machine is too busy; start it and its workers anew, or give it "
            "more time"
        )


def client_of(address: str, timeout: float, security: Security | None, until: float) -> Client:
    """A connection to a scheduler; an InputError says why there is none."""
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
        raise InputError(explained(address, error)) from error


def await_worker(client: Client, address: str, until: float) -> None:
    """An InputError if there is no worker until then."""
    began = time.monotonic()
    while not client.nthreads():
        if time.monotonic() > until:
            raise InputError(
                f"the scheduler at {address} has had no worker for {until - began:.0f} s: start "
                "some with `dask worker`, and run again"
            )
        time.sleep(0.1)


def _check_versions(client: Client) -> None:
    """An InputError if a worker runs other code than this process."""
    address = client.scheduler.address  # type: ignore[union-attr]
    # Dask's own way needs nothing of ours on the workers, and no common version of Python.
    found: Any = client.get_versions(packages=list(SAME))
    own = versions_of(found["client"])
    everywhere = "install the same versions on every machine"
    for worker, theirs in found["workers"].items():
        if unlike := differing(own, versions_of(theirs)):
            raise InputError(f"the worker {worker} of {address} has {unlike}: {everywhere}")
    code = source_digest()
    for worker, theirs in client.run(source_digest, on_error="return").items():
        if isinstance(theirs, ModuleNotFoundError):
            raise InputError(f"the worker {worker} of {address} has no bigscreen: {everywhere}")
        # An OSError is a worker that died just now; another error, one whose code cannot tell.
        if theirs != code and not isinstance(theirs, OSError):
            raise InputError(
                f"the worker {worker} of {address} has other code of bigscreen than this process, "
                f"though of the same version: {everywhere}"
            )


def versions_of(process: dict[str, Any]) -> dict[str, Any]:
    """Those that must be the same everywhere, of one process of ``Client.get_versions``."""
    return {name: process["packages"].get(name) for name in ("python", *SAME)}
