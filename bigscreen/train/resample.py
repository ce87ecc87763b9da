"""Bootstrap and permutation tests of a classifier's held-out error, by many fits at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.data.rows import Rows
from bigscreen.errors import InputError
from bigscreen.model.model import Model
from bigscreen.options.train import TrainOptions
from bigscreen.train.many import Outcomes
from bigscreen.train.run import train_many

WAYS = ("bootstrap", "permutation")
"""How `resample` draws: rows with replacement, or labels permuted."""


def resample(
    data: Rows,
    held: Rows,
    options: TrainOptions,
    fleet: Any,
    fits: int,
    way: str,
    scratch: Callable[[], Path] | None = None,
) -> dict[str, Any]:
    """Fit a classifier to the rows and to ``fits`` resamples of them; test all on other rows.

    Parameters
    ----------
    data, held : Rows
        Rows to fit, and rows to test on; every test row with a label counts once.
    options : TrainOptions
        Options of a machine on features; their seed also draws the resamples.
    fleet : Fleet
    fits : int
        Number of resamples.
    way : {"bootstrap", "permutation"}
        bootstrap draws as many rows with replacement (a row's weight is multiplied by how often
        it is drawn); permutation assigns the labels to the rows at random.
    scratch : callable or None
        As `train_many` takes it.

    Returns
    -------
    dict
        JSON-able: device (what has computed), way, fits, seed, rows (tested), error (of the fit to
        the rows themselves), errors (of the resamples), relative_gap (the largest of all fits). For
        bootstrap also interval (the middle 95 % of the errors). For permutation also p_value:
        ``(1 + permutations with an error no larger) / (1 + permutations)``.

    Raises
    ------
    InputError
        As `train_many`; also if no row of ``held`` has a label, or ``held`` was prepared otherwise.
    """
    if held.regression or held.n_unlabelled == held.n_rows:
        raise InputError("the rows to judge by have no labels, and errors are counted by them")
    if (held.n_features, held.preparation.features_fingerprint) != (
        data.n_features,
        data.preparation.features_fingerprint,
    ):
        name = data.path or "the rows to fit"
        raise InputError(
            f"{held.path or 'what is held out'} was scaled or encoded otherwise than {name}, or "
            f"has other columns; ingest it again with `--like {name}`"
        )
    drawn = [Outcomes(None, None), *_draw_outcomes(data, fits, way, options.seed)]
    models = train_many(data, options, fleet, drawn, scratch)
    counts = np.zeros(1 + len(models), np.int64)
    for part in fleet.each(partial(_count_errors, models, held), range(held.n_chunks)):
        counts += part
    error, *errors = (counts[1:] / counts[0]).tolist()
    proofs = [proof for model in models for proof in model.provenance["certificates"]]
    record = {
        "device": models[0].provenance["device"],
        "way": way,
        "fits": fits,
        "seed": options.seed,
        "rows": int(counts[0]),
        "error": error,
        "errors": errors,
        "relative_gap": max(proof["relative_gap"] for proof in proofs),
    }
    if way == "bootstrap":
        return {**record, "interval": np.quantile(errors, (0.025, 0.975)).tolist()}
    as_well = sum(each <= error for each in errors)
    return {**record, "p_value": (1 + as_well) / (1 + fits)}


def _draw_outcomes(data: Rows, fits: int, way: str, seed: int) -> Iterator[Outcomes]:
    """Yield permuted labels (``way`` "permutation") or bootstrap weights for ``fits`` fits.

    ``seed``: of the random draws.
    """
    rng, n = np.random.default_rng([seed, 0x64726177]), data.n_rows
    if way == "permutation":
        y = data.y(0, n)
        for _ in range(fits):
            yield Outcomes(rng.permutation(y), None)
        return
    for _ in range(fits):
        times: NDArray[Any] = np.bincount(rng.integers(n, size=n), minlength=n).astype(np.uint16)
        yield Outcomes(None, times * data.weights(0, n) if data.has_weights else times)


def _count_errors(models: list[Model], held: Rows, chunk: int) -> NDArray[np.int64]:
    """Count the labelled rows of a chunk, and the errors of each model; int64 (1 + models,)."""
    start, stop = held.chunk(chunk)
    y, X, labels = held.y(start, stop), held.X(start, stop), models[0].labels
    known = y >= 0
    # All models get the rows of an unknown label wrong.
    codes = np.array([labels.index(each) if each in labels else -1 for each in held.labels])
    true = codes[y[known]]
    wrong = [
        np.count_nonzero(model.decide(model.scores(X, prepared=True)[known]) != true)
        for model in models
    ]
    return np.array([np.count_nonzero(known), *wrong], np.int64)
