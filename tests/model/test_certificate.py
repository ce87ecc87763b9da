"""The report of a model shows its certificate, or that there is none."""

import json
from dataclasses import replace

import pytest
from test_model import make_gated, make_model

from bigscreen.model.model import NO_CERTIFICATE
from bigscreen.report.certificate import fit_record, show

KNOWN = {
    "parameters": {"tol": 1e-3},
    "rows": 1000,
    "seconds": {"total": 2.0},
    "peak_pss_bytes": 1 << 20,
    "solver": "block",
    "features": "exact",
}
NOTHING = {"rule": "none", "passes": [], "fixed_at_hi": 0, "fixed_at_lo": 0, "taken_back": 0}


def part(label, gap):
    return {
        "label": label,
        "primal": 10.0,
        "dual": 10.0 - gap,
        "gap": gap,
        "relative_gap": gap / 10,
        "rounding_bound": 1e-6,
        "support": 7,
        "certified_in": "float32",
    }


def certified(model, gaps):
    names = range(len(gaps))
    return replace(
        model,
        provenance={
            **KNOWN,
            "certificates": [part(name, gap) for name, gap in zip(names, gaps, strict=True)],
            "history": [{"class": name, "rows_alive": 7 + name} for name in names],
            "screening": [{"label": name, **NOTHING} for name in names],
        },
    )


def test_gaps_are_summed_over_classifiers() -> None:
    record = fit_record(certified(make_model("dense", 4), [1e-3, 2e-3, 0.0, 1e-3]))
    assert record["gap"] == pytest.approx(4e-3) and record["relative_gap"] == 2e-4
    assert record["rows_alive"] == 10 and record["n_iter"] == 4
    assert record["strategy"] == "rest" and record["no_certificate"] is None


@pytest.mark.parametrize(
    ("gated", "said"), [(False, "against the rest"), (True, "pairs of labels")]
)
def test_the_table_says_what_the_classifiers_are(capsys, gated, said) -> None:
    model = make_gated() if gated else make_model("dense", 4)
    show(fit_record(certified(model, [1e-3] * len(model.coef))), "m.bsm")
    out = capsys.readouterr()
    assert said in " ".join((out.out + out.err).split()) and "gap P - D" in out.out + out.err


@pytest.mark.parametrize("history", [[], [{"class": None, "rows_alive": 12}]])
def test_no_certificate_is_not_dressed_up(capsys, history) -> None:
    known = {**KNOWN, "history": history, "screening": []}
    model = make_gated()
    model.provenance = {**known, "certificates": None, "no_certificate": NO_CERTIFICATE}
    record = json.loads(json.dumps(fit_record(model)))
    for name in ("primal", "dual", "gap", "relative_gap", "rounding_bound", "certificates"):
        assert record[name] is None
    assert record["no_certificate"] == NO_CERTIFICATE
    show(record, "m.bsm")
    out = capsys.readouterr()
    told = " ".join((out.out + out.err).split())
    assert "no global certificate" in told and "gap" not in told and "nothing" in told
