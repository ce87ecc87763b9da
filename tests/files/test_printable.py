"""Labels and names from files do nothing to the terminal that they are printed on."""

import json

import pytest
from click.testing import CliRunner

from bigscreen.cli.commands import group
from bigscreen.files.printable import printable

EVIL = "\x1b[31mred\x1b]0;title\x07\u202eback\x9b2J"


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("plain label", "plain label"),
        ("Grün 標 é\u00a0x", "Grün 標 é\u00a0x"),
        (EVIL, "\\x1b[31mred\\x1b]0;title\\x07\\u202eback\\x9b2J"),
        ("two\nlines\r\x08\x7f", "two\\nlines\\r\\x08\\x7f"),
        ("\udc80", "\\udc80"),
    ],
)
def test_what_is_not_seen_is_spelled_out(text, seen):
    assert printable(text) == seen


def run(*args):
    done = CliRunner().invoke(group, [str(arg) for arg in args])
    shown = done.output
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert not any((ord(c) < 32 and c != "\n") or "\x7f" <= c <= "\x9f" for c in shown), shown
    assert "\u202e" not in shown
    return done.exit_code, shown


def table(path, labels, name="x"):
    lines = [f"{i},{i % 7},{labels[i % len(labels)]}" for i in range(60)]
    path.write_text(f"{name},z,label\n" + "\n".join(lines) + "\n")
    return path


def test_no_command_prints_what_a_label_says(tmp_path):
    source = table(tmp_path / "a.csv", [EVIL, "b", "c" + EVIL], name="x" + EVIL)
    store, model = tmp_path / "a.store", tmp_path / "m.bsm"
    code, shown = run("ingest", source, store, "--holdout", "0.3", "--json", tmp_path / "a.json")
    assert code == 0 and "\\x1b[31mred" in shown
    assert EVIL in json.loads((tmp_path / "a.json").read_text())["store"]["labels"]
    held = tmp_path / "a-holdout.store"
    for args in (
        ["info", store],
        ["plan", store, "--landmarks", "20"],
        ["fit", store, model, "--landmarks", "20"],
        ["info", model],
        ["evaluate", model, held],
        ["predict", model, held, tmp_path / "p.csv"],
    ):
        code, shown = run(*args)
        assert code == 0, shown
    assert "\\x1b[31mred" in run("evaluate", model, held)[1]


def test_no_sentence_prints_what_a_file_says(tmp_path):
    table(tmp_path / "a.csv", ["a", "b"])
    assert run("ingest", tmp_path / "a.csv", tmp_path / "a.store")[0] == 0
    other = table(tmp_path / "b.csv", ["a", EVIL])
    # (Labels that an earlier store lacks are counted, and named.)
    code, shown = run("ingest", other, tmp_path / "b.store", "--like", tmp_path / "a.store")
    assert code == 0 and "\\x1b" in shown, shown
    for args in (
        ["ingest", other, tmp_path / "c.store", "--label", EVIL],
        ["ingest", other, tmp_path / "c.store", "--positive", "none such"],
        ["info", f"{tmp_path}/{EVIL}"],
        ["fit", tmp_path / "a.store", tmp_path / "m.bsm", f"--{EVIL}"],
    ):
        code, shown = run(*args)
        assert code == 2 and "\\x1b" in shown, shown
