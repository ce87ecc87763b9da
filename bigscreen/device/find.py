"""Find the device that a fit computes on: CuPy or PyTorch with a CUDA device, else the CPU."""

from __future__ import annotations

import ctypes
import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from bigscreen.device.place import CPU, Place, is_failure, is_out_of_memory
from bigscreen.errors import DeviceFailed, InputError, reason_of
from bigscreen.fleet.protocol import Fleet


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
    if wanted == "cpu" or (wanted == "auto" and not count_devices()):
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


@contextmanager
def explain_failures(device: Device) -> Iterator[None]:
    """Turn the errors of a device inside the block into one sentence.

    Raises
    ------
    DeviceFailed
        If the device fails, or has too little memory left.
    """
    try:
        yield
    except Exception as error:
        if device is HOST:
            raise
        if is_out_of_memory(error):
            raise DeviceFailed(
                f"{device.name} has too little memory left ({reason_of(error)}): another program "
                "may use it, or `device_memory` is too large"
            ) from error
        if is_failure(error):
            raise DeviceFailed(f"{device.name} has failed ({reason_of(error)})") from error
        raise


def find_on(fleet: Fleet, wanted: str) -> Device:
    """Find the device of the processes that compute, for a value of the option ``device``.

    On a cluster the coordinating process is one of them, as it solves for the steps.

    Returns
    -------
    Device
        The device of each process, with the least memory that is free on any.

    Raises
    ------
    InputError
        If a process has no device and "cuda" is wanted, or if their devices differ.
    """
    found = fleet.everywhere(partial(find_device, wanted))
    if hasattr(fleet, "address"):
        try:
            found.append(find_device(wanted))
        except InputError as error:
            raise InputError(
                f"the process that coordinates the workers needs a device as they do; {error}"
            ) from error
    first = found[0]
    unlike = next((one for one in found if one.record != first.record), None)
    if unlike is not None and wanted == "auto":
        return HOST
    if unlike is not None:
        raise InputError(
            f"device cuda: one process has {first.name} ({first.library}) and another "
            f"{unlike.name} ({unlike.library}), which do not give the same bits; use workers with "
            "equal devices"
        )
    least = None if first.free_bytes is None else min(one.free_bytes or 0 for one in found)
    return replace(first, free_bytes=least)


def device_of_each_worker(workers: int, wanted: str) -> list[str] | None:
    """Return the value of ``CUDA_VISIBLE_DEVICES`` that each worker on this machine is to have.

    None if the workers compute on the CPU, and no device is there.

    Raises
    ------
    InputError
        If "cuda" is wanted and there are more workers than devices. (If it is "auto", no worker
        sees a device.)
    """
    visible = [] if wanted == "cpu" else visible_devices()
    if not visible:
        return None
    if workers <= len(visible):
        return visible[:workers]
    if wanted == "auto":
        return [""] * workers
    raise InputError(
        f"{workers} workers need a device each, and this machine shows {len(visible)} "
        f"({', '.join(visible)}): give at most --workers {len(visible)}"
    )


def find_for_workers(workers: int, wanted: str) -> Device:
    """Find the device that worker processes on this machine will have, before they are started.

    Raises
    ------
    InputError
        As `find_device` and `device_of_each_worker`.
    """
    each = device_of_each_worker(workers, wanted)
    return HOST if each == [""] * workers else find_device(wanted)


def visible_devices() -> list[str]:
    """Return the devices that this process may use, as ``CUDA_VISIBLE_DEVICES`` names them."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return [str(number) for number in range(count_devices())]
    return [name.strip() for name in chosen.split(",") if name.strip() not in ("", "-1")]


def count_devices() -> int:
    """Return the number of devices that the CUDA driver shows to this process; 0 without a driver.

    Asked of the driver, because a process without a device need not wait seconds for the import of
    PyTorch.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    found = ctypes.c_int(0)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(found)):
        return 0
    return found.value


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
