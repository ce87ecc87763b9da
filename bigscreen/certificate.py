"""The certificate of a fitted model: what was proved, over what, and what it cost."""

from collections.abc import Mapping
from typing import Any

from bigscreen import report
from bigscreen.store.model import Model

_SUMS = ("primal", "dual", "gap", "rounding_bound")
_EACH = ("primal_rounding", "dual_rounding")


def fit_record(model: Model) -> dict[str, Any]:
    """What `bigscreen fit --json` writes.

    Returns
    -------
    dict
        problem: its name. primal, dual, gap, rounding_bound, primal_rounding, dual_rounding: sums
        over the classifiers (one unless there are more than two labels; the last two None of models
        of before). relative_gap, rows_alive: the largest of theirs.
        n_iter: passes of all. certificates: each one's own; of a model that has none (an early
        divide and conquer) it, the sums, relative_gap and certified_in are None, and
        no_certificate says why. Besides rows, tol, certified_in, seconds, peak_pss_bytes, solver,
        features, strategy, and screening: rule, rows fixed at either end, by pass.
    """
    known = model.provenance
    certificates = known["certificates"]
    alive = {event["class"]: event["rows_alive"] for event in known["history"]}
    proved: dict[str, Any] = dict.fromkeys((*_SUMS, *_EACH, "relative_gap", "certified_in"))
    if certificates is not None:
        for name in (*_SUMS, *_EACH):
            parts = [part.get(name) for part in certificates]
            proved[name] = None if None in parts else sum(parts)
        proved["relative_gap"] = max(part["relative_gap"] for part in certificates)
        proved["certified_in"] = certificates[0]["certified_in"]
    return {
        **proved,
        "problem": known["parameters"].get("problem", "c-svc"),  # the only one there once was
        "no_certificate": None if certificates is not None else known["no_certificate"],
        "tol": known["parameters"]["tol"],
        "n_iter": len(known["history"]),
        "rows": known["rows"],
        "rows_alive": max(alive.values(), default=None),
        **{name: known[name] for name in ("seconds", "peak_pss_bytes", "solver", "features")},
        "strategy": model.strategy,
        "screening": _screening(known["screening"]),
        "certificates": certificates,
    }


def _screening(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The records of all classifiers as one."""
    return {
        "rule": parts[0]["rule"] if parts else "none",
        **{
            name: sum(part[name] for part in parts)
            for name in ("fixed_at_hi", "fixed_at_lo", "taken_back")
        },
        "passes": [{"label": part["label"], **entry} for part in parts for entry in part["passes"]],
    }


def show(record: Mapping[str, Any], name: str) -> None:
    """Print the certificate of the model `name`, and a warning if its gap was missed.

    Parameters
    ----------
    record : mapping
        Of `fit_record`.
    name : str
        What the title calls the model.
    """
    missing = record["no_certificate"]
    report.table(
        f"Certificate of {name}",
        {
            "problem": record["problem"],
            **({"proved": "nothing"} if missing else _proved(record)),
            "screened": _screened(record["screening"]),
            "passes": report.count(record["n_iter"]),
            "solver, features": f"{record['solver']}, {record['features']}",
            "time": ", ".join(f"{k} {report.seconds(v)}" for k, v in record["seconds"].items()),
            "peak memory": report.size(record["peak_pss_bytes"]),
        },
    )
    if missing:
        report.warn(f"this model has {missing}")
        return
    # Models of before have none.
    told = (part.get("hindrance") for part in record["certificates"])
    why = next((each for each in told if each), None)
    if record["relative_gap"] > record["tol"]:
        more = "more --max-iter or --time-budget, or another --solver, may help"
        report.warn(
            f"the relative gap {record['relative_gap']:.2e} missed {record['tol']:g}; the model is "
            f"the best one found ({why or more})"
        )
    elif why:
        report.warn(why)


def _proved(record: Mapping[str, Any]) -> dict[str, str]:
    facts = {
        "primal objective P": f"{record['primal']:.8g}",
        "dual objective D": f"{record['dual']:.8g}",
        "gap P - D": f"{record['gap']:.4g}",
        "relative gap": f"{record['relative_gap']:.2e} (asked for {record['tol']:g})",
        "rounding": f"{_moved(record)} (scores in {record['certified_in']}; six standard "
        "deviations where float32 is rounded)",
        "proved over": f"all {report.count(record['rows'])} rows",
    }
    many = len(record["certificates"])
    if many == 1:
        return facts
    each = "pairs of labels" if record["strategy"] == "one" else "labels, each against the rest"
    return {"classifiers": f"{many} {each}: sums, and the largest relative gap", **facts}


def _moved(record: Mapping[str, Any]) -> str:
    """How far rounding can have moved what was proved."""
    gap, own, other = (record.get(name) for name in ("rounding_bound", *_EACH))
    each = "" if own is None or other is None else f", P by {own:.2g}, D by {other:.2g}"
    return f"can have moved the gap by {gap:.2g}{each}"


def _screened(screening: Mapping[str, Any]) -> str:
    if screening["rule"] == "none":
        return "nothing (no rule)"
    fixed = screening["fixed_at_hi"] + screening["fixed_at_lo"]
    passes = sorted({entry["pass"] for entry in screening["passes"]})
    when = f" in passes {passes[0]} to {passes[-1]}" if passes else ""
    back = f"; all taken back {screening['taken_back']} times" if screening["taken_back"] else ""
    return f"{report.count(fixed)} rows decided early by rule {screening['rule']}{when}{back}"
