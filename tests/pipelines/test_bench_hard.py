"""The benchmark of hard machines runs as documented."""

import pytest
from scripts import script


@pytest.mark.slow
def test_every_solver_is_beside_the_others():
    done = script("bench.hard", "--quick", "--seconds", 2)
    table = done.stdout
    assert all(name in table for name in ("interior", "newton", "pairs", "cd", "LIBLINEAR"))
    (line,) = (line for line in table.splitlines() if "700 x 400" in line)
    gap = float(line.split("s, ")[1].split()[0].rstrip("|"))
    assert gap <= 1e-6  # two seconds are plenty for one of them
    (line,) = (line for line in table.splitlines() if "569 x 30" in line)
    ours, steps, peer = (float(part.split()[0].rstrip("|")) for part in line.split("s, ")[1:])
    assert ours <= 1e-3 and steps > ours and peer > ours
