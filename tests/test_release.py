"""What is published says one version, one set of requirements and the Pythons that are tested."""

import re
import tomllib

import pytest
from places import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
IMAGE = (ROOT / "cluster" / "Dockerfile").read_text()


def recipe():
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load((ROOT / "cluster" / "recipe.yaml").read_text())


def test_every_place_states_the_same_version():
    cited = re.search(r"^version: (\S+)\ndate-released: (\S+)$", *texts("CITATION.cff"))
    newest = re.search(r"^## (\S+) \(([\d-]+)\)$", *texts("CHANGELOG.md"))
    assert cited.groups() == newest.groups() == (PROJECT["version"], newest[2])
    assert recipe()["context"]["version"] == PROJECT["version"]


def texts(name):
    return (ROOT / name).read_text(), re.MULTILINE


def test_the_conda_package_requires_what_the_project_requires():
    python, *run = recipe()["requirements"]["run"]
    assert f">={recipe()['context']['python_min']}" == PROJECT["requires-python"]
    assert python == "python >=${{ python_min }}"
    # What pip calls dask is `dask-core` at conda-forge, whose `dask` brings a dashboard.
    named = {line.replace(" ", "").replace("dask-core", "dask") for line in run}
    assert named == set(PROJECT["dependencies"]) and len(named) == len(run)
    scripts = [" = ".join(item) for item in PROJECT["scripts"].items()]
    assert recipe()["build"]["python"]["entry_points"] == scripts


def test_classifiers_name_the_pythons_of_the_workflow():
    workflow = re.search(r"python: (\[.*?\])", (ROOT / ".github/workflows/tests.yml").read_text())
    stated = re.findall(r":: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    assert stated == re.findall(r"3\.\d+", workflow[1])
    assert PROJECT["requires-python"] == f">={stated[0]}"


def test_the_image_is_made_of_what_is_there_and_runs_as_a_user():
    lines = re.sub(r"\\\n|^#.*\n", "", IMAGE, flags=re.MULTILINE).split("\n")
    steps = [line.split(maxsplit=1) for line in lines if line]
    known = {"FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "CMD"}
    assert {word for word, _ in steps} == known and steps[0][0] == "FROM"
    copied = [word for key, words in steps if key == "COPY" for word in words.split()[:-1]]
    stage = copied.index("--from=build")
    assert "AS build" in steps[0][1] and all((ROOT / name).exists() for name in copied[:stage])
    # What hatchling reads of the project is there.
    assert {"pyproject.toml", PROJECT["readme"], "LICENSE", "bigscreen"} == set(copied[:stage])
    pythons = set(re.findall(r"^FROM python:([\d.]+)-slim", *texts("cluster/Dockerfile")))
    assert len(pythons) == 1 and f":: {pythons.pop()}" in " ".join(PROJECT["classifiers"])
    last = steps[[word for word, _ in steps].index("USER") :]
    assert last[0][1] == "bigscreen" and ["RUN", "bigscreen warmup"] in last
    assert f'CMD ["{next(iter(PROJECT["scripts"]))}", "--help"]' in IMAGE
