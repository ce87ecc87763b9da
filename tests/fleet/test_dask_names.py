"""What the fleet uses of Dask beyond its documented interface is there, and takes what it is given.

`cluster/README.md` says what each is for. A release that takes one away fails here, with the file
of the fleet that is to be changed, before any cluster stands still.
"""

import ast
import inspect
from importlib import import_module
from pathlib import Path

import distributed
import pytest

import bigscreen.fleet
from bigscreen.fleet.local import local_cluster

FLEET = Path(bigscreen.fleet.__file__).parent
SEEN = f"Dask {distributed.__version__}"

# Names of submodules, by the file that imports them.
NAMES = {
    "cluster.py": {"distributed.protocol.pickle": ["dumps"]},
    "hosts.py": {
        "distributed.core": ["clean_exception"],
        "distributed.protocol.serialize": ["to_serialize"],
    },
    "local.py": {
        "distributed.comm.core": ["CommClosedError"],
        "distributed.utils": ["LoopRunner"],
    },
    "survey.py": {"distributed.worker": ["Worker"]},
    "worker.py": {
        "distributed.core": ["error_message"],
        "distributed.protocol.pickle": ["loads"],
    },
    "workers.py": {"distributed.comm.core": ["CommClosedError"]},
}
# Remote calls: what answers them, and the parameters that are given.
CALLS = {
    ("workers.py", "scheduler"): {
        "ncores": [],
        "identity": [],
        "retire_workers": ["workers", "close_workers"],
        "restart_workers": ["workers", "wait_for_workers", "on_error", "stimulus_id"],
    },
    ("hosts.py and worker.py", "worker"): {
        "actor_execute": ["function", "actor", "args", "kwargs"],
    },
}
SCHEDULER = ["worker_plugins", "unregister_worker_plugin", "unregister_scheduler_plugin", "loop"]
MEMORY = ["memory_limit", *(f"memory_{name}_fraction" for name in ("target", "spill", "pause"))]


def test_the_lists_below_are_all_that_is_imported() -> None:
    found: dict[str, dict[str, list[str]]] = {}
    for file in sorted(FLEET.glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("distributed."):
                names = found.setdefault(file.name, {}).setdefault(str(node.module), [])
                names += [alias.name for alias in node.names]
            private = isinstance(node, ast.Attribute) and node.attr[0] == "_" != node.attr[1]
            own = isinstance(getattr(node, "value", None), ast.Name) and private
            assert not private or not own or ast.unparse(node).startswith(("self._", "cls._")), (
                f"{file}: {ast.unparse(node)} is private"
            )
    assert found == NAMES


@pytest.mark.parametrize("file", NAMES)
def test_the_names_that_the_fleet_uses_exist(file: str) -> None:
    for module, names in NAMES[file].items():
        for name in names:
            there = hasattr(import_module(module), name)
            assert there, f"{SEEN} has no {module}.{name} any more: bigscreen/fleet/{file} needs it"


def _of_scheduler(dask_scheduler: distributed.Scheduler) -> tuple[dict[str, list[str]], list[str]]:
    lacking = [name for name in SCHEDULER if not hasattr(dask_scheduler, name)]
    return _handlers(dask_scheduler), lacking


def _of_worker(dask_worker: distributed.Worker) -> tuple[dict[str, list[str]], list[str]]:
    lacking = [name for name in MEMORY if not hasattr(dask_worker.memory_manager, name)]
    return _handlers(dask_worker), lacking


def _handlers(server: distributed.Scheduler | distributed.Worker) -> dict[str, list[str]]:
    return {
        name: [
            "**" if parameter.kind is parameter.VAR_KEYWORD else parameter.name
            for parameter in inspect.signature(handler).parameters.values()
        ]
        for name, handler in server.handlers.items()
    }


def test_calls_and_what_they_are_given() -> None:
    with local_cluster(1) as fleet:
        client = fleet._client
        answers = {
            "scheduler": client.run_on_scheduler(_of_scheduler),
            "worker": next(iter(client.run(_of_worker).values())),
        }
        beats = client.sync(client.scheduler.identity)["workers"]
        assert all("last_seen" in worker for worker in beats.values()), (
            f"{SEEN} tells nobody when it has heard of a worker: fleet/workers.py needs it"
        )
        assert hasattr(client.loop, "asyncio_loop"), f"{SEEN}: fleet/cluster.py needs the loop"
    for (files, where), calls in CALLS.items():
        handlers, lacking = answers[where]
        assert not lacking, f"{SEEN}: a {where} has no {lacking[0]} any more: fleet/worker.py"
        for call, parameters in calls.items():
            assert call in handlers, f"a {where} of {SEEN} answers no {call}: fleet/{files}"
            gone = [name for name in parameters if name not in handlers[call]]
            assert not gone or "**" in handlers[call], (
                f"{call} of {SEEN} takes no {gone[0]} any more: fleet/{files}"
            )
