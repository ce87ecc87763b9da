"""Find the device that a fit computes on: CuPy or PyTorch with a CUDA device, else the CPU."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bigscreen.device.place import CPU, Place
from bigscreen.errors import InputError, reason_of


@dataclass(frozen=True)
class Device:
    """A device that computes, and what its array library and its driver say of it.

    Parameters
    ----------
    place : Place
        Where its arrays live.
    name : str
        Its name, as the driver gives it, such as "NVIDIA H100 80GB HBM3"; "cpu" for NumPy arrays.
    library : str
        The array library with its version, such as "CuPy 14.2.0".
    free_bytes : int or None
        Bytes of device memory that can be allocated; None for the CPU, whose memory the option
        ``memory`` bounds.
    """

    place: Place
    name: str
    library: str
    free_bytes: int | None = None

    @property
    def record(self) -> dict[str, str]:
        """The name and the library, as a model records them."""
        return {"name": self.name, "library": self.library}


HOST = Device(CPU, "cpu", f"NumPy {np.__version__}")
"""The processors of this machine, which compute with NumPy and with compiled code."""


class Unusable(Exception):
    """An array library has no device that can be used; says why, and what to do."""


def find_device(wanted: str) -> Device:
    """Find the device for a value of the option ``device``.

    Parameters
    ----------
    wanted : {"auto", "cpu", "cuda"}
        "cuda" is the first device that CuPy finds, or that PyTorch finds if CuPy finds none; "auto"
        is the same device, or the CPU if there is none.

    Raises
    ------
    InputError
        If "cuda" is wanted and there is no device; says for each library why.
    """
    if wanted == "cpu" or (wanted == "auto" and not has_driver()):
        return HOST
    reasons = []
    for find in LIBRARIES.values():
        try:
            found = find()
            _check_products(found)
            return found
        except Unusable as reason:
            reasons.append(str(reason))
    if wanted == "auto":
        return HOST
    raise InputError(f"device cuda: {', and '.join(reasons)}; or compute on device cpu")


def has_driver() -> bool:
    """Whether a CUDA driver is installed.

    Asked first, because machines without a driver need not wait seconds for PyTorch's import.
    """
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def _find_cupy() -> Device:
    """Return CuPy's current device; raises `Unusable` if it has none."""
    cupy = _import("cupy", "CuPy is not installed (pip install 'bigscreen[gpu]')")
    library, runtime = f"CuPy {cupy.__version__}", cupy.cuda.runtime
    try:
        runtime.getDeviceCount()
        number = runtime.getDevice()
        name = runtime.getDeviceProperties(number)["name"].decode()
        free = runtime.memGetInfo()[0] + cupy.get_default_memory_pool().free_bytes()
    except runtime.CUDARuntimeError as error:
        what = "driver of NVIDIA that is new enough" if "Driver" in str(error) else "device"
        raise Unusable(f"{library} finds no {what} ({reason_of(error)})") from error
    return Device(Place("array_api_compat.cupy"), name, library, int(free))


def _find_torch() -> Device:
    """Return PyTorch's current device; raises `Unusable` if it has none."""
    torch = _import("torch", "PyTorch is not installed")
    library, cuda = f"PyTorch {torch.__version__}", torch.cuda
    if not torch.backends.cuda.is_built():
        raise Unusable(f"{library} is built without CUDA")
    if not cuda.is_available():
        raise Unusable(f"{library} finds no device (does `nvidia-smi` show one?)")
    unused = cuda.memory_reserved() - cuda.memory_allocated()
    return Device(
        Place("array_api_compat.torch", "cuda"),
        cuda.get_device_name(),
        library,
        int(cuda.mem_get_info()[0] + unused),
    )


LIBRARIES: dict[str, Callable[[], Device]] = {"CuPy": _find_cupy, "PyTorch": _find_torch}
"""What finds a CUDA device, by library, in the order in which libraries are tried."""


def _import(module: str, missing: str) -> Any:
    """Import an array library; raises `Unusable`, with the sentence ``missing`` if it is absent."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name == module:
            raise Unusable(missing) from error
        raise Unusable(f"{module} cannot be imported ({reason_of(error)})") from error
    except Exception as error:  # (CuPy and PyTorch raise errors of many types for broken libraries)
        raise Unusable(f"{module} cannot be imported ({reason_of(error)})") from error


def _check_products(device: Device) -> None:
    """Raise `Unusable` if a device cannot multiply, or multiplies float32 in fewer than 24 bits.

    TF32 has 11 bits. It is switched on in several ways (``CUPY_TF32``, PyTorch's float32 matmul
    precision, variables of NVIDIA's libraries), so that its effect is measured: the last bit of a
    factor is lost.
    """
    place = device.place
    try:
        factor = place.put(np.full((256, 256), 1 + 2.0**-23), np.float32)
        product = place.take_back(factor @ place.put(np.eye(256), np.float32))
    except Exception as error:  # (a missing library of CUDA, or a device that is broken or full)
        raise Unusable(
            f"{device.library} cannot multiply on {device.name} ({reason_of(error)}); "
            "pip install 'bigscreen[gpu]' brings the libraries of CUDA 12"
        ) from error
    if np.any(product == 1):
        raise Unusable(
            f"{device.library} multiplies float32 numbers in TF32, of which nothing can be proved "
            "(unset CUPY_TF32 and NVIDIA_TF32_OVERRIDE, and call "
            'torch.set_float32_matmul_precision("highest"))'
        )
