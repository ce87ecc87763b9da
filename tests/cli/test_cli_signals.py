"""Ctrl-C and SIGTERM end a command with one line and their own exit code, even during imports."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

BEGIN = "import os, signal, sys; signal.signal(2, signal.default_int_handler);"

AT_IMPORT = """
import os, signal, sys
from bigscreen.cli import main

signal.signal(2, signal.default_int_handler)  # which a shell's background jobs are without
number, left = int(sys.argv.pop(1)), int(sys.argv.pop(1))

def look(event, args):
    global left
    if event == "import":
        left -= 1
        if left == 0:
            os.kill(os.getpid(), number)

sys.addaudithook(look)
main(prog_name="bigscreen")
"""

WHERE_PYTHON_DROPS_IT = """
import ctypes, gc, os, signal, sys, time, weakref
from bigscreen.cli.signals import orderly

signal.signal(2, signal.default_int_handler)

def collected(phase, info):
    if phase == "start":
        gc.callbacks.clear()
        os.kill(os.getpid(), number)

class Thing:
    def __getattr__(self, name):
        os.kill(os.getpid(), number)

number, how = int(sys.argv[1]), sys.argv[2]
try:
    with orderly(last=False):
        if how == "collection":
            gc.callbacks.append(collected)
            gc.collect()
        elif how == "compiled":  # which says nothing of what it has dropped
            ctypes.pythonapi.PyObject_HasAttrString(ctypes.py_object(Thing()), b"any")
        else:
            thing = Thing()
            seen = weakref.ref(thing, lambda _: os.kill(os.getpid(), number))
            del thing
        for _ in range(300):
            time.sleep(0.1)
        print("went on")
except KeyboardInterrupt:
    print("interrupted")
"""

ITS_TIME = """
import os, signal, time
from contextlib import ExitStack
from bigscreen.cli import signals

def close():
    for _ in range(12):
        time.sleep(0.1)
    print("all was closed")

signal.signal(2, signal.default_int_handler)
try:
    with signals.orderly(last=False, lost_seconds=0.2), ExitStack() as owned:
        owned.callback(close)
        try:
            os.kill(os.getpid(), 2)
            time.sleep(30)
        except KeyboardInterrupt as error:
            raise ValueError("another on its way") from None
except ValueError:
    print("interrupted")
"""

WHILE_WORKERS_START = """
import os, signal, sys, threading, time
from multiprocessing import active_children
import bigscreen.fleet.local as local
from bigscreen.cli.common import open_fleet
from bigscreen.cli.signals import orderly

number, when = int(sys.argv[1]), sys.argv[2]

def signalled():
    # Ctrl-C reaches every process of the terminal, SIGTERM the first one alone.
    (os.killpg if number == signal.SIGINT else os.kill)(os.getpid(), number)

def started(*args, started=local.local_cluster, **kwargs):
    if when == "begun":
        signalled()
    elif when == "born":
        sender.start()
    fleet = started(*args, **kwargs)
    if when == "there":
        signalled()
    return fleet

def once_born():
    while not active_children():
        time.sleep(0.01)
    for _ in range(3):
        if not over.is_set():
            signalled()
        over.wait(0.3)

over, sender = threading.Event(), threading.Thread(target=once_born)

if __name__ == "__main__":
    signal.signal(2, signal.default_int_handler)
    local.local_cluster = started
    try:
        with orderly(last=False):
            try:
                with open_fleet({"workers": 1, "scheduler": None, "memory": None}):
                    print("went on")
            finally:  # no signal comes once nobody hears it in an orderly way
                over.set()
                if when == "born":
                    sender.join()
    except KeyboardInterrupt:
        print("interrupted, and left", active_children())
"""


def ended(command: subprocess.Popen[str], number: int) -> None:
    said = command.communicate(timeout=120)[1]
    assert command.returncode == 128 + number, said
    assert said.strip() == "error: interrupted"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("left", [1, 60, 250])  # of the commands, some 260 in all
def test_at_an_import(tmp_path: Path, number: int, left: int) -> None:
    words = [sys.executable, "-c", AT_IMPORT, str(number), str(left)]
    words += ["info", str(tmp_path / "none.store")]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as command:
        ended(command, number)


@pytest.mark.parametrize("milliseconds", [10, 40, 100, 200, 350, 1000])
def test_after_a_while(milliseconds: int) -> None:
    # a command that has not ended by itself, however quick the machine: this one takes many seconds
    code = f"{BEGIN} from bigscreen.cli import main; os.write(1, b'.'); main()"
    words = [sys.executable, "-c", code, "demo"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, text=True, **pipes) as command:
        assert command.stdout.read(1) == "."
        time.sleep(milliseconds / 1000)
        command.send_signal(signal.SIGINT)
        said = command.communicate(timeout=120)[1]
    assert command.returncode == 130, said
    assert len(said.split("\n\n")[-1].strip().splitlines()) == 1 and "interrupted" in said


def test_next_to_nothing_is_imported_before_signals_are_heard() -> None:
    code = (
        "import sys; before = {*sys.modules}; import bigscreen.cli; print(*{*sys.modules} - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"typing", "click", "numpy", "threading", "re"} & set(done.stdout.split())


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("how", ["collection", "compiled", "reference"])
def test_where_python_drops_exceptions(number: int, how: str) -> None:
    words = [sys.executable, "-c", WHERE_PYTHON_DROPS_IT, str(number), how]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")


def test_an_end_that_takes_its_time_is_not_interrupted() -> None:
    words = [sys.executable, "-c", ITS_TIME]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120)
    assert (done.stdout, done.stderr) == ("all was closed\ninterrupted\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("when", ["begun", "born", "there"])
def test_signals_while_workers_start(tmp_path: Path, number: int, when: str) -> None:
    (tmp_path / "script.py").write_text(WHILE_WORKERS_START)
    words = [sys.executable, tmp_path / "script.py", str(int(number)), when]
    how = {"capture_output": True, "text": True, "check": True, "start_new_session": True}
    done = subprocess.run(words, timeout=120, **how)
    assert (done.stdout, done.stderr) == ("interrupted, and left []\n", "")
