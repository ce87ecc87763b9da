"""Print the oldest versions that pyproject.toml allows, as constraints of pip."""

import re
import tomllib
from pathlib import Path

EXTRAS = ("export", "plots")

with open(Path(__file__).resolve().parents[1] / "pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
lines = [*project["dependencies"]]
for extra in EXTRAS:
    lines += project["optional-dependencies"][extra]
for line in lines:
    if found := re.fullmatch(r"([\w.-]+)>=([\d.]+)", line):
        print(f"{found[1]}=={found[2]}")
