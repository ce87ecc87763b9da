"""SUSY (5,000,000 x 18, two labels): a Nystrom-kernel machine beside a linear one.

    python -m pipelines.scale.susy [--data SUSY.csv.gz] [--rows N] [--landmarks M]
                             [--scheduler tcp://HOST:8786 | --workers N] [--json FILE]

SUSY.csv.gz is at the UCI repository. Without it the rows are made up: a stand-in whose smallest
possible error is 20 %, which every output says.
"""

from __future__ import annotations

from bigscreen.data.synthetic import bayes_error, susy_like
from pipelines.scale.common import Experiment, arguments

ROWS = 5_000_000
HOLDOUT = 0.1


def main() -> None:
    parser = arguments("SUSY: a Nystrom-kernel machine beside a linear one.")
    parser.add_argument("--landmarks", type=int, default=1000, metavar="M", help="[1000]")
    parser.add_argument("--gamma", type=float, default=1 / 32, help="[1/32]")
    parser.add_argument("--C", type=float, default=1.25, help="[1.25]")
    given = parser.parse_args()
    run = Experiment("SUSY", given, susy_like, ROWS, "a formula of 18 features, Bayes error 20 %")
    with run.ready(HOLDOUT, scale="standard", label=0, header=False):
        run.fit("linear", kernel="linear", C=given.C)
        run.fit("rbf", kernel="rbf", gamma=given.gamma, C=given.C, landmarks=given.landmarks)
        if not given.data:
            run.record["bayes_error"] = bayes_error()
        run.finish()


if __name__ == "__main__":
    main()
