"""Convert the coefficients of one-against-one machines to LIBSVM's layout."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from bigscreen.model.model import Model
from bigscreen.numerics.rows import FloatArray


def infer_classes(model: Model) -> NDArray[np.int64]:
    """Infer the class of every support row from its coefficients' signs; -1 if all are 0."""
    code = np.full(model.coef.shape[1], -1)
    pairs = combinations(range(len(model.labels)), 2)
    for (first, second), coef in zip(pairs, model.coef, strict=True):
        code[coef > 0], code[coef < 0] = second, first
    return code


def to_libsvm_layout(coef: FloatArray, code: NDArray[np.int64], classes: int) -> FloatArray:
    """Convert coefficients (pairs, n_SV) to LIBSVM's layout (classes - 1, n_SV).

    ``code``, (n_SV,), is the class of each support row. Signs change: a positive score means a
    pair's first class in LIBSVM. Two classes have one pair, which is returned unchanged.
    """
    if classes == 2:
        return coef
    out = np.zeros((classes - 1, coef.shape[1]))
    for (first, second), own in zip(combinations(range(classes), 2), coef, strict=True):
        out[second - 1] -= np.where(code == first, own, 0.0)
        out[first] -= np.where(code == second, own, 0.0)
    return out
