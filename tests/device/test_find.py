"""The device of a fit: the first one that a library finds, or a sentence that says why none is."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from missing_modules import hide

from bigscreen.device import find
from bigscreen.device.find import HOST, Device, find_device
from bigscreen.device.place import CPU, Place
from bigscreen.errors import InputError


class DriverError(RuntimeError):
    """Stands in for CuPy's error of the CUDA runtime, which machines without CuPy do not have."""


def cupy_that(**runtime):
    """A stand-in for CuPy with these functions of the CUDA runtime."""
    own = {
        "getDeviceCount": lambda: 1,
        "getDevice": lambda: 0,
        "getDeviceProperties": lambda number: {"name": b"Made-up GPU"},
        "memGetInfo": lambda: (5000, 9000),
        "CUDARuntimeError": DriverError,
    }
    pool = SimpleNamespace(free_bytes=lambda: 300)
    return SimpleNamespace(
        __version__="14.0",
        cuda=SimpleNamespace(runtime=SimpleNamespace(**own | runtime)),
        get_default_memory_pool=lambda: pool,
    )


def raises(text):
    def call(*_):
        raise DriverError(text)

    return call


def test_without_libraries_the_sentence_says_what_to_install(monkeypatch):
    hide(monkeypatch, "cupy", "torch")
    with pytest.raises(InputError) as found:
        find_device("cuda")
    assert str(found.value) == (
        "device cuda: CuPy is not installed (pip install 'bigscreen[gpu]'), and PyTorch is not "
        "installed; or compute on device cpu"
    )


@pytest.mark.parametrize(
    ("runtime", "sentence"),
    [
        (
            {"getDeviceCount": raises("cudaErrorInsufficientDriver: too old")},
            "CuPy 14.0 finds no driver of NVIDIA that is new enough (cudaErrorInsufficientDriver",
        ),
        (
            {"getDeviceCount": raises("cudaErrorNoDevice: none is there")},
            "CuPy 14.0 finds no device (cudaErrorNoDevice: none is there), and PyTorch is not",
        ),
        (
            {"memGetInfo": raises("cudaErrorDevicesUnavailable: busy")},
            "CuPy 14.0 finds no device (cudaErrorDevicesUnavailable: busy)",
        ),
    ],
)
def test_a_driver_that_fails_is_named_with_its_reason(runtime, sentence, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", cupy_that(**runtime))
    hide(monkeypatch, "torch")
    with pytest.raises(InputError) as found:
        find_device("cuda")
    assert str(found.value).startswith(f"device cuda: {sentence}")


def test_cupys_device_has_its_drivers_name_and_the_memory_that_is_free(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", cupy_that())
    found = find.LIBRARIES["CuPy"]()
    assert found == Device(Place("array_api_compat.cupy"), "Made-up GPU", "CuPy 14.0", 5300)


def test_pytorch_without_cuda_says_so(monkeypatch):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    hide(monkeypatch, "cupy")
    with pytest.raises(InputError, match=r"PyTorch \S+ (is built without CUDA|finds no device)"):
        find_device("cuda")


def stand_in(namespace, name):
    return lambda: Device(Place(namespace), name, f"{name} 1.0", 2**30)


def test_a_device_that_multiplies_in_tf32_is_passed_over_or_refused(monkeypatch):
    coarse, strict = stand_in("tf32_arrays", "Coarse"), stand_in("array_api_strict", "Strict")
    place = Place("tf32_arrays")
    tiny = place.put(np.eye(2) * (1 + 2.0**-14), np.float32)
    assert np.all((tiny @ place.put(np.eye(2), np.float32))[0, 0] == 1)
    monkeypatch.setattr(find, "LIBRARIES", {"one": coarse, "two": strict})
    assert find_device("cuda").name == "Strict"
    monkeypatch.setattr(find, "LIBRARIES", {"one": coarse})
    with pytest.raises(InputError, match="Coarse 1.0 multiplies float32 numbers in TF32"):
        find_device("cuda")


def test_a_library_that_cannot_multiply_is_passed_over(monkeypatch):
    broken = stand_in("array_api_compat.no_such_namespace", "Broken")
    monkeypatch.setattr(find, "LIBRARIES", {"one": broken})
    with pytest.raises(InputError, match="Broken 1.0 cannot multiply on Broken"):
        find_device("cuda")


def test_auto_asks_no_library_without_a_driver_and_is_the_cpu_without_a_device(monkeypatch):
    def ask():
        raise AssertionError("a library was asked")

    monkeypatch.setattr(find, "LIBRARIES", {"one": ask})
    assert find_device("cpu") is HOST
    monkeypatch.setattr(find, "count_devices", lambda: 0)
    assert find_device("auto") is HOST
    monkeypatch.setattr(find, "count_devices", lambda: 1)
    monkeypatch.setattr(find, "LIBRARIES", {"one": stand_in("array_api_strict", "Strict")})
    assert find_device("auto").name == "Strict"
    assert HOST.place == CPU and HOST.free_bytes is None
