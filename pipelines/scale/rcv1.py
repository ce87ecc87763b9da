"""rcv1 (697,641 x 47,236, sparse, two labels): a linear machine by coordinate descent.

    python -m pipelines.scale.rcv1 [--data rcv1_test.binary.bz2 rcv1_train.binary.bz2] [--rows N]
                             [--scheduler tcp://HOST:8786 | --workers N] [--json FILE]

The files are at the LIBSVM site; the larger one trains, a part of the size of the smaller one is
held out. Without them the rows are made up: a stand-in of the same shape, 2 % of whose labels are
turned round, which every output says.
"""

from __future__ import annotations

from bigscreen.data.synthetic import RCV1_NOISE, rcv1_like
from pipelines.scale.common import Experiment, arguments

ROWS = 697_641
HOLDOUT = 20_242 / ROWS


def main() -> None:
    parser = arguments("rcv1: a linear machine on sparse rows by coordinate descent.")
    parser.add_argument("--C", type=float, default=1.0, help="[1]")
    given = parser.parse_args()
    about = "Zipf's words, unit rows, a sparse linear rule, 2 % of the labels wrong"
    run = Experiment("rcv1", given, rcv1_like, ROWS, about)
    with run.ready(HOLDOUT):
        run.fit("linear", kernel="linear", solver="cd", C=given.C)
        if not given.data:
            run.record["bayes_error"] = RCV1_NOISE
        run.finish()


if __name__ == "__main__":
    main()
