"""From a raw file to an honest model: commands as a person types them, warnings, held-out figures.

    python -m pipelines.bench.first_models [--only people wine magic kdd99 computer] [--out DIR]

Each table is written as one file as it is found: people (made up: customers who leave or stay;
numbers and texts with gaps, dates, an id), white wines of quality 7 and more against the others,
magic, KDD-99 (50,000 rows by chance, normal connections against the rest) and computer (a
regression). Then `bigscreen` runs: ingest with a hold-out, fit, evaluate; if a warning says that
the model is no better than a constant, the fit again with balanced weights. Every line that is
typed, every warning, and the figures of the held-out rows are printed.
"""

from __future__ import annotations

import contextlib
import csv
import json
import math
import os
import random
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from pipelines.bench import common, raw_tables

SETS = ("people", "wine", "magic", "kdd99", "computer")
LABELS = {"people": "left"}
"""The name of the label's column, if a table has names; else it is the last column."""
OPTIONS = {
    "people": (["--drop", "customer", "--impute", "median"], []),
    "computer": (["--regression"], ["--problem", "svr"]),
}
"""What the table itself asks for, of ingest and of fit."""
FIGURES = ("error", "balanced_accuracy", "auc", "r2", "rmse")


def people(rows: int = 20_000) -> list[list[str]]:
    """Make up rows about customers who leave or stay, with a header."""
    draw = random.Random(0)
    table = [["customer", "joined", "age", "income", "plan", "city", "visits", "left"]]
    for k in range(rows):
        age, visits = draw.randint(18, 85), draw.choice([0, 0, 1, 2, 3, 5, 8])
        income, plan = draw.lognormvariate(10, 0.6), draw.choice(["basic", "basic", "plus", "pro"])
        year = draw.randint(2015, 2024)
        joined = f"{year}-{draw.randint(1, 12):02}-{draw.randint(1, 28):02}"
        often = -4.2 + 2.5 * (visits == 0) + (plan == "basic") + 2 * (abs(age - 30) < 8)
        left = draw.random() < 1 / (1 + math.exp(-often - (year > 2022)))
        table.append(
            [
                f"C{k:06}",
                joined,
                "" if draw.random() < 0.05 else str(age),
                "NA" if draw.random() < 0.1 else f"{income:.2f}",
                plan,
                draw.choice(["Oslo", "Bergen", "Trondheim", "?"]),
                str(visits),
                "yes" if left else "no",
            ]
        )
    return table


def typed(words: list[str], said: dict[str, list[str]]) -> None:
    """Run a command as a person does; add its line, and its warnings, to what was ``said``."""
    said["typed"].append(f"bigscreen {shlex.join(words)}")
    command = [sys.executable, "-c", "from bigscreen.cli import main; main()", *words]
    env = {**os.environ, "PYTHONPATH": str(common.ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    if done.returncode:
        raise SystemExit(f"{said['typed'][-1]}\n{done.stderr}")
    said["warnings"] += re.findall(r"^warning: (.*)$", done.stderr, re.M)


def first_model(name: str) -> list[dict[str, Any]]:
    """Make the first model of a table, and a second one if a warning asks for it."""
    rows = people() if name == "people" else raw_tables.table(name)
    with open(f"{name}.csv", "w", newline="") as file:
        csv.writer(file).writerows(rows)
    read, how = OPTIONS.get(name, ([], []))
    label = ["--label", LABELS[name]] if name in LABELS else []
    said: dict[str, list[str]] = {"typed": [], "warnings": []}
    typed(["ingest", f"{name}.csv", f"{name}.store", *label, "--holdout", ".2", *read], said)
    tries = []
    while True:
        model = f"{name}-{len(tries)}.bsm"
        typed(["fit", f"{name}.store", model, *how], said)
        typed(["evaluate", model, f"{name}-holdout.store", "--json", "found.json"], said)
        found = json.loads(Path("found.json").read_text())
        figures = {key: found[key] for key in FIGURES if found.get(key) is not None}
        tries.append({"table": name, "options": how, **figures, **said})
        said = {"typed": [], "warnings": []}
        if len(tries) > 1 or not any("--class-weight" in each for each in tries[0]["warnings"]):
            return tries
        how = [*how, "--class-weight", "balanced"]


def main() -> None:
    """Run, print, and write the record."""
    options = common.arguments(__doc__.splitlines()[0], SETS).parse_args()
    found: list[dict[str, Any]] = []
    with common.work_folder(options.work) as folder, contextlib.chdir(folder):
        for name in options.only:
            for one in first_model(name):
                found.append(one)
                warned = [f"  warning: {each}" for each in one["warnings"]]
                print("\n".join([*one["typed"], *warned]), flush=True)
                print("  ", {key: one[key] for key in FIGURES if key in one}, flush=True)
    lines = [
        [
            one["table"],
            " ".join(one["options"]),
            str(len(one["typed"])),
            str(len(one["warnings"])),
            *(f"{one[key]:.4g}" if key in one else "" for key in FIGURES),
        ]
        for one in found
    ]
    common.show("from a raw file", ["table", "fit", "lines", "warnings", *FIGURES], lines)
    common.save(options.out, "first_models", {"models": found})


if __name__ == "__main__":
    main()
