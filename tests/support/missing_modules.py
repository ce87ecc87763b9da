"""Libraries that are installed, as if they were not."""

import sys

import pytest


def hide(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Make the import of these modules fail, as if they were not installed."""
    for name in names:
        monkeypatch.setitem(sys.modules, name, None)
