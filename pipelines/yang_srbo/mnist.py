"""What does SRBO save on images: digit 1 against each other digit? (Yang, tables X and XI).

    python -m pipelines.yang_srbo.mnist [--digits 0 2 ...] [--rows 1000] [--step .02] [--powers 2 4]

MNIST's own training and test images; by default a part of them, said so.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pipelines.papers import common as papers
from pipelines.papers import data_sets
from pipelines.yang_srbo import common

PAPER = {
    ("linear", 0): (99.05, 419.6875, 99.05, 384.6198, 16.48, 1.0911),
    ("linear", 2): (97.68, 264.9781, 97.68, 203.6748, 20.34, 1.3009),
    ("linear", 3): (98.62, 348.3195, 98.62, 184.6195, 35.34, 1.8866),
    ("linear", 4): (99.69, 264.8426, 99.69, 203.6485, 42.16, 1.3004),
    ("linear", 5): (98.33, 213.6482, 98.33, 168.1644, 45.31, 1.2704),
    ("linear", 6): (99.31, 224.6183, 99.31, 167.3495, 31.26, 1.3422),
    ("linear", 7): (99.68, 469.3165, 99.68, 326.1978, 12.34, 1.4387),
    ("linear", 8): (98.84, 209.1648, 98.84, 111.3462, 30.16, 1.8785),
    ("linear", 9): (97.63, 316.3498, 97.63, 216.3497, 26.17, 1.4622),
    ("RBF", 0): (100.0, 13.9486, 100.0, 13.4862, 22.16, 1.0342),
    ("RBF", 2): (100.0, 15.3947, 100.0, 15.6487, 10.34, 0.9837),
    ("RBF", 3): (100.0, 14.3875, 100.0, 7.3648, 29.43, 1.9535),
    ("RBF", 4): (100.0, 12.6487, 100.0, 11.3948, 21.46, 1.1100),
    ("RBF", 5): (100.0, 11.2846, 100.0, 6.3485, 25.31, 1.7775),
    ("RBF", 6): (100.0, 11.3648, 100.0, 8.3691, 42.16, 1.3579),
    ("RBF", 7): (100.0, 9.3648, 100.0, 7.9154, 37.84, 1.1831),
    ("RBF", 8): (100.0, 13.6489, 100.0, 6.3948, 36.27, 2.1343),
    ("RBF", 9): (100.0, 16.4684, 100.0, 12.9486, 14.35, 1.2718),
}
"""The paper's accuracy and seconds of nu-SVM and SRBO with DCDM, screening ratio, speedup."""

DIGITS = [0, 2, 3, 4, 5, 6, 7, 8, 9]
WAYS = ["nu-SVM", "nu-SVM, warm", "SRBO", "SRBO + cut"]


def main() -> None:
    parser = papers.arguments(papers.question(__doc__), rows=1000)
    parser.add_argument("--digits", type=int, nargs="+", choices=DIGITS, default=DIGITS)
    parser.add_argument("--step", type=float, default=0.02, help="of nu [.02; the paper .001]")
    parser.add_argument(
        "--powers", type=int, nargs="+", default=[2, 4, 6], help="sigma = 2^i [2 4 6]"
    )
    given = parser.parse_args()
    sigmas: list[float | None] = [2.0**i for i in given.powers]
    found: list[dict[str, Any]] = []
    values = np.array([0.5])
    for digit in given.digits:
        train, test = (part.first(given.rows) for part in data_sets.mnist_1_against(digit))
        grid = common.Grid(None if not train.about else given.rows, given.step, tuple(given.powers))
        values = common.nus(len(train.y), given.step)
        for kernel, widths in (("linear", [None]), ("RBF", sigmas)):
            one = common.compared(train, test, widths, values, WAYS, c_svm=False)
            found.append({**one, "kernel": kernel, "digit": digit, "grid": grid.described(kernel)})
    tables = []
    for number, kernel in (("X", "linear"), ("XI", "RBF")):
        lines = [_line(one) for one in found if one["kernel"] == kernel]
        tables.append(papers.table(f"Table {number}: {kernel}", HEADS, lines, (f"table {number}",)))
    record: dict[str, Any] = {
        "question": papers.question(__doc__),
        "notes": [
            *common.grid_notes(values, sigmas),
            f"training images: {found[0]['about']}; as many test images at most",
            "in brackets the paper's columns with DCDM, on all images; those with quadprog are in "
            "its tables X and XI only",
            "objectives with and without screening differ by "
            f"{max(one['objectives_apart'] for one in found):.1e} of themselves at most",
        ],
        "tables": tables,
        "sets": found,
    }
    papers.keep(given.out, "yang_srbo.mnist", record, {})


HEADS = (
    *("1 against", "nu-SVM acc", "s cold", "s warm", "SRBO acc", "s", "screened %", "speedup"),
    *(papers.BEYOND, "with cut: s", "screened %", "verdict"),
)


def _line(one: dict[str, Any]) -> list[str]:
    plain, srbo, cut = one["nu-SVM"], one["SRBO"], one["SRBO + cut"]
    ours = [100 * plain["score"], plain["seconds"], 100 * srbo["score"], srbo["seconds"]]
    ours += [100 * srbo["screened"], one["speedup"]]
    printed = PAPER[one["kernel"], one["digit"]]
    pairs = zip(ours, printed, strict=True)
    cells = [common.beside(*pair) for pair in pairs]
    cells.insert(2, f"{one['nu-SVM, warm']['seconds']:.4g}")
    cells += [f"{one['beyond_warm']:.2f}", f"{cut['seconds']:.4g}", f"{100 * cut['screened']:.4g}"]
    accuracies = {"nu-SVM": ours[0], "SRBO": ours[2]}
    verdict = common.verdict(one, printed, accuracies)
    return [f"{one['digit']}, {one['rows']:,} rows", *cells, verdict]


if __name__ == "__main__":
    main()
