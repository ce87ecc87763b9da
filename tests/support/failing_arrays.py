"""NumPy arrays of a device that fails, or is full: a stand-in array namespace."""

from typing import Any

import array_api_compat.numpy as _numpy
import numpy as np
from array_api_compat.numpy import *  # noqa: F403

__array_api_version__ = _numpy.__array_api_version__

products_left = 10**9
"""The device fails after this many products of matrices."""
most_bytes = 10**12
"""Arrays of zeros with more bytes than this are refused."""


class AcceleratorError(RuntimeError):
    """A device has failed; PyTorch's error has this name."""


class OutOfMemoryError(RuntimeError):
    """A device is full; PyTorch's error has this name."""


class Array(np.ndarray):
    """An array whose products of matrices are counted."""

    def __matmul__(self, other: Any) -> Any:
        global products_left
        products_left -= 1
        if products_left < 0:
            raise AcceleratorError("unspecified launch failure")
        return asarray(np.asarray(self) @ np.asarray(other))


def asarray(values: Any, **how: Any) -> Any:
    return _numpy.asarray(values, **how).view(Array)


def zeros(shape: Any, **how: Any) -> Any:
    if 8 * np.prod(shape) > most_bytes:
        raise OutOfMemoryError(f"tried to allocate {shape}")
    return asarray(_numpy.zeros(shape, **how))
