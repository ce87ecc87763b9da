"""Who may import whom: one list of packages, each of which imports itself and those before it."""

import ast
import sys
from pathlib import Path

import pytest

import bigscreen

ROOT = Path(bigscreen.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

PACKAGES = (
    *("errors", "files", "numerics", "fleet", "data", "kernels", "problems", "model", "evaluate"),
    *("features", "dask", "screening", "options", "report", "export", "intake", "certify"),
    *("solvers", "device", "fit", "plan", "train", "path", "amend", "tune", "cli", "estimators"),
)

# Solvers are handed regions, which are data; they never see a rule.
SOLVERS_SEE = {"bigscreen.screening.regions"}
# What families of solvers share: what they are handed, rows in memory, the compiled loop of pairs.
SOLVERS_SHARE = {
    "bigscreen.solvers.protocol",
    "bigscreen.solvers.kept_rows",
    "bigscreen.solvers.smo.loop",
}

# One third-party library, one door.
COMMON = {"numpy", "scipy"}
DOORS = {
    "array_api_compat": {"data", "device"},
    "numba": {"numerics", "kernels"},
    "llvmlite": {"kernels"},
    "zarr": {"data", "intake"},
    "numcodecs": {"data", "intake"},
    "google_crc32c": {"data", "intake"},
    "h5py": {"data", "intake"},
    "isal": {"intake"},
    "pyarrow": {"data", "intake"},
    "dask": {"fleet"},
    "distributed": {"fleet"},
    "psutil": {"fleet"},
    "threadpoolctl": {"fleet"},
    "sklearn": {"estimators", "train", "cli", "export"},
    "fsspec": {"files"},
    "joblib": {"export"},
    "onnx": {"export", "estimators"},
    "onnxruntime": {"export"},
    "skl2onnx": {"estimators"},
    "skops": {"export"},
    "click": {"cli"},
    "rich": {"report", "cli"},
    "jinja2": {"report"},
    "matplotlib": {"report"},
}


def package(path: Path) -> str:
    """The package of a file below bigscreen/, or the name of a file that stands there by itself."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path: Path) -> list[str]:
    """Every module that a file imports, at its top or inside a function."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the package; write it in full"
            if node.module == "bigscreen":
                found += [f"bigscreen.{alias.name}" for alias in node.names]
            else:
                found.append(node.module)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_layers(path: Path) -> None:
    here = package(path)
    for name in imports(path):
        top, _, rest = name.partition(".")
        if top == "bigscreen":
            if here == "__init__":
                continue
            there = rest.split(".")[0]
            if there in PACKAGES:
                before = PACKAGES.index(there) <= PACKAGES.index(here)
                assert before, f"{path}: {here} comes before {there} and may not import {name}"
            else:  # a public name, imported as users do
                assert here == "cli", f"{path}: import {name} from where it is defined"
        elif top in DOORS:
            assert here in DOORS[top], f"{path}: {top} comes in only through {DOORS[top]}"
        else:
            known = top in COMMON or top in sys.stdlib_module_names
            assert known, f"{path}: {top} has no door yet; name one in this test"


def test_every_package_has_its_place() -> None:
    found = {package(path) for path in FILES} - {"__init__"}
    assert found == set(PACKAGES)
    flat = {path.name for path in ROOT.glob("*.py")}
    assert flat == {"__init__.py", "dask.py", "errors.py"}


def test_solvers_see_neither_rules_nor_each_other() -> None:
    for path in (ROOT / "solvers").rglob("*.py"):
        own = ".".join(("bigscreen", *path.relative_to(ROOT).with_suffix("").parts[:2]))
        for name in imports(path):
            if name.startswith("bigscreen.screening"):
                assert name in SOLVERS_SEE, f"{path} imports {name}"
            if name.startswith("bigscreen.solvers.") and name not in SOLVERS_SHARE:
                family = name == own or name.startswith(own + ".")
                assert family, f"{path} imports {name}"
