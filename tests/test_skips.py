"""What tests may be without: nothing that the extra `test` can install."""

import re
import tomllib
from pathlib import Path

TESTS = Path(__file__).parent
BRINGS = {"yaml": "dask", "moto": "moto"}
"""Distributions whose requirements or names bring modules of other names."""
TOO_LARGE = {"torch"}
"""Modules of gigabytes, with which tests run where they are installed."""


def required(extra, project):
    """Names of the distributions that an extra brings, with those that the package itself needs."""
    lines = [*project["dependencies"], *project["optional-dependencies"][extra]]
    names = set()
    for line in lines:
        inner = re.fullmatch(rf"{project['name']}\[([\w,-]+)\]", line)
        if inner:
            for other in inner[1].split(","):
                names |= required(other, project)
        else:
            names.add(re.match(r"[\w.-]+", line)[0].lower().replace("-", "_"))
    return names


def test_every_module_that_a_test_asks_for_is_brought_by_the_extra_test():
    project = tomllib.loads((TESTS.parent / "pyproject.toml").read_text())["project"]
    brought = required("test", project)
    asked = {
        module
        for path in TESTS.rglob("*.py")
        for module in re.findall(r'importorskip\(\s*"(\w+)', path.read_text())
    }
    assert {"pandas", "polars", "xarray", "pyarrow", "onnxruntime"} <= asked
    asked -= TOO_LARGE
    assert {module for module in asked if BRINGS.get(module, module) not in brought} == set()
