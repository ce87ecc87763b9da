"""How held-out rows judge machines: what is summed over them, and the score that the sum makes.

Of labels the score is the weighted share that is told right, of targets R^2.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.numerics.rows import FloatArray


def told(scores: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    """1 where machines tell a row's label, and of targets the squared errors: (rows, values).

    Parameters
    ----------
    scores : (rows, values, machines)
    y : (rows,)
        Label codes, or float64 targets.
    """
    if y.dtype.kind == "f":
        return np.asarray(np.square(scores[:, :, 0] - y[:, None]))
    machines = scores.shape[2]
    guess = scores[:, :, 0] > 0 if machines == 1 else np.argmax(scores, axis=2)
    return np.asarray(guess == y[:, None])


def score(sums: FloatArray, y: NDArray[Any], weights: FloatArray) -> FloatArray:
    """The scores of one fold's machines, by the weighted sums of what is `told`.

    Parameters
    ----------
    sums : float64 (values,)
    y, weights : (rows,)
        Of the rows that the fold holds out.
    """
    total = float(np.sum(weights))
    if y.dtype.kind != "f":
        return sums / total
    spread = float(weights @ np.square(y - float(weights @ y) / total))
    return 1.0 - sums / spread if spread > 0 else np.zeros(len(sums))
