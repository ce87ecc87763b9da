"""rcv1 (697,641 x 47,236, sparse, two labels): a linear machine, and one on landmarks.

    python -m pipelines.scale.rcv1 [--data rcv1_test.binary.bz2 rcv1_train.binary.bz2] [--rows N]
                             [--landmarks M] [--scheduler tcp://HOST:8786 | --workers N]
                             [--work FOLDER] [--pages FOLDER] [--json FILE]

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
    parser = arguments("rcv1: a linear machine on sparse rows, and one on landmarks.")
    parser.add_argument("--landmarks", type=int, default=1000, metavar="M", help="[1000]")
    parser.add_argument("--C", type=float, default=1.0, help="[1]")
    given = parser.parse_args()
    about = "Zipf's words, unit rows, a sparse linear rule, 2 % of the labels wrong"
    run = Experiment("rcv1", given, rcv1_like, ROWS, about)
    with run.ready(HOLDOUT):
        run.fit("linear", kernel="linear", solver="cd", C=given.C)
        run.fit("rbf", kernel="rbf", gamma=1.0, C=given.C, landmarks=given.landmarks)
        if not given.data:
            run.record["bayes_error"] = RCV1_NOISE
        run.finish()


if __name__ == "__main__":
    main()
