"""Runs the papers' experiments for which there is data, and writes one page with the results.

    python -m pipelines.papers.report --out FOLDER [--quick] [--only wang2014.toys ...]

Each experiment runs in a process of its own; its output is kept in FOLDER. The page,
FOLDER/papers.html, shows all records in the folder, with figures. It begins with the results that
are not reproduced, and an index of the papers' numbered tables and figures. If an experiment
failed, the page shows its error, and the command exits with 1.
"""

from __future__ import annotations

import argparse
import base64
import html
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bigscreen.fleet.inline import Inline
from bigscreen.report import report
from pipelines.papers.index import DOCUMENTS, verdict


@dataclass(frozen=True)
class Experiment:
    """An experiment: a module of the pipelines, and the options for a run of some seconds."""

    name: str
    quick: str


SECTIONS = {
    "Wang, Wonka, Ye 2014: scaling SVM and LAD by exact data reduction": (
        Experiment("wang2014.toys", "--rows 200"),
        Experiment("wang2014.svm", "--rows 200"),
        Experiment("wang2014.lad", "--rows 200"),
    ),
    "Yang et al.: SRBO-nu-SVM": (
        Experiment("yang_srbo.supervised", "--rows 150 --step .1 --powers 1"),
        Experiment("yang_srbo.one_class", "--rows 300 --step .1 --powers 1"),
        Experiment("yang_srbo.toys", "--rows 100 --step .1 --powers 0"),
        Experiment("yang_srbo.remaining", "--rows 100 --step .1"),
        Experiment("yang_srbo.solvers", "--rows 100"),
        Experiment("yang_srbo.mnist", "--rows 100 --step .1 --powers 3"),
        Experiment("yang_srbo.ratio", "--rows 60 --finest .02 --step .1"),
        Experiment("yang_srbo.delta", "--rows 100 --step .1"),
        # Of what the others have measured.
        Experiment("yang_srbo.wilcoxon", ""),
    ),
    "Zimmert et al. 2015: safe screening for support vector machines": (
        Experiment("zimmert2015.screening", "--rows 200"),
    ),
    "Tanji, Della Vecchia, Glineur, Villa 2023: Snacks": (
        Experiment("tanji2023.tables", "--rows 1500 --landmarks 60 --epochs 1"),
        Experiment("tanji2023.figures", "--rows 1500 --landmarks 60 --points 2"),
        Experiment("tanji2023.landmarks", "--rows 1500 --landmarks 30 60 --seeds 1"),
    ),
}
EXPERIMENTS = [one for section in SECTIONS.values() for one in section]


def main() -> None:
    names = [one.name for one in EXPERIMENTS]
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for records and the page")
    parser.add_argument("--quick", action="store_true", help="few rows and coarse grids: a trial")
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="[all]")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    runs = read(given.out / "papers.json").get("runs", {})
    for one in EXPERIMENTS:
        if one.name in given.only:
            runs[one.name] = run(one, given.out, given.quick)
            report.write_json(given.out / "papers.json", {"machine": machine(), "runs": runs})
    page = given.out / "papers.html"
    page.write_text(written(given.out, runs), encoding="utf-8")
    failed = [name for name in given.only if runs[name]["code"]]
    print(page)
    if failed:
        sys.exit(f"error: {', '.join(failed)} failed; {given.out} holds what each of them printed")


def run(one: Experiment, out: Path, quick: bool) -> dict[str, Any]:
    """Run an experiment; return its command, seconds, exit status and the end of its errors."""
    options = one.quick.split() if quick else []
    print(f"{one.name} {' '.join(options)}", flush=True)
    # (Remove records of earlier runs.)
    (out / f"{one.name}.json").unlink(missing_ok=True)
    # A core type set from outside can halve the speed of OpenBLAS.
    environment = {name: text for name, text in os.environ.items() if name != "OPENBLAS_CORETYPE"}
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", f"pipelines.{one.name}", "--out", out, *options],
        capture_output=True,
        text=True,
        env=environment,
    )
    seconds = time.monotonic() - began
    (out / f"{one.name}.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
    words = "failed, " if done.returncode else ""
    print(f"   {words}{report.seconds(seconds)}", flush=True)
    return {
        "command": f"python -m pipelines.{one.name} {' '.join(options)}".strip(),
        "trial": bool(options),
        "seconds": seconds,
        "code": done.returncode,
        "complaint": done.stderr[-2000:] if done.returncode else "",
    }


def machine() -> dict[str, Any]:
    """Describe the machine, on which times depend."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names_of_cpu = [line for line in lines if "model name" in line]
    names = ("bigscreen", "numpy", "scipy", "scikit-learn", "numba")
    return {
        "cpu": names_of_cpu[0].split(":")[1].strip() if names_of_cpu else platform.processor(),
        "cores": Inline().workers,
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in names},
    }


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


# -- the page --------------------------------------------------------------------------------------
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem;
  color: #222; background: #fff; }
h1 { font-size: 1.5rem; }
h2 { font-size: 1.25rem; margin-top: 3rem; border-bottom: 1px solid #ccc; }
h3 { font-size: 1.05rem; margin-top: 2rem; } code, .small { font-size: .85rem; color: #555; }
table { border-collapse: collapse; font-size: .85rem; margin: 1rem 0; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; }
th, td { padding: .2rem .6rem; text-align: right; border-bottom: 1px solid #e4e4e4;
  font-variant-numeric: tabular-nums; }
th:first-child, td:first-child, .index td { text-align: left; } th { border-bottom-color: #888; }
img { max-width: 100%; } .wide { overflow-x: auto; }
.failed { border-left: 4px solid #b00; padding: .2rem 1rem; background: #fbeaea; }
pre { white-space: pre-wrap; font-size: .8rem; }
"""


def written(out: Path, runs: dict[str, dict[str, Any]]) -> str:
    """Make the page: self-contained HTML with all records in the folder."""
    facts = ", ".join(f"{name} {value}" for name, value in machine().items())
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width">',
        f"<title>The papers' experiments</title><style>{STYLE}</style>",
        "<h1>The papers' experiments, repeated</h1>",
        "<p>Numbers in brackets, or in a line of their own, are the paper's. Their times are of "
        "other machines: only ratios compare. The papers' experiments are here as far as their "
        "data are; every table of Yang et al. says how many of its data sets that is.</p>",
        f'<p class="small">{_text(facts)}</p>',
    ]
    failed = [name for name, one in runs.items() if one["code"]]
    if failed:
        parts.append(f'<p class="failed">Failed: {_text(", ".join(failed))}</p>')
    if any(one.get("trial") for one in runs.values()):
        parts.append("<p>A trial on few rows: it does not say what is reproduced.</p>")
    missed = [
        f'<li><a href="#{name}">{name}</a>: {_text(line)}</li>'
        for name in runs
        for line in read(out / f"{name}.json").get("not_reproduced", ())
    ]
    if missed:
        parts.append(f"<h2>Not reproduced</h2><ul>{''.join(missed)}</ul>")
    parts += _index(out, runs)
    for section, experiments in SECTIONS.items():
        shown = [one.name for one in experiments if one.name in runs]
        if shown:
            parts.append(f"<h2>{_text(section)}</h2>")
        for name in shown:
            parts += _experiment(out, name, runs[name])
    return "\n".join(parts) + "\n</html>\n"


def _index(out: Path, runs: dict[str, dict[str, Any]]) -> list[str]:
    """Make the index of all numbered tables and figures with their verdicts."""
    rows = []
    for document, items in DOCUMENTS.items():
        for item in items:
            run, record = runs.get(item.experiment), read(out / f"{item.experiment}.json")
            word, why = verdict(item, record, run)
            linked = _text(item.name)
            if run is not None:
                linked = f'<a href="#{item.experiment}">{linked}</a>'
            rows.append((_text(document), linked, _text(word), _text(why)))
        if not items:
            rows.append((_text(document), "", "", "no table or figure has a number"))
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    heads = "".join(f"<th>{head}</th>" for head in ("document", "", "verdict", "why"))
    about = "<h2>Every numbered table and figure</h2>"
    return [about, f'<div class="wide"><table class="index"><tr>{heads}</tr>{body}</table></div>']


def _experiment(out: Path, name: str, own: dict[str, Any]) -> list[str]:
    record = read(out / f"{name}.json")
    parts = [f'<h3 id="{name}">{_text(record.get("question", name))}</h3>']
    line = f"{own['command']}, {report.seconds(own['seconds'])}"
    parts.append(f"<p><code>{_text(line)}</code></p>")
    if own["code"]:
        complaint = f"<pre>{_text(own['complaint'])}</pre>"
        parts.append(f'<div class="failed">Ended with {own["code"]}.{complaint}</div>')
    for table in record.get("tables", ()):
        heads = "".join(f"<th>{_text(head)}</th>" for head in table["heads"])
        rows = ("".join(f"<td>{_text(cell)}</td>" for cell in row) for row in table["rows"])
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        caption = f"<caption>{_text(table['title'])}</caption>"
        parts.append(f'<div class="wide"><table>{caption}<tr>{heads}</tr>{body}</table></div>')
    for figure in record.get("figures", ()):
        image = base64.b64encode((out / figure["file"]).read_bytes()).decode()
        title = _text(figure["title"])
        parts.append(f'<p><img alt="{title}" src="data:image/png;base64,{image}"><br>{title}</p>')
    lines = [f"NOT reproduced: {line}" for line in record.get("not_reproduced", ())]
    notes = "".join(f"<li>{_text(note)}</li>" for note in (*lines, *record.get("notes", ())))
    if notes:
        parts.append(f"<ul>{notes}</ul>")
    return parts


def _text(words: object) -> str:
    return html.escape(str(words))


if __name__ == "__main__":
    main()
