"""Which models can be amended, and the options and problems of the fit that made a model."""

from __future__ import annotations

from typing import Any

from bigscreen.data.rows import Rows
from bigscreen.errors import InputError
from bigscreen.features.landmarks import GivenLandmarks
from bigscreen.model.model import Model, check_match
from bigscreen.options.train import OPTIONS, TrainOptions
from bigscreen.train.problems import Binary, problems


def options_of(model: Model, **more: Any) -> TrainOptions:
    """The options of the fit that made a model; ``more`` overrides some of them.

    Kernel parameters given in words (gamma="scale") are replaced by the numbers that the fit used.
    """
    asked = model.provenance.get("parameters") or {}
    kernel = model.kernel.to_dict()
    names = OPTIONS.keys() - {"work", "resume", "time_budget", "components"}
    known = {name: value for name, value in asked.items() if name in names}
    known |= {name: value for name, value in kernel.items() if name in ("gamma", "degree", "coef0")}
    if asked.get("components") is not None:
        assert model.landmarks is not None
        known["components"] = GivenLandmarks(model.landmarks)
    weights = known.get("class_weight")
    if isinstance(weights, dict):  # JSON has texts as keys
        by_text = {str(label): label for label in model.labels}
        known["class_weight"] = {by_text.get(k, k): value for k, value in weights.items()}
    return TrainOptions.from_record({**known, "kernel": kernel["name"], **more})


def check_amendable(
    model: Model, data: Rows, verdict: str = "cannot be amended; fit it again on other rows"
) -> list[Binary]:
    """Return the problems of a model, one for each score, if it can be amended on these rows.

    ``verdict``: what the error says that a model cannot do, which continues "a model of a nu-svc".

    Raises
    ------
    InputError
        If the model's problem cannot be amended, nothing is proved about the model, or it was
        fitted on other rows.
    """
    asked = model.provenance.get("parameters") or {}
    if model.provenance.get("certificates") is None or model.ledger is None:
        raise InputError(
            "nothing is proved of the model's rows, which were to be its start: it was taken from "
            "a path, ended early, or an older bigscreen wrote it; fit it again"
        )
    for refused, what in (
        (asked.get("problem", "c-svc") != "c-svc", f"a {asked.get('problem')}"),
        (asked.get("class_weight") == "balanced", "balanced class weights, which every row moves"),
        (asked.get("lam") is not None, "a lambda, whose C depends on the number of rows"),
        (model.kernel.name in ("custom", "precomputed"), f"a {model.kernel.name} kernel"),
        (
            model.preparation.metric is not None,
            "a learned metric, which every row moves",
        ),
        (not model.kernel.psd, "a kernel that is not positive semidefinite"),
    ):
        if refused:
            raise InputError(f"a model of {what} {verdict}")
    if not all(record["proved"] for record in model.provenance["certificates"]):
        raise InputError("the model's gap is not proved, and so it is no start; fit it again")
    check_match(model, data, "the model")
    known = model.provenance.get("fingerprint")
    if (known is not None and known != data.fingerprint) or data.n_rows != model.provenance["rows"]:
        raise InputError(
            f"{data.path or 'the data'} is not what the model was fitted on; give that store, or "
            "the one that the last edit wrote"
        )
    if list(model.labels) != data.labels:
        raise InputError("the data has other labels than the model")
    exact = model.support is not None
    if not exact and any(ledger.dual is None for ledger in model.ledger):
        raise InputError(
            "the model keeps no dual point to start from: it has an unpenalised offset on "
            "features, or an older bigscreen wrote it; use intercept penalized, or fit it again"
        )
    return problems(data, options_of(model))
