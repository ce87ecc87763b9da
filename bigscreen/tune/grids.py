"""The gammas that are searched where none were named."""

from __future__ import annotations

import numpy as np

from bigscreen.data.rows import Rows
from bigscreen.fleet.protocol import Fleet
from bigscreen.train.kernel import gamma_scale


def default_gammas(data: Rows, fleet: Fleet) -> list[float]:
    """Nine of them by factors of two around scikit-learn's "scale"."""
    scale = gamma_scale(data, fleet)
    return [float(scale * factor) for factor in 2.0 ** np.arange(-4, 5)]
