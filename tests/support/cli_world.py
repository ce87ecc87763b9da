"""Valid inputs for every command, made once, and functions that run commands."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from json_results import check_result

from bigscreen.cli.commands import group

N = 600
FIT = ["--landmarks", "40", "--gamma", "1", "--threads", "1"]


def bigscreen(*args: object) -> Result:
    """Run a command in this process."""
    result = CliRunner().invoke(group, [str(arg) for arg in args], prog_name="bigscreen")
    if "--json" in args and result.exit_code == 0:
        found = Path(str(args[args.index("--json") + 1]))
        if found.is_file():
            check_result(found)
    return result


def succeed(*args: object) -> str:
    result = bigscreen(*args)
    assert result.exit_code == 0, result.output
    return result.stdout


def process(*args: object, **kwargs: object) -> subprocess.Popen[str]:
    """Start a command as a process of its own."""
    code = "from bigscreen.cli import main; main(prog_name='bigscreen')"
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **kwargs,
    )


def write_csv(path: Path, n: int = N, columns: int = 3, seed: int = 0) -> Path:
    """Write rows whose label, yes or no, says whether they lie inside a ring."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, columns))
    inside = (X[:, :2] ** 2).sum(axis=1) + 0.2 * rng.normal(size=n) < 1.3
    names = [f"x{j}" for j in range(columns)]
    lines = [",".join([*names, "inside"])]
    for row, yes in zip(X, inside, strict=True):
        lines.append(",".join([*(f"{v:.6f}" for v in row), "yes" if yes else "no"]))
    path.write_text("\n".join(lines) + "\n")
    return path


@dataclass(frozen=True)
class World:
    """Valid inputs for every command, made once."""

    csv: Path
    store: Path
    plain: Path
    wide: Path
    unlabelled: Path
    targets: Path
    model: Path
    fit_json: Path


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("world")
    made = World(
        write_csv(folder / "rows.csv"),
        *(folder / name for name in list(World.__dataclass_fields__)[1:]),
    )
    write_csv(folder / "wide.csv", columns=5)
    bare = [line.rsplit(",", 1)[0] for line in made.csv.read_text().splitlines()]
    (folder / "bare.csv").write_text("\n".join(bare) + "\n")
    succeed("ingest", made.csv, made.store, "--label", "inside", "--scale", "standard")
    succeed("ingest", made.csv, made.plain, "--label", "inside", "--scale", "none")
    succeed("ingest", folder / "wide.csv", made.wide, "--label", "inside")
    succeed("ingest", folder / "bare.csv", made.unlabelled, "--label", "none", "--like", made.store)
    numbers = [line.replace("yes", "1.5").replace("no", "-2") for line in made.csv.open()]
    (folder / "numbers.csv").write_text("".join(numbers))
    succeed("ingest", folder / "numbers.csv", made.targets, "--regression", "--scale", "standard")
    succeed("fit", made.store, made.model, *FIT, "--json", made.fit_json)
    return made


def contents(folder: Path) -> dict[str, bytes]:
    """List every file below a folder, including hidden ones."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"folder"
        for path in folder.rglob("*")
    }
