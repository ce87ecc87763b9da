"""On terminals that are not UTF-8, names are escaped, and no work is lost."""

import os
import subprocess
import sys

import pytest

PROGRAM = "from bigscreen.cli import main; main()"

ENVIRONMENTS = {
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "C": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
}


def run(environment, *args):
    """Run the command line in a process; return its exit code, and its output as Latin-1."""
    env = {**os.environ, **environment}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, args)], capture_output=True, env=env
    )
    return done.returncode, (done.stdout + done.stderr).decode("latin-1")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ENVIRONMENTS)
def test_tables_with_other_names_end_well(tmp_path, kind):
    rows = "".join(f"{i % 5},{i % 3},t{i % 2}é,{['ja', 'né'][i % 2]}\n" for i in range(20))
    (tmp_path / "a.csv").write_text("größe,Ωmega,ville,label\n" + rows, encoding="utf-8")
    code, text = run(ENVIRONMENTS[kind], "ingest", tmp_path / "a.csv", tmp_path / "s")
    assert code == 0 and "Traceback" not in text and r"\u03a9mega" in text, text
    assert ("größe" if kind == "latin-1" else r"gr\xf6\xdfe") in text
    code, text = run(ENVIRONMENTS[kind], "info", tmp_path / "nö.store")
    assert code == 2 and "Traceback" not in text and "error: " in text
