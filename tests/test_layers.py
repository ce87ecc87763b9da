"""Who may import whom: the rules that keep the house's rooms apart."""

import ast
import sys
from pathlib import Path

import pytest

import bigscreen

PACKAGE = Path(bigscreen.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
FILES_ON_DISK = {"files", "sealed", "checkpoint", "work"}
BASE = {
    "dual",
    "point",
    "problems",
    "exact",
    "rows",
    "kernels",
    "entries",
    "tiles",
    "sides",
    "amx",
    "unit",
    "errors",
    *FILES_ON_DISK,
}
FITTING = BASE | {"store", "design", "closing", "screening", "solvers", "fit"}

# What the modules of a room may import of ours, itself included. Rooms that are not named here
# (train, estimators, cli, report, ...) stand on top: they may import anything, nothing below them.
ROOMS = {
    **dict.fromkeys(BASE, BASE),
    "store": BASE | {"store"},
    "design": BASE | {"store", "design"},
    "closing": BASE | {"store", "design", "closing"},
    "screening": {"dual", "point", "problems", "errors", "screening"},
    # Solvers are handed regions, which are data; they never see a rule.
    "solvers": BASE | {"store", "design", "solvers", "screening.regions"},
    "fit": FITTING,
    "fleet": {"fleet", "errors", *FILES_ON_DISK},
    "nystrom": FITTING | {"nystrom"},
    "partition": FITTING | {"partition"},
    "divide": FITTING | {"partition", "divide"},
    "path": FITTING | {"nystrom", "path"},
}

# One third-party library, one door.
COMMON = {"numpy", "scipy"}
DOORS = {
    "numba": {"rows", "amx"},
    "llvmlite": {"amx"},
    "zarr": {"store"},
    "numcodecs": {"store"},
    "google_crc32c": {"store"},
    "h5py": {"store"},
    "pyarrow": {"store"},
    "dask": {"fleet"},
    "distributed": {"fleet"},
    "psutil": {"fleet", "train"},
    "threadpoolctl": {"fleet", "estimators", "train"},
    "sklearn": {"estimators", "train", "cli", "demo"},
    "click": {"cli"},
    "rich": {"report", "cli", "demo"},
    "matplotlib": {"report"},
}


def room(path: Path) -> str:
    """The room of a file: its folder, or its name up to the first underscore (fleet_memory)."""
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py").split("_")[0] if path.parent == PACKAGE else first


def imports(path: Path) -> list[str]:
    """Every module that a file imports, at its top or inside a function."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the room; write it in full"
            if node.module == "bigscreen":
                found += [f"bigscreen.{alias.name}" for alias in node.names]
            else:
                found.append(node.module)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_layers(path: Path) -> None:
    here = room(path)
    for name in imports(path):
        top, _, rest = name.partition(".")
        if top == "bigscreen" and here in ROOMS:
            there = rest.split(".")[0].split("_")[0]
            allowed = there in ROOMS[here] or rest in ROOMS[here]
            assert allowed, f"{path}: {here} may not import {name}"
        elif top in DOORS:
            assert here in DOORS[top], f"{path}: {top} comes in only through {DOORS[top]}"
        else:
            known = top in COMMON or top == "bigscreen" or top in sys.stdlib_module_names
            assert known, f"{path}: {top} has no door yet; name one in this test"


def test_solvers_do_not_import_each_other() -> None:
    # What solvers are handed, and compiled steps they share: no solvers themselves.
    common = {"bigscreen.solvers.protocol", "bigscreen.solvers.smo"}
    for path in (PACKAGE / "solvers").glob("*.py"):
        own = path.stem.split("_")[0]
        for name in imports(path):
            if name.startswith("bigscreen.solvers.") and name not in common:
                assert name.split(".")[2].split("_")[0] == own, f"{path} imports {name}"


def test_files_stay_readable() -> None:
    """A file is one topic, read in one sitting: beyond some 600 lines it is two."""
    long = {str(p): n for p in FILES if (n := len(p.read_text().splitlines())) > 600}
    assert not long
