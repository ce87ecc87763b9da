"""SUSY (5,000,000 x 18, two labels): a Nystrom machine and a linear one.

    python -m pipelines.scale.susy [--data SUSY.csv.gz] [--rows N] [--landmarks M] [--work FOLDER]
                             [--scheduler tcp://HOST:8786 | --workers N] [--pages FOLDER]
                             [--json FILE]

SUSY.csv.gz is at the UCI repository. Without it the rows are made up: a stand-in whose smallest
possible error is 20 %, which every output says. With --work a run that was stopped goes on.
"""

from __future__ import annotations

from bigscreen.data.synthetic import Radii, susy_like
from pipelines.scale.common import physics

ROWS = 5_000_000
HOLDOUT = 0.1


def main() -> None:
    about = "SUSY: a Nystrom-kernel machine beside a linear one."
    physics("SUSY", about, susy_like, ROWS, HOLDOUT, Radii.rule)


if __name__ == "__main__":
    main()
