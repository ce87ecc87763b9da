"""Edits of a fitted machine, from what is proved before to what is proved after."""

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
from bigscreen.amend.edits import Changes, Edits, changes
from bigscreen.amend.refit import begun, refitted
from bigscreen.amend.request import check_amendable, options_of
from bigscreen.amend.store import FROM, Place, amended_rows, of_source
from bigscreen.data.dataset import Dataset
from bigscreen.data.rows import Rows
from bigscreen.errors import InputError
from bigscreen.model.ledger import Ledger
from bigscreen.model.model import Model
from bigscreen.problems.point import EACH
from bigscreen.train.problems import Binary, problems
from bigscreen.train.run import train

PROVED = ("label", "primal", "dual", "gap", "relative_gap", "rounding_bound", *EACH, "rows")
"""What the record of an edit keeps of a certificate."""


@dataclass(frozen=True)
class Amended:
    """A model after edits.

    Attributes
    ----------
    model : Model
        With its certificates over the edited rows; its provenance lists all edits ("edits").
    data : Rows
        The edited rows.
    record : dict
        Of this edit; JSON-able.
    """

    model: Model
    data: Rows
    record: dict[str, Any]


def bounds(model: Model, data: Rows, edits: Edits) -> tuple[list[Bound], Changes]:
    """What edits change at most, of every score; no other row is looked at.

    Raises
    ------
    InputError
        For a model that cannot be amended, or edits that do not fit the data.
    """
    return _bounds(model, data, edits, check_amendable(model, data))


def _bounds(
    model: Model, data: Rows, edits: Edits, own: list[Binary]
) -> tuple[list[Bound], Changes]:
    """The same for a model's problems, which are looked up once."""
    edited = changes(data, edits)
    return [bound(model, k, binary, data, edited) for k, binary in enumerate(own)], edited


def amend(
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
    """Apply edits: the rows as they are from then on, and a model that is certified over them.

    Rows that leave and are proved to be out change nothing: the certificate holds as it is. Else
    the fit goes on from where the model stands, with the model's landmarks and kernel.

    Parameters
    ----------
    data : Rows
        What the model was fitted on; it stays as it is.
    path : path or None
        The new store of the edited rows, which appears once the machine is fitted; None, for rows
        in memory, keeps them there.
    overwrite : bool
        Replace a store that stands there. Without it one is refused, but for a store of the very
        same edited rows: a run that was killed may have left it.
    strict : bool
        Fit anew: landmarks are drawn, and a gamma in words is computed, from the edited rows.
    work : path or None
        A folder for features that do not fit in memory.
    time_budget : float or None
        Most seconds that the fit over the edited rows may take. A fit that they end is published
        unproved, and no edit can start from it.

    Raises
    ------
    InputError
        For a model that cannot be amended, edits that do not fit the data, another store at the
        path, or where strict asks for a scaling that only the source can give.
    """
    began = time.monotonic()
    if path is None and data.path is not None:
        raise InputError("the edited rows of a store are a store again; say where it goes")
    before = model.provenance.get("fingerprint")
    place = None if path is None else Place(path, overwrite, before)
    own = check_amendable(model, data)
    found, edited = _bounds(model, data, edits, own)
    notes = _notes(model, data, edited, strict)
    # (Of rows whose fingerprint nobody took, nothing but another look is a proof.)
    still = all(each.still for each in found) and before is not None and not strict
    onward = {}
    if not (strict or still):
        for k, (binary, each) in enumerate(zip(own, found, strict=True)):
            onward[binary.folder] = begun(model, k, binary, data, edited, each)
    extra = {**of_source(data, edits.add), FROM: before}
    with nullcontext() if place is None else place.temporary() as temporary:
        rows = amended_rows(data, edited, temporary, extra)
        if place is not None:
            place.check(rows)
        if still:
            made, how = _kept(model, data, edited, rows), "carried over"
        elif strict:
            gamma = model.provenance["parameters"]["gamma"]
            options = options_of(model, gamma=gamma, work=work, time_budget=time_budget)
            made, how = train(rows, options, fleet, report), "fitted anew"
        else:
            options = options_of(model, work=work, time_budget=time_budget)
            problems(rows, options)  # each label still needs rows
            made, how = refitted(model, rows, options, fleet, onward, report), "fitted on"
            _take_back(model, made, data, edited, found)
            made.provenance["parameters"] = {
                **made.provenance["parameters"],
                "gamma": model.provenance["parameters"]["gamma"],
            }
        if place is not None and isinstance(rows, Dataset):
            rows = place.taken(rows)
    record = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "what": edits.counts,
        "from": before,
        "to": made.provenance["fingerprint"],
        "bound": [each.to_dict() for each in found],
        "how": how,
        "certificates": [
            {name: proof.get(name) for name in PROVED} for proof in made.provenance["certificates"]
        ],
        "notes": notes,
        "seconds": time.monotonic() - began,
    }
    made.provenance["edits"] = [*model.provenance.get("edits", []), record]
    return Amended(made, rows, record)


def _kept(model: Model, data: Rows, edited: Changes, rows: Rows) -> Model:
    """The model as it is, its certificates of the rows that are left."""
    known, support = model.provenance, model.support
    assert model.ledger is not None
    proofs = [_proof(model, k, edited) for k in range(len(model.ledger))]
    if support is not None and data.path is None:
        gone = np.sort(edited.numbers[edited.removed])
        support = support - np.searchsorted(gone, support)
    facts = {"certificates": proofs, "rows": rows.n_rows, "fingerprint": rows.fingerprint}
    return replace(
        model,
        support=support,
        ledger=[_left(book, data, edited) for book in model.ledger],
        provenance={**known, **facts},
    )


def _proof(model: Model, k: int, edited: Changes) -> dict[str, Any]:
    """The certificate of a score that stays what it is, over the rows that are left."""
    assert model.ledger is not None
    proof, numbers = model.provenance["certificates"][k], model.ledger[k].numbers()
    gone = int(np.count_nonzero(np.isin(numbers, edited.numbers[edited.removed])))
    return {**proof, "rows": proof["rows"] - gone}


def _left(book: Ledger, data: Rows, edited: Changes) -> Ledger:
    """A ledger of the rows that are left, by their numbers from now on."""
    numbers = book.numbers()
    gone = np.sort(edited.numbers[edited.removed])
    left = book.among(~np.isin(numbers, gone))
    rows = numbers[~np.isin(numbers, gone)]
    if data.path is None:
        rows = rows - np.searchsorted(gone, rows)
    plain = np.array_equal(rows, np.arange(len(rows)))
    return Ledger(left.margins, left.radius, None if plain else rows, left.dual)


def _take_back(model: Model, made: Model, data: Rows, edited: Changes, found: list[Bound]) -> None:
    """Give scores of several that no edit has touched what they had; the fit has looked at them."""
    for k, each in enumerate(found):
        known = model.provenance.get("fingerprint") is not None
        if each.still and known and model.support is None and made.ledger is not None:
            assert model.ledger is not None
            made.coef[k], made.intercept[k] = model.coef[k], model.intercept[k]
            made.ledger[k] = _left(model.ledger[k], data, edited)
            made.provenance["certificates"][k] = _proof(model, k, edited)


def _notes(model: Model, data: Rows, edited: Changes, strict: bool) -> list[str]:
    """What the edits change beside the rows: landmarks, a gamma and a scaling come from rows, too.

    Raises
    ------
    InputError
        If strict asks for what only the source can give.
    """
    notes, scaling = [], data.preparation.scaling
    if scaling != "none":
        if strict:
            raise InputError(
                f"the store's scaling ({scaling}) was learnt from rows of before, and only their "
                "source can tell another: ingest that again without the rows that leave, and fit"
            )
        notes.append(f"scaling {scaling} stays as the rows of before gave it")
    if strict:
        return notes
    gamma = (model.provenance.get("parameters") or {}).get("gamma")
    if isinstance(gamma, str) and "gamma" in model.kernel.to_dict():
        notes.append(f"gamma stays what {gamma!r} was for the rows of before")
    if model.support is None and model.landmarks is not None:
        known = set(_texts(model.landmarks))
        gone = np.flatnonzero(edited.removed)
        lost = sum(text in known for text in _texts(edited.X[gone])) if len(gone) else 0
        if lost:
            notes.append(f"{lost} of the rows that leave are landmarks, and stay that")
    return notes


def _texts(X: Any) -> list[bytes]:
    """Every row's bytes."""
    if sparse.issparse(X):
        X = X.toarray()
    return [row.astype(np.float64).tobytes() for row in X]
