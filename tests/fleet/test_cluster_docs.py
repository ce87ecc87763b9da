"""cluster/ does what it says: its scripts as real processes, over TCP on the loopback."""

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from fleet_programs import Gradient, descend, environment, same
from places import ROOT, SUPPORT

from bigscreen.errors import InputError
from bigscreen.fleet.connecting import connect
from bigscreen.fleet.inline import Inline
from bigscreen.fleet.secure import certificates
from bigscreen.fleet.worker import WORKER_ENVIRONMENT

README = (ROOT / "cluster" / "README.md").read_text()
SCRIPT = ROOT / "cluster" / "tcp.sh"
SHARDS = 9
ROUNDS = 12


@pytest.fixture
def start():
    """Starts commands as a shell would, each in a process group of its own, and ends them."""
    started = []

    def run(*command):
        scripts = str(Path(sys.executable).parent)
        variables = {
            name: value for name, value in os.environ.items() if "_NUM_THREADS" not in name
        }
        variables |= {
            "PATH": scripts + os.pathsep + os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(SUPPORT)]),
        }
        process = subprocess.Popen(
            list(map(str, command)),
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        end(process)


def end(process, how=signal.SIGKILL):
    """A signal for a whole process group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, how)
    process.wait(timeout=20)
    process.stdout.close()


def address_in(process):
    """The first address that a process prints."""
    for line in process.stdout:
        if found := re.search(r"tcp://127\.0\.0\.1:\d+", line):
            return found.group()
    raise AssertionError("no address was printed")


def options_in(process):
    """The address and the files that a process prints as options for others."""
    found = re.match(
        r"--scheduler (tls://127\.0\.0\.1:\d+) --tls-ca (\S+) --tls-cert (\S+) --tls-key (\S+)$",
        process.stdout.readline(),
    )
    return found.groups()


def workers_below(process):
    """The worker processes (not their nannies) that a command has started."""
    found = psutil.Process(process.pid).children(recursive=True)
    return [each for each in found if "spawn_main" in " ".join(each.cmdline())]


def test_several_machines(start):
    with Inline(1) as fleet:
        fleet.start(Gradient(), SHARDS)
        reference = descend(fleet, ROUNDS)[1]

    address = address_in(start(SCRIPT, "scheduler", "--host", "127.0.0.1", "--port", "0"))
    machines = [
        start(SCRIPT, "workers", address, "1", "2GiB", "--host", "127.0.0.1") for _ in range(2)
    ]
    with connect(address) as fleet:
        fleet._client.wait_for_workers(2, timeout=60)
        assert fleet.workers == 2
        limits = {w["memory_limit"] for w in fleet._client.scheduler_info()["workers"].values()}
        assert limits == {2 * 2**30}
        work = fleet.each(environment, [list(WORKER_ENVIRONMENT)] * 20)
        seen = {pid: found for found, pid in work}
        assert len(seen) == 2
        assert all(found == WORKER_ENVIRONMENT for found in seen.values())

        def accidents(number):
            if number == 3:  # a worker dies; its nanny starts another
                workers_below(machines[0])[0].kill()
            if number == 8:  # a machine dies
                end(machines[1])

        fleet.start(Gradient(), SHARDS)
        assert same(descend(fleet, ROUNDS, between=accidents)[1], reference)
    assert connects(address)  # closing the fleet leaves the cluster as it was


def connects(address):
    with connect(address) as fleet:
        return fleet.workers >= 1


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_one_machine(start, how):
    process = start(sys.executable, ROOT / "cluster" / "local.py", "--workers", 2)
    address, ca, cert, key = options_in(process)
    workers = workers_below(process)
    assert len(workers) == 2
    with connect(address, security=certificates(ca, cert, key)) as fleet:
        fleet.start(Gradient(), SHARDS)
        descend(fleet, 2)
    if how is signal.SIGINT:
        os.killpg(process.pid, how)  # as Ctrl-C does: for the workers, too
        output = process.communicate(timeout=20)[0]
        assert "Traceback" not in output
    else:
        process.send_signal(how)
        process.wait(timeout=20)
    assert process.returncode == (-9 if how is signal.SIGKILL else 0)
    _gone, alive = psutil.wait_procs(workers, timeout=10)
    assert not alive
    with pytest.raises(InputError):
        connect(address, timeout=0.5)


def test_documented_settings_are_the_real_ones():
    table = dict(re.findall(r"^\| `(\w+)` \| `(\d+)` \|", README, flags=re.MULTILINE))
    script = dict(re.findall(r"^export (\w+)=(\d+)$", SCRIPT.read_text(), flags=re.MULTILINE))
    assert table == script == WORKER_ENVIRONMENT


def test_the_script_explains_itself(start):
    for arguments in ([], ["workers", "tcp://nowhere:1"], ["nonsense"]):
        process = start(SCRIPT, *arguments)
        output = process.communicate(timeout=20)[0]
        assert process.returncode == 2
        assert "tcp.sh scheduler" in output and "tcp.sh workers ADDRESS COUNT MEMORY" in output


def test_documented_options_exist(start):
    workers = start("dask", "worker", "--help").communicate(timeout=60)[0]
    for option in re.findall(r"(--(?:worker|nanny)-port|--nthreads|--interface)", README):
        assert option in workers
    documented = set(re.findall(r"^ *(cluster/\S+|python cluster/\S+)", README, flags=re.MULTILINE))
    assert documented == {"cluster/tcp.sh", "python cluster/local.py", "python cluster/slurm.py"}


def example(word):
    """The Python code of the README that has a word in it."""
    found = re.findall(r"^```python\n(.*?)^```$", README, re.M | re.S)
    (code,) = (code for code in found if word in code)
    return code


def put(text, *changes):
    """A text with pieces of it replaced, each of which it has once."""
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def gap_in(process):
    """What an example prints at its end, once it has ended well."""
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 0, output
    return float(output.split()[-1])  # (Dask may warn that a port is in use)


def pods():
    """The Kubernetes file, and the containers of its workers and of its scheduler."""
    yaml = pytest.importorskip("yaml")
    whole = yaml.safe_load((ROOT / "cluster" / "kubernetes.yaml").read_text())
    roles = [whole["spec"][role]["spec"]["containers"] for role in ("worker", "scheduler")]
    assert [len(each) for each in roles] == [1, 1]
    return whole, roles[0][0], roles[1][0]


def test_pods_have_the_environment_of_workers():
    _, worker, scheduler = pods()
    assert {each["name"]: each["value"] for each in worker["env"]} == WORKER_ENVIRONMENT
    words = worker["args"]
    assert words[words.index("--nthreads") + 1] == "1" == worker["resources"]["limits"]["cpu"]
    # Dask has to notice first, or the whole pod goes.
    limit = words[words.index("--memory-limit") + 1]
    assert int(limit.removesuffix("GiB")) * 1024 < int(
        worker["resources"]["limits"]["memory"].removesuffix("Mi")
    )
    assert scheduler["image"] == worker["image"]


@pytest.mark.slow
def test_the_commands_of_pods_and_the_example_on_them(start, tmp_path):
    whole, worker, scheduler = pods()
    (port,) = (each["port"] for each in whole["spec"]["scheduler"]["service"]["ports"][:1])
    name = f"tcp://{whole['metadata']['name']}-scheduler:{port}"
    (volume,) = worker["volumeMounts"]
    code = put(example(name), (volume["mountPath"], str(tmp_path)))
    here = ("--host", "127.0.0.1")
    address = address_in(start(*scheduler["args"], *here, "--port", 0))
    # The operator sets the name of a pod, and in each the address of the scheduler.
    for pod in ("first", "second"):
        given = [f"{each['name']}={each['value']}" for each in worker["env"]]
        words = [word.replace("$(DASK_WORKER_NAME)", pod) for word in worker["args"]]
        start("env", *given, f"DASK_SCHEDULER_ADDRESS={address}", *words, *here)
    with connect(address) as fleet:
        fleet._client.wait_for_workers(2, timeout=60)
        names = {each["name"] for each in fleet._client.scheduler_info()["workers"].values()}
        assert names == {"first", "second"}
    fitted = start(sys.executable, "-c", put(code, (name, address)))
    assert 0 <= gap_in(fitted) <= 1e-3


# dask-jobqueue deletes the script once sbatch, which keeps a copy, has ended.
SBATCH = """#!/bin/sh
cp "$1" job-$$.sh
setsid bash job-$$.sh > job-$$.log 2>&1 &
echo "Submitted batch job $!"
"""
SCANCEL = """#!/bin/sh
kill -- "-$1"
"""


@pytest.mark.slow
def test_the_example_on_batch_jobs(start, tmp_path, monkeypatch):
    """A stand-in for SLURM runs the batch script at once; `scancel` ends its processes."""
    pytest.importorskip("dask_jobqueue", reason="no dask-jobqueue: pip install dask-jobqueue")
    for name, text in (("sbatch", SBATCH), ("scancel", SCANCEL)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fit.py").write_text(
        put(
            example("SLURMCluster"),
            ("cores=16", "cores=1"),
            ("processes=16", "processes=1"),
            ("wait_for_workers(16)", "wait_for_workers(1)"),
            ("scale(jobs=4)", "scale(jobs=2)"),
            ("64GiB", "1GiB"),
        )
    )
    assert 0 <= gap_in(start(sys.executable, "fit.py")) <= 1e-3


def test_batch_jobs_have_the_environment_of_workers():
    pytest.importorskip("dask_jobqueue", reason="no dask-jobqueue: pip install dask-jobqueue")
    given = ("--cores", "3", "--memory", "6GiB", "--walltime", "01:02:03", "--queue", "day")
    command = [sys.executable, ROOT / "cluster" / "slurm.py", *given, "--script"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    script = done.stdout
    for name, value in WORKER_ENVIRONMENT.items():
        assert f"export {name}={value}\n" in script
    for line in ("#SBATCH -p day", "#SBATCH --cpus-per-task=3", "#SBATCH -t 01:02:03"):
        assert line in script
    assert all(
        part in script for part in ("--nthreads 1 ", "--nworkers 3 ", "--memory-limit 2.00GiB ")
    )
