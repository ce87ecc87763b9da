"""Coefficients of machines that are fitted one against one, as LIBSVM lays them out."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from bigscreen.model.model import Model
from bigscreen.numerics.rows import FloatArray


def classes_of(model: Model) -> NDArray[np.int64]:
    """The class of every support row, which the sign of any of its coefficients tells; -1: none."""
    code = np.full(model.coef.shape[1], -1)
    pairs = combinations(range(len(model.labels)), 2)
    for (first, second), coef in zip(pairs, model.coef, strict=True):
        code[coef > 0], code[coef < 0] = second, first
    return code


def one_against_one(coef: FloatArray, code: NDArray[np.int64], classes: int) -> FloatArray:
    """Coefficients (pairs, n_SV) in LIBSVM's layout (classes - 1, n_SV)."""
    if classes == 2:
        return coef
    out = np.zeros((classes - 1, coef.shape[1]))
    for (first, second), own in zip(combinations(range(classes), 2), coef, strict=True):
        out[second - 1] -= np.where(code == first, own, 0.0)
        out[first] -= np.where(code == second, own, 0.0)
    return out
