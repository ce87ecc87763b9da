"""A judge's command line: every case is counted, and a run that is ended says what it has."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import case_runner
import pytest
from case_runner import Kind

SUPPORT = Path(case_runner.__file__).parent

PROGRAM = f"""
import os, sys, time
sys.path.insert(0, {str(SUPPORT)!r})
from case_runner import Kind, Outcome, run

def even(number):
    wrong = {{"odd": f"{{number}} is odd"}} if number % 2 else {{}}
    figures = {{("row", "seen"): 1, ("row", "odd"): number % 2}}
    return Outcome(f"Spec({{number}})", "judged", wrong, figures, twists=-number)

def fine(number):
    return Outcome("Spec()", "fine")

def broken(number):
    raise ArithmeticError(f"case {{number}}")

def deadly(number):
    os._exit(3)

def endless(number):
    os.write(1, b"begun\\n")
    time.sleep(600 if number % 4 == 3 else 0)
    return Outcome("Spec()", "begun")

KINDS = {{
    "even": Kind(even, 4), "fine": Kind(fine, 6), "broken": Kind(broken, 2),
    "deadly": Kind(deadly, 2), "endless": Kind(endless, 100),
}}
if __name__ == "__main__":
    sys.exit(run(KINDS, "A judge."))
"""


@pytest.fixture
def judge(tmp_path):
    script = tmp_path / "toy_cases.py"
    script.write_text(PROGRAM)
    return [sys.executable, str(script)]


def ran(judge, *arguments):
    return subprocess.run(
        [*judge, "--jobs", "2", *arguments], capture_output=True, text=True, timeout=120
    )


def test_all_cases_are_judged_and_summed(judge):
    done = ran(judge, "--kind", "fine", "--seed", "5")
    assert done.returncode == 0 and "6 of 6 cases" in done.stdout and "0 wrong" in done.stdout
    assert "must be 1 or more, got 0" in ran(judge, "--cases", "0").stderr
    done = ran(judge, "--kind", "even", "--kind", "fine", "--cases", "20")
    assert done.returncode == 1
    first, *rest = done.stdout.splitlines()
    assert first.startswith("20 of 20 cases in ") and first.endswith(": 4 wrong")
    assert re.search(r"even: 8 cases, 4 wrong, .* 8 judged", rest[0])
    assert re.search(r"fine: 12 cases, 0 wrong, .* 12 fine", rest[1])
    assert rest[2].split() == ["seen", "odd"] and rest[3].split() == ["row", "8", "4"]
    # The plainest wrong case, and how to judge it alone.
    assert rest[4] == "WRONG 4 x even, odd: 7 is odd" and rest[5].strip() == "Spec(7)"
    assert rest[6].endswith("--kind even --seed 7 --cases 1")


def test_an_error_of_the_judge_and_a_process_that_dies_are_wrong(judge):
    done = ran(judge, "--kind", "broken")
    assert done.returncode == 1 and "2 error" in done.stdout
    assert "ArithmeticError in toy_cases.py, broken" in done.stdout
    done = ran(judge, "--kind", "deadly", "--kind", "fine")
    assert done.returncode == 1 and "a process of the judge died" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_ended_says_what_it_has(judge, number):
    command = [*judge, "--jobs", "2", "--kind", "endless"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for _ in range(8):  # cases 3 and 7 never end: two processes come no further
            assert process.stdout.readline() == "begun\n"
        process.send_signal(number)
        rest = process.stdout.read()
        assert process.wait(timeout=60) == 128 + number
    assert f"ended by {number.name}: " in rest and " of 100 cases" in rest
    assert "not judged to the end: endless 3" in rest and " begun\n" in rest


def test_cases_are_shared_out_and_mixed():
    kinds = {"a": Kind(None, 700), "b": Kind(None, 300)}
    assert case_runner._shared_out(kinds, None) == {"a": 700, "b": 300}
    assert case_runner._shared_out(kinds, 11) == {"a": 8, "b": 3}
    assert case_runner._shared_out({"b": kinds["b"]}, 5) == {"b": 5}
    mixed = case_runner._by_turns({"a": 4, "b": 2}, 10)
    assert sorted(mixed) == [*(("a", 10 + k) for k in range(4)), ("b", 10), ("b", 11)]
    assert [name for name, _ in mixed] == ["a", "b", "a", "a", "b", "a"]
