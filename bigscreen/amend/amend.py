"""Edits of a fitted machine: bounds on what they change, and the refit with a new certificate."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from bigscreen.amend.bound import Bound, bound
from bigscreen.amend.edits import Changes, Edits, find_changes
from bigscreen.amend.refit import refit, start_after_edits
from bigscreen.amend.request import check_amendable, options_of
from bigscreen.amend.store import AMENDED_FROM, StorePlace, make_edited_rows, source_entries
from bigscreen.data.dataset import Dataset
from bigscreen.data.rows import Rows
from bigscreen.errors import InputError
from bigscreen.model.ledger import Ledger
from bigscreen.model.model import Model
from bigscreen.problems.point import ROUNDING_FIELDS
from bigscreen.train.problems import Binary, problems
from bigscreen.train.run import train

CERTIFICATE_FIELDS = (
    "label",
    "primal",
    "dual",
    "gap",
    "relative_gap",
    "rounding_bound",
    *ROUNDING_FIELDS,
    "rows",
)
"""Fields of a certificate that the record of an edit keeps."""


@dataclass(frozen=True)
class Amended:
    """A model after edits, the edited rows and the record of the edit.

    Attributes
    ----------
    model : Model
        The model, with certificates over the edited rows; its provenance lists all edits ("edits").
    data : Rows
        The edited rows.
    record : dict
        The record of this edit; JSON-able.
    """

    model: Model
    data: Rows
    record: dict[str, Any]


def bounds(model: Model, data: Rows, edits: Edits) -> tuple[list[Bound], Changes]:
    """Bound how far edits can change each score of a model; only the edited rows are read.

    Raises
    ------
    InputError
        For a model that cannot be amended, or edits that do not fit the data.
    """
    return _bounds(model, data, edits, check_amendable(model, data))


def _bounds(
    model: Model, data: Rows, edits: Edits, own: list[Binary]
) -> tuple[list[Bound], Changes]:
    """Bound how far edits can change each score; ``own``: the model's problems, one for each score.

    Returns the bounds, and the edited rows before and after the edits.
    """
    edited = find_changes(data, edits)
    return [bound(model, k, binary, data, edited) for k, binary in enumerate(own)], edited


def amend(  # noqa: PLR0913
    model: Model,
    data: Rows,
    edits: Edits,
    fleet: Any,
    *,
    path: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    strict: bool = False,
    work: Path | None = None,
    time_budget: float | None = None,
    report: Callable[[dict[str, Any]], None] | None = None,
) -> Amended:
    """Apply edits to a data set and its model: the new model is certified over the edited rows.

    If all edited rows are removed and are proved to have no influence, the machine stays and its
    certificate holds. Otherwise the fit goes on from the old machine, on its landmarks.

    Parameters
    ----------
    model : Model
        Not changed.
    data : Rows
        The rows that the model was fitted on; they are not changed.
    edits : Edits
    fleet : Fleet
    path : path or None
        The new store of the edited rows, which appears once the machine is fitted. None: rows in
        memory stay in memory.
    overwrite : bool
        Replace a store that exists at the path. Otherwise an existing store is refused, unless it
        holds exactly the edited rows: a run that was killed may have left it.
    strict : bool
        Fit from the start: draw landmarks, and compute a gamma given in words, from the edited
        rows.
    work : path or None
        A folder for features that do not fit in memory.
    time_budget : float or None
        Most seconds for the fit of the edited rows. If they end the fit, its model is published
        without a proof, and no edit can start from it.

    Raises
    ------
    InputError
        For a model that cannot be amended, edits that do not fit the data, another store at the
        path, or a strict edit of scaled data, whose scaling only the source can give.
    """
    began = time.monotonic()
    if path is None and data.path is not None:
        raise InputError("the edited rows of a store are a store again; say where it goes")
    before = model.provenance.get("fingerprint")
    place = None if path is None else StorePlace(path, overwrite, before)
    own = check_amendable(model, data)
    found, edited = _bounds(model, data, edits, own)
    notes = _notes(model, data, edited, strict)
    # (For rows without a fingerprint nothing is proved without reading them again.)
    carry_over = all(each.unchanged for each in found) and before is not None and not strict
    onward = {}
    if not (strict or carry_over):
        for k, (binary, each) in enumerate(zip(own, found, strict=True)):
            onward[binary.folder] = start_after_edits(model, k, binary, data, edited, each)
    extra = {**source_entries(data, edits.add), AMENDED_FROM: before}
    with nullcontext() if place is None else place.temporary() as temporary:
        rows = make_edited_rows(data, edited, temporary, extra)
        if place is not None:
            place.check(rows)
        if carry_over:
            made, how = _keep_model(model, data, edited, rows), "carried over"
        elif strict:
            gamma = model.provenance["parameters"]["gamma"]
            options = options_of(model, gamma=gamma, work=work, time_budget=time_budget)
            made, how = train(rows, options, fleet, report), "fitted anew"
        else:
            options = options_of(model, work=work, time_budget=time_budget)
            problems(rows, options)  # each label still needs rows
            made, how = refit(model, rows, options, fleet, onward, report), "fitted on"
            _restore_untouched(model, made, data, edited, found)
            made.provenance["parameters"] = {
                **made.provenance["parameters"],
                "gamma": model.provenance["parameters"]["gamma"],
            }
        if place is not None and isinstance(rows, Dataset):
            rows = place.publish(rows)
    record = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "what": edits.counts,
        "from": before,
        "to": made.provenance["fingerprint"],
        "bound": [each.to_dict() for each in found],
        "how": how,
        "certificates": [
            {name: proof.get(name) for name in CERTIFICATE_FIELDS}
            for proof in made.provenance["certificates"]
        ],
        "notes": notes,
        "seconds": time.monotonic() - began,
    }
    made.provenance["edits"] = [*model.provenance.get("edits", []), record]
    return Amended(made, rows, record)


def _keep_model(model: Model, data: Rows, edited: Changes, rows: Rows) -> Model:
    """Return the old model, with certificates and ledgers cut to the rows that remain.

    Probabilities are left out: folds learnt them with the rows as they were, and a row without
    influence on the machine of all rows has a part in them. ``data``: the rows before the edits,
    which only remove rows (``edited``) without influence; ``rows``: the rows that remain.
    """
    known, support = model.provenance, model.support
    assert model.ledger is not None
    proofs = [_remaining_certificate(model, k, edited) for k in range(len(model.ledger))]
    if support is not None and data.path is None:
        gone = np.sort(edited.numbers[edited.removed])
        support = support - np.searchsorted(gone, support)
    facts = {"certificates": proofs, "rows": rows.n_rows, "fingerprint": rows.fingerprint}
    return replace(
        model,
        support=support,
        calibration=None,
        fold_machines=None,
        ledger=[_remaining_ledger(book, data, edited) for book in model.ledger],
        provenance={**known, **facts},
    )


def _remaining_certificate(model: Model, k: int, edited: Changes) -> dict[str, Any]:
    """Return the certificate of the k-th score over the rows that remain after the edits.

    The removed rows have no influence: only the number of rows changes.
    """
    assert model.ledger is not None
    proof, numbers = model.provenance["certificates"][k], model.ledger[k].numbers()
    gone = int(np.count_nonzero(np.isin(numbers, edited.numbers[edited.removed])))
    return {**proof, "rows": proof["rows"] - gone}


def _remaining_ledger(book: Ledger, data: Rows, edited: Changes) -> Ledger:
    """Cut a ledger (what is proved of each row) down to the rows that remain, by new numbers.

    ``book``: the ledger; ``data``: the rows before the edits ``edited``. Rows of a store keep their
    numbers; rows in memory are numbered from 0 again.
    """
    numbers = book.numbers()
    gone = np.sort(edited.numbers[edited.removed])
    left = book.among(~np.isin(numbers, gone))
    rows = numbers[~np.isin(numbers, gone)]
    if data.path is None:
        rows = rows - np.searchsorted(gone, rows)
    plain = np.array_equal(rows, np.arange(len(rows)))
    return Ledger(left.margins, left.radius, None if plain else rows, left.dual)


def _restore_untouched(
    model: Model, made: Model, data: Rows, edited: Changes, found: list[Bound]
) -> None:
    """Restore the scores of the refitted model ``made`` that the edits cannot have changed.

    The refit has fitted all scores; these get the old model's coefficients, ledgers and
    certificates again. ``found``: one bound for each score.
    """
    for k, each in enumerate(found):
        known = model.provenance.get("fingerprint") is not None
        if each.unchanged and known and model.support is None and made.ledger is not None:
            assert model.ledger is not None
            made.coef[k], made.intercept[k] = model.coef[k], model.intercept[k]
            made.ledger[k] = _remaining_ledger(model.ledger[k], data, edited)
            made.provenance["certificates"][k] = _remaining_certificate(model, k, edited)


def _notes(model: Model, data: Rows, edited: Changes, strict: bool) -> list[str]:
    """Notes for the user on landmarks, gamma and scaling, which came from the rows before the edit.

    Raises
    ------
    InputError
        If strict is set for scaled data: only the source can give another scaling.
    """
    notes, scaling = [], data.preparation.scaling
    if scaling != "none":
        if strict:
            raise InputError(
                f"the store's scaling ({scaling}) was learnt from the rows before the edit; only "
                "their source can give another: ingest that without the rows that leave, and fit"
            )
        notes.append(f"scaling {scaling} stays as the rows before the edit gave it")
    if strict:
        return notes
    gamma = (model.provenance.get("parameters") or {}).get("gamma")
    if isinstance(gamma, str) and "gamma" in model.kernel.to_dict():
        notes.append(f"gamma stays what {gamma!r} was for the rows before the edit")
    if model.support is None and model.landmarks is not None:
        known = set(_row_bytes(model.landmarks))
        gone = np.flatnonzero(edited.removed)
        lost = sum(text in known for text in _row_bytes(edited.X[gone])) if len(gone) else 0
        if lost:
            notes.append(f"{lost} of the rows that leave are landmarks, and stay that")
    return notes


def _row_bytes(X: Any) -> list[bytes]:
    """Each row of X as the bytes of its float64 entries, so that equal rows have equal bytes."""
    if sparse.issparse(X):
        X = X.toarray()
    return [row.astype(np.float64).tobytes() for row in X]
