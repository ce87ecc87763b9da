"""Where the checkout, its tests, their helpers and the real data sets lie."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
SUPPORT = TESTS / "support"
DATA = Path(os.environ.get("BIGSCREEN_DATA", ROOT.parent / "shared" / "data"))
