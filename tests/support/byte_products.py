"""Processors that can multiply bytes (AVX-512 VNNI), used as if they could not."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bigscreen.kernels import vnni


@contextmanager
def without_byte_products() -> Iterator[None]:
    """Switch the exact products of bytes off, as a user does by the environment."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("BIGSCREEN_VNNI", "0")
        vnni.is_available.cache_clear()
        yield
    vnni.is_available.cache_clear()
