"""The bench of small fits, its own way."""

from scripts import script


def test_quick() -> None:
    done = script("bench.small", "--quick", "--repeat", 1)
    assert done.returncode == 0, done.stderr
    head, line = done.stdout.splitlines()
    assert line.startswith("200 rows") and float(line.split()[-1]) <= 1e-3
