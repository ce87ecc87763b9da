"""Where arrays live: an array namespace (NumPy, CuPy, PyTorch) and a device of it."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.data.other_arrays import on_host


@dataclass(frozen=True)
class Place:
    """An array namespace of the Python array API standard, and the device that holds its arrays.

    A place is two names, so that it can be sent to workers: each worker imports the namespace, and
    finds its own device of this name.

    Parameters
    ----------
    namespace : str
        The module to import, such as "array_api_compat.numpy" or "array_api_compat.torch".
    device : str or None
        A device of the namespace, such as "cuda" for PyTorch; None: its default device.
    """

    namespace: str = "array_api_compat.numpy"
    device: str | None = None

    @property
    def xp(self) -> Any:
        """The array namespace, a module."""
        return importlib.import_module(self.namespace)

    @property
    def has_fast_float64(self) -> bool:
        """Whether float64 products take at most about twice the time of float32 ones.

        Processors have them at this speed, and so do NVIDIA's cards for data centres, which have a
        float64 unit for every two of float32: compute capability 6.0 (P100), 7.0 (V100), 8.0
        (A100), 9.0 (H100, H200) and 10.0 (B200). All other cards have one for 32 or 64.
        """
        library = self.namespace.rpartition(".")[2]
        if library == "cupy":
            return self.xp.cuda.Device().compute_capability in FAST_FLOAT64_CAPABILITIES
        if library != "torch" or self.device in (None, "cpu"):
            return True
        if not str(self.device).startswith("cuda"):
            return False
        torch = importlib.import_module("torch")
        major, minor = torch.cuda.get_device_capability(self.device)
        return f"{major}{minor}" in FAST_FLOAT64_CAPABILITIES

    def put(self, values: Any, dtype: type = np.float64) -> Any:
        """Return a host array as an array of this place, of type ``dtype`` (a NumPy type)."""
        # (PyTorch warns of arrays that it may not write to.)
        own = np.require(values, dtype, ["C", "W"])
        return self.xp.asarray(own, device=self.device)

    def take_back(self, array: Any) -> NDArray[Any]:
        """Return an array of this place as a NumPy array on the host."""
        found: NDArray[Any] = on_host(array)
        return found

    def dtype(self, dtype: type) -> Any:
        """Return the namespace's type for a NumPy type, such as ``np.float32``."""
        return getattr(self.xp, np.dtype(dtype).name)

    def cast(self, array: Any, dtype: type) -> Any:
        """Return an array of this place as ``dtype`` (a NumPy type); not copied if it is already.

        The standard has no arithmetic of float32 with float64, so products say their type.
        """
        return self.xp.astype(array, self.dtype(dtype), copy=False)

    def zeros(self, shape: tuple[int, ...], dtype: type = np.float64) -> Any:
        """Return an array of zeros of this place."""
        return self.xp.zeros(shape, dtype=self.dtype(dtype), device=self.device)


FAST_FLOAT64_CAPABILITIES = ("60", "70", "80", "90", "100")
"""Compute capabilities of NVIDIA's cards whose float64 rate is half of their float32 rate."""

CPU = Place()
"""NumPy arrays on the CPU."""


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error says that a device, or the host, has too little memory left."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def is_failure(error: Exception) -> bool:
    """Whether an error says that a device has failed: an error of CuPy, or of CUDA in PyTorch."""
    if type(error).__module__.partition(".")[0] in ("cupy", "cupy_backends"):
        return True
    by_cuda = isinstance(error, RuntimeError) and "CUDA" in str(error)
    return by_cuda or type(error).__name__ == "AcceleratorError"
