"""What rounding of the scores can do to the gap."""

from __future__ import annotations

from typing import Any

import numpy as np

from bigscreen.dual import Dual, FloatArray


def sensitivity(
    dual: Dual, alpha: FloatArray, gradient: FloatArray, slack: FloatArray | float
) -> FloatArray:
    """By how much of an error of its score each row moves the gap, at most (rows,).

    A row that is certainly where its gradient wants it moves P and D alike; another by how far it
    is from the farthest place that a gradient within ``slack`` may want.
    """
    tube: Any = 0.0 if dual.tube is None else dual.tube
    above, below = gradient > slack + tube, gradient < -slack - tube
    inside = np.zeros(len(dual), np.bool_) if dual.tube is None else np.abs(gradient) < tube - slack
    up, down = dual.hi - alpha, alpha - dual.lo
    return np.select([above, below, inside], [up, down, np.abs(alpha)], np.maximum(up, down))
