"""The benchmark of shards reads the same rows from every layout."""

from scripts import script


def test_every_layout_is_read():
    done = script("bench.sharding", "--rows", 1000, "--columns", 8192)
    assert done.returncode == 0, done.stderr  # it compares what it reads
    rows = [line for line in done.stdout.splitlines() if " us " in line]
    assert [int(line.split("│")[2]) for line in rows] == [1, 1, 1, 1]
