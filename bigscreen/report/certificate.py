"""The certificate of a fitted model, as JSON and as a table: gaps, passes, time, memory."""

from collections.abc import Callable, Mapping
from typing import Any

from bigscreen.kernels.definite import WITHOUT_PROOF
from bigscreen.model.ledger import summarise_ledgers
from bigscreen.model.model import Model
from bigscreen.options.train import PROBLEMS
from bigscreen.problems.point import (
    ROUNDING_FIELDS,
    format_gap,
    gap_or_violation,
    is_rounded_to_zero,
    meets_tol,
    relative_gap,
)
from bigscreen.report import evaluation, report

# Fields of a certificate that add up over the classifiers of a model.
_SUMS = ("primal", "dual", "gap", "rounding_bound")
# What to call the rows of each status of a ledger.
_STATUS = {"out": "not needed", "bound": "at their bound", "open": "open"}


def fit_record(model: Model) -> dict[str, Any]:
    """Make the record that `bigscreen fit --json` writes.

    Returns
    -------
    dict
        Models of older versions lack some entries, which are then None.

        problem: its name. primal, dual, gap, rounding_bound, primal_rounding, dual_rounding: sums
        over the classifiers (one unless there are more than two labels). relative_gap, rows_alive:
        the largest of all classifiers. n_iter: points of the history; passes: how many passes went
        over all rows, over some rows, and to certify. certificates: one for each classifier, with a
        solver if a second solver finished the fit. A model without certificates (early divide and
        conquer) has None for these, the sums, relative_gap and certified_in, and no_certificate
        says why. proved: whether the gaps bound anything. If the kernel is not positive
        semidefinite they do not: then primal and the gaps are None, and violation is the largest
        violation of the KKT conditions (else None). kernel_known: for a precomputed kernel or a
        function, how far it is known to be positive semidefinite (else None). metric: the kind of
        a learned metric and its number of columns (None without one): everything that is proved is
        of the mapped columns. nystrom: the number of landmarks, rank, cutoff and type of entries
        (None without landmarks). rows, tol, certified_in, seconds, peak_pss_bytes, solver,
        features, strategy. device: the name of the device that solved, "cpu" or as its driver gives
        it, and its library (None in older models). screening: rule, and rows fixed at either bound,
        by pass. products: what computed products of rows, BLAS or exact products of bytes. ledger:
        rows proved out, proved at their bound, and open, for each score and for all (None if
        nothing is proved).
    """
    known = model.provenance
    certificates = known["certificates"]
    alive = {event["class"]: event["rows_alive"] for event in known["history"]}
    proved: dict[str, Any] = dict.fromkeys(
        (*_SUMS, *ROUNDING_FIELDS, "relative_gap", "certified_in", "violation")
    )
    if certificates is not None:
        parts = {name: [part.get(name) for part in certificates] for name in proved}
        proved = {name: _all(sum, parts[name]) for name in (*_SUMS, *ROUNDING_FIELDS)}
        proved |= {name: _all(max, parts[name]) for name in ("relative_gap", "violation")}
        proved["certified_in"] = parts["certified_in"][0]
        proved["proved"] = all(part.get("proved", True) for part in certificates)
    return {
        "proved": False,
        **proved,
        "problem": known["parameters"].get("problem", "c-svc"),  # the first version's only one
        "no_certificate": None if certificates is not None else known["no_certificate"],
        "tol": known["parameters"]["tol"],
        "n_iter": len(known["history"]),
        "passes": _passes(certificates or []),
        "rows": known["rows"],
        "rows_alive": max(alive.values(), default=None),
        **{name: known[name] for name in ("seconds", "peak_pss_bytes", "solver", "features")},
        "device": known.get("device"),
        "products": known.get("versions", {}).get("products"),
        "strategy": model.strategy,
        "kernel_known": known.get("kernel_known"),
        "metric": known.get("metric"),
        "nystrom": known.get("nystrom"),
        "screening": _screening(known["screening"]),
        "certificates": certificates,
        "ledger": None if model.ledger is None else summarise_ledgers(model.ledger, labels(model)),
    }


def labels(model: Model) -> list[Any]:
    """Return the label (or pair of labels) of each score of a model with certificates."""
    return [part["label"] for part in model.provenance["certificates"]]


def describe_statuses(rows: Mapping[str, Any]) -> str:
    """Say how many rows of a ledger (what is proved of each row) have each status.

    ``rows``: the number of rows by status: out, bound, open.
    """
    parts = [f"{report.count(rows[name])} {what}" for name, what in _STATUS.items()]
    return ", ".join(parts)


def _all(of: Callable[[list[float]], float], numbers: list[Any]) -> float | None:
    """Apply ``of`` (sum or max) to one number of each classifier; None if any is None."""
    return None if None in numbers else of(numbers)


def _passes(parts: list[dict[str, Any]]) -> dict[str, int]:
    """Sum the passes over the data of all classifiers by kind: full, partial, closing.

    ``parts``: the classifiers' certificates. Empty for models of versions without counts.
    """
    made = [part["passes"] for part in parts if "passes" in part]
    kinds = [kind for kind in ("full", "partial", "closing") if any(kind in own for own in made)]
    return {kind: sum(own.get(kind, 0) for own in made) for kind in kinds}


def _solvers(record: Mapping[str, Any]) -> str:
    """Name the solver of a fit, and the solvers that finished it if it could not.

    ``record``: the result of `fit_record`.
    """
    then = {part["solver"] for part in record["certificates"] or [] if "solver" in part}
    return " then ".join([record["solver"], *sorted(then)])


def _passes_made(record: Mapping[str, Any]) -> str:
    """Say how many passes over the data were made; for solvers without passes, how many checks.

    ``record``: the result of `fit_record`.
    """
    made = record["passes"]
    if "full" not in made:
        return f"{report.count(record['n_iter'])} checks"
    passes = (
        f"{report.count(made['full'])} over all rows, {report.count(made['partial'])} over some"
    )
    return f"{passes}, {report.count(made['closing'])} to certify"


def _screening(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge the screening records of all classifiers: rows fixed at either bound are summed.

    ``parts``: the records. The result's "passes" lists what each pass fixed, with its label.
    """
    return {
        "rule": parts[0]["rule"] if parts else "none",
        **{
            name: sum(part[name] for part in parts)
            for name in ("fixed_at_hi", "fixed_at_lo", "taken_back")
        },
        "passes": [{"label": part["label"], **entry} for part in parts for entry in part["passes"]],
    }


def facts(record: Mapping[str, Any]) -> dict[str, str]:
    """Convert the result of `fit_record` to names and texts for `report.table`."""
    return {
        **brief_facts(record),
        **({} if record["no_certificate"] else _proved(record)),
        "problem": record["problem"],
        **({"kernel matrix": record["kernel_known"]} if record["kernel_known"] else {}),
        **_metric(record["metric"]),
        **_rank(record["nystrom"]),
        **({"proved of rows": describe_statuses(record["ledger"])} if record["ledger"] else {}),
        "screened": _screened(record["screening"]),
        "passes": _passes_made(record),
        "solver, features": f"{_solvers(record)}, {record['features']}",
        **_device(record["device"]),
        **({"products of rows by": record["products"]} if record["products"] else {}),
        **_cost(record),
    }


def brief_facts(record: Mapping[str, Any]) -> dict[str, str]:
    """Convert what a person asks first to names and texts for `report.table`.

    ``record``: the result of `fit_record`, perhaps with the entry "held_out" of `held_out_record`.
    """
    held, proved = record.get("held_out"), {"proved": "nothing"}
    if not record["no_certificate"]:
        every = _proved(record)
        proved = {name: every[name] for name in _FIRST if name in every}
    return {
        **({"held out": evaluation.describe_held_out(held)} if held else {}),
        **proved,
        **({"kernel matrix": record["kernel_known"]} if record["kernel_known"] else {}),
        **_metric(record["metric"]),
        **_cost(record),
    }


_FIRST = ("proved", "classifiers", "targets", "relative gap", "KKT violation")
"""Lines on what is proved that a person asks first."""


def _cost(record: Mapping[str, Any]) -> dict[str, str]:
    """Convert time and memory of a fit to names and texts (``record``: of `fit_record`)."""
    return {
        "time": ", ".join(f"{k} {report.seconds(v)}" for k, v in record["seconds"].items()),
        "peak memory": report.size(record["peak_pss_bytes"]),
    }


def _device(record: Mapping[str, Any] | None) -> dict[str, str]:
    """Name the device that computed, and its library; {} for models of versions without devices.

    ``record``: the entry "device" of a provenance.
    """
    if record is None:
        return {}
    library = "" if record["name"] == "cpu" else f", {record['library']}"
    return {"computed on": record["name"] + library}


def _metric(record: Mapping[str, Any] | None) -> dict[str, str]:
    """Say that the certificate is of mapped columns, if a metric was learned; else {}.

    ``record``: the entry "metric" of a provenance.
    """
    return {} if record is None else {"proved for": describe_metric(record)}


def describe_metric(record: Mapping[str, Any]) -> str:
    """Name the map that a machine's columns went through.

    ``record``: the entry "metric" of a provenance.
    """
    return f"{report.count(record['columns'])} columns mapped by a learned {record['kind']} metric"


def warnings(record: Mapping[str, Any]) -> list[str]:
    """List the warnings for a model's user: nothing is proved, or less than was requested."""
    if record["no_certificate"]:
        return [f"this model has {record['no_certificate']}"]
    said = []
    # (Models of older versions have no hindrance.)
    hindrances = (part.get("hindrance") for part in record["certificates"])
    why = next((each for each in hindrances if each), None)
    if record["violation"] is not None:
        said.append(f"the kernel is not positive semidefinite: {WITHOUT_PROOF}")
    missed = [part for part in record["certificates"] if not meets_tol(part, record["tol"])]
    zero = [
        part["gap"] is not None and is_rounded_to_zero(part["primal"], part["rounding_bound"])
        for part in missed
    ]
    if missed and all(zero) and why:
        said.append(f"no relative gap is proved: {why}")
    elif missed:
        what = "relative gap" if record["violation"] is None else "violation"
        more = "more --max-iter or --time-budget, or another --solver, may help"
        parts = len(record["certificates"])
        which = f" of {len(missed)} of {parts} machines" if parts > 1 else ""
        widest = max(gap_or_violation(part) for part in missed)
        said.append(
            f"the {what}{which} missed {record['tol']:g}, rounding included: it is "
            f"{format_gap(widest, '.2e')}; the model is the best one found ({why or more})"
        )
    elif why:
        said.append(why)
    return said


def show(record: Mapping[str, Any], name: str, verbose: bool = True) -> None:
    """Print the certificate of the model `name`, and a warning if its gap was missed.

    Parameters
    ----------
    record : mapping
        The result of `fit_record`.
    name : str
        The model's name, for the title.
    verbose : bool
        Whether to show all facts; all are shown, too, if there is a warning.
    """
    said = warnings(record)
    if verbose or said:
        shown = facts(record)
    else:
        shown = brief_facts(record) | {"details": "--verbose: P, D, rounding, rows, passes"}
    report.table(f"Certificate of {name}", shown)
    if "targets" in shown:
        report.matrix("proved of each target", "target", _by_target(record["certificates"]))
    for sentence in said:
        report.warn(sentence)


def _by_target(parts: list[dict[str, Any]]) -> dict[str, dict[str, str]]:
    """Convert the certificates of several targets to texts: relative gap, P and D by target."""
    return {
        part["label"]: {
            "relative gap": format_gap(part["relative_gap"], ".2e"),
            "P": f"{part['primal']:.8g}",
            "D": f"{part['dual']:.8g}",
        }
        for part in parts
    }


def _proved(record: Mapping[str, Any]) -> dict[str, str]:
    """Convert what is proved to names and texts: gap, or KKT violation, and classifiers.

    ``record``: the result of `fit_record`.
    """
    facts = _gap(record) if record["violation"] is None else _stationary(record)
    many = len(record["certificates"])
    if many == 1:
        return facts
    what = "relative gap" if record["violation"] is None else "violation"
    if not PROBLEMS[record["problem"]].classifies:
        return {"targets": f"{many}, a machine each: sums, and the largest {what}", **facts}
    each = "pairs of labels" if record["strategy"] == "one" else "labels, each against the rest"
    return {"classifiers": f"{many} {each}: sums, and the largest {what}", **facts}


def _stationary(record: Mapping[str, Any]) -> dict[str, str]:
    """Convert the violation of the KKT conditions to names and texts: there is no gap.

    ``record``: the result of `fit_record` for a kernel that is not positive semidefinite.
    """
    return {
        "proved": "nothing: a stationary point",
        "dual objective D": f"{record['dual']:.8g}",
        "KKT violation": f"{record['violation']:.2e} (asked for {record['tol']:g})",
        "rounding": f"can have moved the violation by {record['rounding_bound']:.2g} at most "
        f"(scores in {record['certified_in']})",
        "computed over": f"all {report.count(record['rows'])} rows",
    }


def _gap(record: Mapping[str, Any]) -> dict[str, str]:
    """Convert primal, dual, gap and rounding bound to names and texts.

    ``record``: the result of `fit_record`.
    """
    over = f"over all {report.count(record['rows'])} rows"
    return {
        "proved": f"{describe_distance(record)}, {over}",
        "primal objective P": f"{record['primal']:.8g}",
        "dual objective D": f"{record['dual']:.8g}",
        "gap P - D": format_gap(record["gap"], ".4g"),
        "relative gap": f"{format_gap(record['relative_gap'], '.2e')} (asked for "
        f"{record['tol']:g})",
        "rounding": f"{_moved(record)} (scores in {record['certified_in']}; six standard "
        "deviations where float32 is rounded)",
    }


def describe_distance(record: Mapping[str, Any]) -> str:
    """Say how far P can be from the best possible objective P*, as a part of P*.

    With a relative gap r, ``P - P*`` is at most ``r |P|``, and ``|P*|`` at least ``(1 - r) |P|``.
    ``record``: the result of `fit_record`. If rounding made its gap negative, r is what rounding
    can have moved the gap by. If P is 0 but for rounding, the distance is absolute.
    """
    parts = record["certificates"]
    if all(is_rounded_to_zero(part["primal"], part["rounding_bound"] or 0.0) for part in parts):
        above = sum(max(part["gap"], 0.0) + (part["rounding_bound"] or 0.0) for part in parts)
        return f"at most {above:.2g} above the best possible objective"
    gap = record["relative_gap"]
    if gap <= 0:
        gap = max(relative_gap(part["rounding_bound"] or 0.0, part["primal"]) for part in parts)
    if gap >= 1:
        return "nothing near the best possible objective"
    percent = 100 * gap / (1 - gap)
    return f"within {float(f'{percent:.2g}'):g} % of the best possible objective"


def _rank(known: Mapping[str, Any] | None) -> dict[str, str]:
    """Say how many of the landmarks' directions were kept; empty for models that do not know.

    ``known``: the rank, number of landmarks and cutoff of the Nystrom features, or None.
    """
    if known is None:
        return {}
    rank, m = known["rank"], known["landmarks"]
    said = f"{report.count(rank)} of {report.count(m)} directions"
    if rank < m:
        said += f", none below {known['cutoff']:.1g} of the largest"
    if "ridge" in known:
        said += f", {known['ridge']:.1g} added to the kernel's diagonal"
    return {"rank": said}


def _moved(record: Mapping[str, Any]) -> str:
    """Say how far rounding can have moved the gap, P and D (``record``: of `fit_record`)."""
    gap, own, other = (record.get(name) for name in ("rounding_bound", *ROUNDING_FIELDS))
    each = "" if own is None or other is None else f", P by {own:.2g}, D by {other:.2g}"
    return f"can have moved the gap by {gap:.2g}{each}"


def _screened(screening: Mapping[str, Any]) -> str:
    """Say how many rows were fixed early, by which rule and in which passes.

    ``screening``: the entry of this name in the result of `fit_record`.
    """
    if screening["rule"] == "none":
        return "nothing (no rule)"
    fixed = screening["fixed_at_hi"] + screening["fixed_at_lo"]
    passes = sorted({entry["pass"] for entry in screening["passes"]})
    when = f" in passes {passes[0]} to {passes[-1]}" if passes else ""
    back = f"; all taken back {screening['taken_back']} times" if screening["taken_back"] else ""
    return f"{report.count(fixed)} rows decided early by rule {screening['rule']}{when}{back}"
