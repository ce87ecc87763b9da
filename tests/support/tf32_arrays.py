"""NumPy arrays whose float32 products have 11 bits, as with TF32: a stand-in array namespace."""

from typing import Any

import array_api_compat.numpy as _numpy
import numpy as np
from array_api_compat.numpy import *  # noqa: F403

__array_api_version__ = _numpy.__array_api_version__


class Array(np.ndarray):
    """An array that rounds float32 factors to 11 bits before it multiplies matrices."""

    def __matmul__(self, other: Any) -> Any:
        return _rounded(self) @ _rounded(other)


def asarray(values: Any, **how: Any) -> Any:
    return _numpy.asarray(values, **how).view(Array)


def _rounded(values: Any) -> Any:
    bits = np.array(values, np.float32).view(np.int32)
    return ((bits + (1 << 12)) & -(1 << 13)).view(np.float32)
