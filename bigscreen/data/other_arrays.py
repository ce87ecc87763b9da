"""Arrays of other libraries than NumPy: read as NumPy arrays, and answered in kind.

Fits and models compute with NumPy arrays on the host. Arrays of CuPy, PyTorch and other libraries
of the Python array API come in through `on_host`, and answers to them go out through `answer_like`.
"""

from __future__ import annotations

from typing import Any

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from bigscreen.errors import InputError


def is_other_array(X: Any) -> bool:
    """Whether X is an array of a library of the array API other than NumPy, in memory."""
    found = array_api_compat.is_array_api_obj(X) and not array_api_compat.is_numpy_array(X)
    return bool(found) and not array_api_compat.is_dask_array(X)


def to_numpy(X: Any) -> NDArray[Any]:
    """Return an array of another library as a NumPy array on the host, with the same numbers.

    Types that NumPy lacks, such as bfloat16, become float32. A gradient is not recorded.

    Raises
    ------
    InputError
        If the array is sparse, masked, or has no numbers to read.
    """
    try:
        if array_api_compat.is_cupy_array(X):
            return np.asarray(X.get())
        if array_api_compat.is_torch_array(X):
            X = array_api_compat.to_device(X.detach(), "cpu").resolve_neg()
            name = str(X.dtype).removeprefix("torch.")
            # (float32 has all numbers of PyTorch's other float types: bfloat16, float8.)
            lacks = X.dtype.is_floating_point and not hasattr(np, name)
            return np.asarray(X.float() if lacks else X)
        try:
            return np.asarray(X)
        except (TypeError, RuntimeError):  # (the array may lie on another device)
            return np.from_dlpack(X, device="cpu")
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        reason = str(error).strip().split("\n")[0]
        raise InputError(
            f"an array of {type(X).__module__}.{type(X).__name__} cannot be read as a NumPy array "
            f"({reason}): give a dense array without a mask"
        ) from error


def answer_like(answer: NDArray[Any], X: Any) -> Any:
    """Return a NumPy array as an array of the library and on the device of the array X.

    Arrays of texts stay NumPy arrays, as other libraries have none. On a device without float64,
    float64 numbers become float32. The answer is returned as it is if X is no array of another
    library.
    """
    if not is_other_array(X) or answer.dtype.kind not in "biuf":
        return answer
    xp, device = array_api_compat.array_namespace(X), array_api_compat.device(X)
    if answer.dtype == np.float64 and not has_float64(xp, device):
        answer = answer.astype(np.float32)
    # (PyTorch warns of arrays that it may not write to.)
    return xp.asarray(np.require(answer, requirements=["C", "W"]), device=device)


def has_float64(xp: Any, device: Any) -> bool:
    """Whether arrays of an array namespace can have float64 numbers on one of its devices."""
    return "float64" in xp.__array_namespace_info__().dtypes(device=device, kind="real floating")


def on_host(*values: Any) -> Any:
    """Return the arguments of a function, with NumPy arrays in place of other libraries' arrays.

    What is no array is returned as it is; a tuple, with its own items converted. A single argument
    is returned itself, several as a tuple.

    Raises
    ------
    InputError
        If an array is sparse, masked, or has no numbers to read; or for a masked NumPy array.
    """
    found = tuple(map(_convert, values))
    return found if len(found) > 1 else found[0]


def _convert(value: Any) -> Any:
    """Return an argument of a function for `on_host`."""
    if type(value) is tuple:
        return tuple(map(_convert, value))
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise InputError(
            "a masked array has entries without a value: give an array with a number in every "
            "entry, such as X.filled(0)"
        )
    return to_numpy(value) if is_other_array(value) else value
