"""The benchmark of devices checks before it measures, with or without a GPU."""

import pytest
from scripts import script


@pytest.mark.slow
def test_the_device_is_checked_and_then_measured():
    shown = script("bench.device", "--quick").stdout
    checked, measured = shown.split("Seconds, landmarks")
    assert checked.count("| met") + checked.count("│ met") == 6 and "missed" not in checked
    rows = [line for line in measured.splitlines() if "SUSY" in line or "HIGGS" in line]
    gaps = [float(line.strip().strip("|│").split()[-1]) for line in rows]
    assert len(gaps) == 7 and max(gaps) <= 1e-3
