"""The HTML pages of a model, with its evaluation on a store, and of a path."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from bigscreen.model.model import Model
from bigscreen.model.solved_path import SolvedPath
from bigscreen.problems.point import format_gap
from bigscreen.report import certificate, evaluation, figures, report, tune
from bigscreen.report import path as report_path
from bigscreen.report.figures import picture
from bigscreen.report.page import Grid, Page, Section

# The text above a model's certificate: a small gap does not mean that the model predicts well.
NOISY = "What the gap says is true of the training rows; how often it errs, other rows must tell."


def model_page(
    model: Model,
    name: str,
    held: Section | None = None,
    tiles: Mapping[str, str] | None = None,
    table: Section | None = None,
) -> Page:
    """Make the page of a fitted model.

    Parameters
    ----------
    model : Model
    name : str
        The model's name, for the title.
    held : Section, optional
        The evaluation on a store (see `evaluation_section`).
    tiles : mapping, optional
        Key numbers of the evaluation, for the head of the page.
    table : Section, optional
        The columns of a store's source (see `bigscreen.report.profile.section`).

    Raises
    ------
    InputError
        If matplotlib is not installed.
    """
    report_path.check_matplotlib()
    record, known = certificate.fit_record(model), model.provenance
    proved = bool(record["proved"]) and record["relative_gap"] is not None
    own = {
        **({"relative gap, proved": format_gap(record["relative_gap"])} if proved else {}),
        "training rows": report.count(record["rows"]),
        "time": report.seconds(record["seconds"]["total"]),
        "peak memory": report.size(record["peak_pss_bytes"]),
    }
    search = known.get("search")
    parts = [
        held,
        Section("Certificate", NOISY, facts=certificate.facts(record)),
        _solve(known, record),
        _ledger(record),
        None if search is None else _search(search),
        table,
        Section("Provenance", facts=_origin(known)),
    ]
    return Page(
        title=name,
        subtitle=_in_a_line(model, record),
        verdict=_verdict(record),
        proved=proved,
        tiles={**(tiles or {}), **own},
        warnings=certificate.warnings(record),
        sections=[part for part in parts if part is not None],
    )


def path_page(path: SolvedPath, name: str) -> Page:
    """Make the page of a path.

    Parameters
    ----------
    path : SolvedPath
    name : str
        The path's name, for the title.

    Raises
    ------
    InputError
        If matplotlib is not installed.
    """
    report_path.check_matplotlib()
    facts = report_path.totals(path)
    columns, points = report_path.point_rows(path)
    drawn = {
        CAPTIONS[what]: picture(partial(_path_figure, draw, path))
        for what, draw in report_path.drawn(path).items()
    }
    tiles = {"points": str(len(path))}
    if path.best is not None and path.scores is not None:
        tiles |= {
            f"best {path.parameter}": f"{path.values[path.best]:.4g}",
            f"its {path.record['scoring']}": f"{path.scores.mean(axis=0)[path.best]:.4f}",
        }
    known = path.record["provenance"]
    tiles |= {
        "training rows": report.count(known["rows"]),
        "time": report.seconds(path.record["seconds"]["total"]),
    }
    gap = facts.get("largest relative gap")
    verdict = f"Largest relative gap: {gap}" if gap else "Nothing is proved of these points"
    grid = Grid(f"{len(path)} points", columns, list(points.values()))
    return Page(
        title=name,
        subtitle=f"A path over {path.parameter}, {path.record['problem']}, "
        f"{_kernel(path.record['kernel'])}",
        verdict=f"{verdict}.",
        proved=gap is not None and path.missed is None,
        tiles=tiles,
        warnings=[path.missed] if path.missed else [],
        sections=[
            Section("Along the path", figures=drawn, facts=facts, tables=[grid]),
            Section("Provenance", facts=_origin(known)),
        ],
    )


CAPTIONS = {
    "rejection": "Rows that the rules identified before a solve",
    "rules": "The same, rule by rule",
    "remaining": "Rows left to the solver, and rows that support the machine",
    "validation": "Held-out rows: mean over the folds, and its spread",
}
"""Captions of the plots of a path, by the names that `bigscreen.report.path.drawn` has for them."""


def evaluation_section(record: Mapping[str, Any], store: str) -> tuple[Section, dict[str, str]]:
    """Make a section from an evaluation, and its key numbers for the head of a page.

    Parameters
    ----------
    record : mapping
        The result of `bigscreen.evaluate.evaluate.evaluate`.
    store : str
        The store's name.
    """
    facts = evaluation.facts(record)
    drawn: dict[str, str] = {}
    tables = []
    if "confusion" in record:
        counts, labels = record["confusion"], list(record["confusion"])
        drawn["Confusion: rows by true and by predicted label"] = picture(
            partial(figures.confusion, counts=counts)
        )
        tables = [_grid("label", evaluation.by_label(record["by_label"]))]
    if "targets" in record:
        tables = [_grid("target", evaluation.by_target(record["targets"]))]
    if "curve" in record:
        positive = record["by_label"][labels[1]]["rows"]
        drawn[f"ROC of label {labels[1]}: area {record['auc']:.4f}"] = picture(
            partial(figures.roc, curve=record["curve"])
        )
        precise = f"average precision {record['average_precision']:.4f}"
        drawn[f"Precision and recall of label {labels[1]}: {precise}"] = picture(
            partial(
                figures.precision_recall, curve=record["curve"], share=positive / record["rows"]
            )
        )
        drawn["Scores: above 0 the second label is predicted"] = picture(
            partial(figures.histograms, found=record["scores"], names=labels)
        )
    if "reliability" in record:
        drawn[f"Reliability: calibration error {record['calibration_error']:.4f}"] = picture(
            partial(figures.reliability, tenths=record["reliability"])
        )
    for name, part in record.get("targets", {"": record}).items():
        if "joint" in part:
            of = f" of {name}" if name else ""
            drawn[f"Rows by target and by prediction{of}"] = picture(
                partial(figures.predicted, found=part["joint"])
            )
    first = {
        name: facts[name] for name in ("error", "auc", "r2", "rmse", "outside") if name in facts
    }
    tiles = {f"{name}, {report.count(record['rows'])} rows": text for name, text in first.items()}
    return Section(f"On {store}", figures=drawn, facts=facts, tables=tables), tiles


def _grid(what: str, table: Mapping[str, Mapping[str, str]]) -> Grid:
    """Make the table "By label" or "By target" (``what``), of cells by name and column."""
    columns = [what, *next(iter(table.values()))]
    return Grid(f"By {what}", columns, [[name, *cells.values()] for name, cells in table.items()])


def _solve(known: Mapping[str, Any], record: Mapping[str, Any]) -> Section | None:
    """Make the section with the gap and the open rows at every pass; None without a history.

    ``known``: the model's provenance; ``record``: the result of `fit_record`.
    """
    history = known["history"]
    if not history:
        return None
    drawn = {
        "How far from the best objective, at most": picture(
            partial(figures.gaps, history=history, tol=record["tol"])
        ),
        "Rows that are not decided": picture(partial(figures.rows_open, history=history)),
    }
    return Section("The fit, pass by pass", figures=drawn)


def _ledger(record: Mapping[str, Any]) -> Section | None:
    """Make the section of what is proved of the rows; None if the model has no ledger.

    ``record``: the result of `fit_record`.
    """
    found = record["ledger"]
    if found is None:
        return None
    scores = found["scores"]
    text = (
        "Out: the best machine is the same without the row. Bound: it pulls as hard as its weight "
        "allows. Open: neither is proved; a smaller tol decides more."
    )
    height = 1.6 + 0.3 * len(scores)
    figure = picture(partial(figures.statuses, scores=scores), 7, height)
    shown = {certificate.describe_statuses(found): figure}
    return Section("What is proved of the rows", text, figures=shown)


def _search(record: Mapping[str, Any]) -> Section:
    """Make the section of the search for parameters (``record``: of `bigscreen.tune.search`)."""
    drawn = {
        f"Mean score, {title}": picture(draw, 7, 5)
        for title, draw in tune.heat_maps(record).items()
    }
    columns, rows, _ = tune.best_rows(record)
    grid = Grid("The candidates that got farthest, the best first", columns, rows)
    return Section("The search", figures=drawn, facts=tune.facts(record), tables=[grid])


def _origin(known: Mapping[str, Any]) -> dict[str, str]:
    """Convert a model's provenance ``known`` to texts: rows, options and versions."""
    asked = {
        name: value
        for name, value in known["parameters"].items()
        if value is not None and not isinstance(value, Mapping)
    }
    versions = {name: text for name, text in known.get("versions", {}).items() if text}
    return {
        **({"imported from": known["imported"]} if known.get("imported") else {}),
        "rows": f"fingerprint {known['fingerprint']}" if known["fingerprint"] else "not stored",
        "options": ", ".join(f"{name} {value}" for name, value in asked.items()),
        "versions": ", ".join(f"{name} {text}" for name, text in versions.items()),
    }


def _in_a_line(model: Model, record: Mapping[str, Any]) -> str:
    """Describe a model in a line: problem, kernel, landmarks or support rows, C or nu."""
    parts = [record["problem"], _kernel(model.kernel.to_dict())]
    if model.support is not None:
        parts.append(f"exact, {report.count(len(model.support))} support rows")
    elif model.landmarks is not None:
        parts.append(f"{report.count(model.landmarks.shape[0])} landmarks")
    asked = model.provenance["parameters"]
    own = "nu" if record["problem"] in ("nu-svc", "one-class") else "C"
    parts += [f"{own} {asked[own]:g}"] if asked.get(own) is not None else []
    return ", ".join(parts)


def _kernel(known: Mapping[str, Any]) -> str:
    """Describe a kernel, given as its name and parameters, such as "rbf kernel (gamma 0.5)"."""
    name, *parameters = known.items()
    said = [f"{key} {value:.4g}" for key, value in parameters]
    return " ".join([f"{name[1]} kernel", *([f"({', '.join(said)})"] if said else [])])


def _verdict(record: Mapping[str, Any]) -> str:
    """Say in a sentence what is proved of a model (``record``: the result of `fit_record`)."""
    if record["no_certificate"]:
        return "Nothing is proved of this model."
    if record["relative_gap"] is None:
        return "Nothing is proved: the kernel is not positive semidefinite."
    rows = report.count(record["rows"])
    return f"Proved over all {rows} rows: the objective is {certificate.describe_distance(record)}."


def _path_figure(draw: Any, path: SolvedPath, ax: Any) -> None:
    """Draw a path into axes with arguments in another order: ``draw`` takes the axes first."""
    draw(ax, path)
