"""The READMEs and docs name commands, options, files, modules and tests that exist."""

import ast
import re
import sys
from pathlib import Path

import click
import numpy as np
import pytest
from cli_world import World, succeed, world
from places import ROOT
from site_pages import SPHINX_PAGES, faults, sources
from test_layers import PACKAGES

import bigscreen
from bigscreen.cli.commands import group

__all__ = ["world"]  # a fixture

READMES = ["README.md", "cluster/README.md"]
SITE = [str(path.relative_to(ROOT)) for path in sources(ROOT / "docs") if path.suffix == ".md"]
# Options of scripts, not of bigscreen, stand in the pages of benchmarks.
BENCHMARKS = ["docs/benchmarks.md", "pipelines/bench/README.md"]
PAGES = [*READMES, *(page for page in SITE if page not in BENCHMARKS)]
DOCS = [*PAGES, *BENCHMARKS]
# Of pip, dask and cluster/, not of bigscreen.
OTHERS = {
    *("--host", "--port", "--interface", "--nthreads", "--no-dashboard"),
    *("--worker-port", "--nanny-port"),
}


def options(command: str) -> set[str]:
    found = {name for each in group.commands[command].params for name in each.opts}
    return found | {
        "--help",
        *(n for p in group.commands[command].params for n in p.secondary_opts),
    }


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_options_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    commands = re.findall(r"(?:^ *|`|&& )bigscreen ([\w-]+)([^\n`]*)", text, flags=re.MULTILINE)
    assert commands or page not in READMES
    for command, rest in commands:
        assert command in group.commands, command
        assert set(re.findall(r"(?<!\S)--[a-z-]+", rest)) <= options(command), rest
    known = OTHERS.union(*map(options, group.commands))
    assert set(re.findall(r"`(--[a-z0-9-]+)", text)) <= known


@pytest.mark.parametrize("page", DOCS)
def test_named_files_exist(page: str) -> None:
    """Named links, paths, modules and tests exist, by their full names or by their ends."""
    text = (ROOT / page).read_text()
    links = re.findall(r"\]\((?!http)([^)#]+)", text)
    named = re.findall(r"\b((?:bigscreen|pipelines|cluster|tests|docs)/[\w./-]*\w)", text)
    modules = re.findall(r"python -m (pipelines[\w.]*)", text)
    files = [f"{name.replace('.', '/')}.py" for name in modules]
    for path in [
        *((ROOT / page).parent / link for link in links),
        *(ROOT / n for n in named + files),
    ]:
        assert path.exists(), path
    tests = list((ROOT / "tests").rglob("test_*.py"))
    names = {name for path in tests for name in re.findall(r"def (test_\w+)", path.read_text())}
    for name, cut in re.findall(r"(?<![\w/])(test_\w+)(?!\.py)\b(\.\.\.)?", text):
        assert name in names or (cut and any(one.startswith(name) for one in names)), name
    for end in re.findall(r"`\.\.\.(\w+)`", text):
        assert any(name.endswith(end) for name in names), end


def test_the_formulas_that_code_cites_are_there() -> None:
    """Cited sections of docs/maths.md exist, and papers by their first author and year."""
    text = (ROOT / "docs" / "maths.md").read_text()
    sections = set(re.findall(r"^##+ (\d(?:\.\d)?)\.? ", text, flags=re.MULTILINE))
    formulas, _, listed = text.partition("## 6. References")
    references = [" ".join(one.split()) for one in listed.split("\n* ")]
    name = r"[A-Z][a-zö]+"
    paper = rf"({name})(?: et al\.|, {name} and {name}| and {name}|) \(?((?:19|20)\d\d)\b"
    texts = [p.read_text() for top in ("bigscreen", "tests") for p in (ROOT / top).rglob("*.py")]
    cited = {n for one in texts for n in re.findall(r"maths\.md (\d(?:\.\d)?)", one)}
    assert len(cited) > 10 and cited <= sections
    for author, year in {found for one in [*texts, formulas] for found in re.findall(paper, one)}:
        starts = [one for one in references if one.startswith(author)]
        assert any(year in one for one in starts), (author, year)


def test_the_main_job_as_documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All commands of the README's main job run, in order, on a small table."""
    text = (ROOT / "README.md").read_text().partition("## The main job")[2]
    commands = text.split("```")[1].strip().splitlines()
    monkeypatch.chdir(tmp_path)
    rows = ["a,b,label", *(f"{i % 7},{i % 5},{'x' if i % 7 > i % 5 else 'y'}" for i in range(2000))]
    Path("train.csv").write_text("\n".join(rows) + "\n")
    assert len(commands) == 6
    for command in commands:
        succeed(*command.replace("--landmarks 1000", "--landmarks 30").split()[1:])
    assert len(Path("predictions.csv").read_text().splitlines()) > 300


def test_the_python_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its blocks in order: an estimator on arrays, then a model that the command line wrote."""
    text = (ROOT / "README.md").read_text()
    estimator, served = re.findall(r"^```python\n(.*?)^```$", text, flags=re.M | re.S)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 4))
    known = {"X": X, "y": X[:, 0] > 0, "X_new": X[:5]}
    exec(estimator, known)
    assert known["machine"].relative_gap_ <= 1e-3
    monkeypatch.chdir(tmp_path)
    rows = ["age,income,colour,owner,label"]
    for i in range(400):
        age, owner = 20 + i % 60, ("True", "False")[i % 2]
        rows.append(
            f"{age},{1e4 + i},{('red', 'blue')[i % 3 > 1]},{owner},{'no' if age > 40 else 'yes'}"
        )
    Path("train.csv").write_text("\n".join(rows) + "\n")
    succeed("ingest", "train.csv", "train.store", "--scale", "standard")
    succeed("fit", "train.store", "model.bsm", "--kernel", "linear")
    exec(served, known)
    answers = known["model"].predict([{"age": 33, "income": 1e4, "colour": "red", "owner": True}])
    assert answers.tolist() == ["yes"]


def test_a_loss_of_ones_own_as_documented() -> None:
    """The README's example of a user's own loss, the hinge, works."""
    (call,) = re.findall(r"`(bigscreen\.solve\(.*?\))`", (ROOT / "README.md").read_text())
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    y = np.where(X[:, 0] + 0.3 * rng.normal(size=60) > 0, 1.0, -1.0)
    C, a, b, lower, upper = 1.0, -y, np.ones(60), 0.0, 1.0
    given = {"bigscreen": bigscreen, "X": X, "C": C, "a": a, "b": b}
    found = eval(call, {**given, "lower": lower, "upper": upper})
    assert found.certificate.relative_gap <= 1e-6


def test_info_prints_the_number_of_shards(world: World) -> None:
    """The cluster's README refers to `bigscreen info` for it."""
    assert re.search(r"shards +\d", succeed("info", world.store))


def test_help_examples_name_what_ingest_makes() -> None:
    for command in (group, *group.commands.values()):
        with click.Context(command) as context:
            shown = command.get_help(context)
        assert ".store-holdout" not in shown


def definitions(path: Path) -> set[str]:
    """Collect the names of a file's functions, classes and constants, and ``Class.method``."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{one.name}" for one in node.body if hasattr(one, "name")}
    return found


@pytest.mark.parametrize("page", [*DOCS, "CONTRIBUTING.md"])
def test_named_functions_exist(page: str) -> None:
    """Pages name functions as ``bigscreen/package/file.py::Class.method``."""
    text = (ROOT / page).read_text()
    for path, name in re.findall(r"\b(bigscreen/[\w/]+\.py)::([\w.]*\w)", text):
        assert name in definitions(ROOT / path), f"{page}: {path} has no {name}"


def test_the_architecture_page_has_a_paragraph_for_every_package() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    (shown,) = re.findall(r"## The packages.*?\n## ", text, flags=re.DOTALL)
    assert re.findall(r"\*\*(\w+)\*\*", shown) == list(PACKAGES)


def test_the_floor_plan_draws_every_package_above_what_it_imports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    floors = __import__("floors")
    found = floors.imports()
    level = floors.storeys(found)
    assert set(level) == set(PACKAGES)
    assert all(level[other] < level[name] for name in found for other in found[name])
    drawn = floors.drawing()
    assert all(f">{name}</text>" in drawn for name in PACKAGES)
    left = [int(x) for x in re.findall(r'<rect x="(-?\d+)"', drawn)]
    assert min(left) >= 0 and max(left) + floors.BOX[0] <= floors.WIDTH
    sys.modules.pop("floors")


def test_no_page_has_a_name_that_sphinx_writes_itself() -> None:
    names = {source.stem for source in sources(ROOT / "docs")}
    assert "searches" in names and not names & SPHINX_PAGES


def test_a_lost_page_and_a_dead_link_of_a_built_site_are_found(tmp_path: Path) -> None:
    docs, site = tmp_path / "docs", tmp_path / "site"
    docs.mkdir()
    site.mkdir()
    (docs / "tour.md").write_text("(top)=\n# A tour of `fit` & more\n")
    (docs / "api.rst").write_text("Interface\n=========\n")
    link = '<a href="#x">#</a>'
    tour = f"<h1>A tour of <code>fit</code> &amp; more{link}</h1>"
    (site / "tour.html").write_text(tour + '<a href="api.html?a#b"> <a href="mailto:a@b">')
    (site / "api.html").write_text(f"<h1>Interface{link}</h1>")
    assert faults(docs, site) == []
    (site / "api.html").write_text('<h1>Search</h1><a href="gone.html#x">')
    lost, dead = faults(docs, site)
    assert "api.html does not show" in lost and "gone.html#x" in dead
