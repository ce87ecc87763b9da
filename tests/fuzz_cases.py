"""Files that are not what was written: every one is found in one sentence, or changes nothing.

``python tests/fuzz_cases.py --cases 5000`` spoils that many stores, feature stores, models, paths
and work folders, one file or a pair of files each: a byte flipped, a file cut short, emptied,
deleted, swapped or overwritten with another one of the same or of another store, a value of a JSON
record edited. Then it reads everything that a user can get of it, or goes on with the fit, and
compares that with what the unspoilt one gave.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import shutil
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import random_array

from bigscreen.data.dataset import Dataset
from bigscreen.data.layout import Layout
from bigscreen.data.memory import MemoryDataset
from bigscreen.data.writer import DatasetWriter
from bigscreen.errors import InputError
from bigscreen.features import nystrom
from bigscreen.features.design import Design
from bigscreen.fit import monitor as fit_monitor
from bigscreen.fleet.inline import Inline
from bigscreen.intake.ingest import ingest
from bigscreen.kernels.standard import make_kernel
from bigscreen.model.model import Model
from bigscreen.model.solved_path import SolvedPath
from bigscreen.options.train import TrainOptions
from bigscreen.path.options import PathOptions
from bigscreen.path.run import train_path
from bigscreen.train.run import train

OUTCOMES = ("found", "harmless", "SILENT", "TRACEBACK")
LABELS = ["a", "b", "c"]
_EFFORT = ("seconds", "partition_seconds", "peak_pss_bytes", "kernel_entries")
_EFFORT += ("full_passes", "partial_passes", "passes")
"""What a run has cost, in all: one that begins again pays twice for the same result."""


@dataclass(frozen=True)
class Target:
    """Something on disk: what is spoilt, another one of its kind, and what a user gets of it."""

    name: str
    place: Path
    twin: Path
    use: Callable[[Path], str]


# -- what is there ---------------------------------------------------------------------------------
def rows(seed: int, sparse: bool = False, n: int = 150) -> tuple[Any, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X: Any = rng.normal(size=(n, 6)).astype(np.float32)
    if sparse:
        X = random_array((n, 6), density=0.4, format="csr", rng=rng, dtype=np.float32)
    y = np.argmax(rng.normal(size=(n, 3)) + (X.toarray() if sparse else X)[:, :3], axis=1)
    return X, y.astype(np.int64), rng.random(n) + 0.5


def stored(path: Path, seed: int, kind: str) -> Path:
    """A store; ``kind``: dense, sparse, compressed or targets."""
    X, y, weight = rows(seed, kind == "sparse")
    writer = DatasetWriter(
        path,
        Layout.of(
            n_rows=len(y),
            n_features=6,
            sparse=kind == "sparse",
            labels=None if kind == "targets" else LABELS,
            weights=True,
            chunk_rows=64,
            shard_rows=64,
        ),
        None,
        compress=kind == "compressed",
    )
    ids = np.random.default_rng(seed).permutation(len(y))
    for k in range(writer.n_chunks):
        a, b = writer.chunk(k)
        codes = y[a:b] / 3 if kind == "targets" else y[a:b]
        writer.write(k, X[a:b], codes, weight[a:b], ids[a:b])
    writer.finish()
    return path


def memory(seed: int) -> MemoryDataset:
    X, y, weight = rows(seed)
    return MemoryDataset(X, y, LABELS, weight, shard_rows=64, chunk_rows=64)


FITS: dict[str, dict[str, Any]] = {
    "newton": {"kernel": "linear", "solver": "newton", "tol": 1e-5},
    "features": {"kernel": "rbf", "landmarks": 20, "features": "stored", "tol": 1e-4},
    "descent": {"kernel": "linear", "solver": "cd", "tol": 1e-4},
    "interior": {"kernel": "linear", "solver": "interior", "tol": 1e-5},
    "pairs": {"kernel": "rbf", "exact": True, "solver": "pairs", "tol": 1e-5},
    "block": {"kernel": "rbf", "exact": True, "solver": "block", "tol": 1e-5, "start": "divide"},
}


def fitted(seed: int, name: str, report: Any = None, **more: Any) -> Model:
    options = TrainOptions.from_record({"gamma": 0.3, **FITS[name], **more})
    with warnings.catch_warnings(), Inline(1) as fleet:
        warnings.simplefilter("ignore")
        return train(memory(seed), options, fleet, report)


def path_options(work: Path | None, resume: bool) -> PathOptions:
    fit = TrainOptions(kernel="rbf", exact=True, gamma=0.3, tol=1e-3, work=work, resume=resume)
    return PathOptions(fit, np.geomspace(0.1, 5, 4), 2, ("dvi", "gap"))


def solved(seed: int, work: Path | None = None, resume: bool = False, report: Any = None) -> Any:
    with warnings.catch_warnings(), Inline(1) as fleet:
        warnings.simplefilter("ignore")
        return train_path(memory(seed), path_options(work, resume), fleet, report)


class Stop:
    """Ctrl-C after a number of passes or points."""

    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self, event: dict[str, Any]) -> None:
        if event["event"] in ("pass", "point"):
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt


def interrupted(run: Callable[..., Any], after: int, **how: Any) -> None:
    before = fit_monitor.MONITOR
    fit_monitor.MONITOR = replace(before, checkpoint_seconds=-1.0)
    try:
        run(report=Stop(after), **how)
    except KeyboardInterrupt:
        return
    finally:
        fit_monitor.MONITOR = before
    raise AssertionError("it ended before it was interrupted")


def design(seed: int) -> Design:
    data, kernel = memory(seed), make_kernel("rbf", 0.3)
    side, _ = nystrom.choose_landmarks(data, kernel, 12, "uniform", 0)
    return Design(data, kernel, side, nystrom.factor_matrix(kernel, side))


def features(folder: Path, seed: int, stop: bool = False) -> Any:
    def progress(done: int, total: int) -> None:
        if stop and done == 2:
            raise KeyboardInterrupt

    with Inline(1) as fleet:
        try:
            return nystrom.store_features(design(seed), fleet, folder, progress).data
        except KeyboardInterrupt:
            return None


def read_in(source: Path, place: Path, progress: Any = None) -> Any:
    options: dict[str, Any] = {"weight": "weight", "label": "label", "scale": "standard"}
    return ingest(source, place / "x.store", progress=progress, **options).store


def killed_ingest(source: Path, place: Path) -> None:
    def stop(event: dict[str, Any]) -> None:
        if event["phase"] == "write":
            raise KeyboardInterrupt

    place.mkdir()
    try:
        read_in(source, place, stop)
    except KeyboardInterrupt:
        return
    raise AssertionError("it ended before it was interrupted")


# -- what a user gets of it ------------------------------------------------------------------------
def digest(*parts: Any) -> str:
    state = hashlib.sha256()
    for part in parts:
        if hasattr(part, "indptr"):
            state.update(repr(part.shape).encode())
            for each in (part.data, part.indices, part.indptr):
                state.update(np.ascontiguousarray(each).tobytes())
        elif isinstance(part, np.ndarray):
            state.update(repr((part.shape, part.dtype.str)).encode() + part.tobytes())
        else:
            state.update(json.dumps(timeless(part), sort_keys=True, default=str).encode())
    return state.hexdigest()


def timeless(value: Any) -> Any:
    """A record without what no two runs to one result have in common."""
    if isinstance(value, dict):
        return {str(k): timeless(v) for k, v in value.items() if k not in _EFFORT}
    return [timeless(each) for each in value] if isinstance(value, list | tuple) else value


def of_rows(data: Any) -> str:
    n = data.n_rows
    parts = [getattr(data, name)(0, n) for name in ("X", "y", "weights", "sqnorms", "row_ids")]
    known = [data.max_sqnorm, data.label_counts.tolist(), data.targets, data.labels, data.nnz]
    known += [data.preparation.to_dict(), data.manifest["extra"], data.fingerprint]
    return digest(*parts, known, data.layout.to_dict())


def of_model(model: Model) -> str:
    X = rows(9)[0]
    return digest(
        model.coef, model.intercept, model.scores(X), model.labels, model.preparation.to_dict(),
        model.provenance, model.kernel.to_dict(), [model.kind, model.strategy],
        *([] if model.support is None else [model.support]),
    )  # fmt: skip


def of_path(path: Any) -> str:
    return digest(path.record, *(of_model(path.model(k)) for k in range(len(path))))


def world(folder: Path, names: str) -> list[Target]:
    """Everything with this in its name that can be spoilt, and its twin made of other rows."""
    folder.mkdir(parents=True, exist_ok=True)
    targets = []

    def add(name: str, make: Callable[[Path, int], Any], use: Callable[[Path], str]) -> None:
        if names not in name:
            return
        places = [folder / f"{name}-{seed}" for seed in (1, 2)]
        for seed, place in zip((1, 2), places, strict=True):
            make(place, seed)
        targets.append(Target(name, *places, use))

    for kind in ("dense", "sparse", "compressed", "targets"):
        add(
            kind,
            lambda place, seed, kind=kind: stored(place, seed, kind),
            lambda place: of_rows(Dataset.open(place)),
        )
    for name in ("newton", "features", "pairs"):
        add(
            f"model-{name}",
            lambda place, seed, name=name: fitted(seed, name).save(place),
            lambda place: of_model(Model.load(place)),
        )
    add(
        "path",
        lambda place, seed: solved(seed).save(place),
        lambda place: of_path(SolvedPath.load(place)),
    )
    for name in FITS:
        add(
            f"work-{name}",
            lambda place, seed, name=name: interrupted(
                fitted, 4 if name != "descent" else 2, seed=seed, name=name, work=place
            ),
            lambda place, name=name: of_model(fitted(1, name, work=place, resume=True)),
        )
    add(
        "work-path",
        lambda place, seed: interrupted(solved, 6, seed=seed, work=place),
        lambda place: of_path(solved(1, place, True)),
    )
    sources = {}
    for seed in (1, 2):
        X, y, weight = rows(seed)
        sources[seed] = folder / f"rows-{seed}.csv"
        table = np.column_stack([X, weight, y])
        head = "a,b,c,d,e,f,weight,label"
        np.savetxt(sources[seed], table, "%.9g", ",", header=head, comments="")
    add(
        "work-ingest",
        lambda place, seed: killed_ingest(sources[seed], place),
        lambda place: of_rows(read_in(sources[1], place)),
    )
    for name, stop in (("features", False), ("features-wip", True)):
        add(
            name,
            lambda place, seed, stop=stop: features(place, seed, stop),
            lambda place: of_rows(features(place, 1)),
        )
    return targets


# -- how it is spoilt ------------------------------------------------------------------------------
def spoil(place: Path, twin: Path, rng: np.random.Generator) -> str:
    """Spoil a file, or a pair; says what was done."""
    files = sorted(f for f in place.rglob("*") if f.is_file()) if place.is_dir() else [place]
    records = [f for f in files if f.suffix == ".json"]
    if records and rng.random() < 0.3:
        files = records
    file = files[rng.integers(len(files))]
    others = [f for f in files if f.suffix == file.suffix and f != file]
    near = [f for f in others if f.parent == file.parent] or others
    fellow = near[rng.integers(len(near))] if near else file
    across = twin / file.relative_to(place) if place.is_dir() else twin
    data = file.read_bytes()
    ways: dict[str, Callable[[], Any]] = {
        "flip": lambda: file.write_bytes(flipped(data, rng)),
        "cut": lambda: file.write_bytes(data[: rng.integers(len(data))] if data else b""),
        "empty": lambda: file.write_bytes(b""),
        "delete": file.unlink,
        "lengthen": lambda: file.write_bytes(data + rng.bytes(int(rng.integers(1, 9)))),
        "edit": lambda: file.write_bytes(edited(file, data, across, rng)),
    }
    if fellow != file:
        ways["swap"] = lambda: (file.write_bytes(fellow.read_bytes()), fellow.write_bytes(data))
        ways["copy"] = lambda: file.write_bytes(fellow.read_bytes())
    if place.is_dir() and across.is_file():
        ways["across"] = lambda: file.write_bytes(across.read_bytes())
    if place.is_dir() and rng.random() < 0.1:
        return spoil_folder(place, twin, rng)
    way = list(ways)[rng.integers(len(ways))]
    ways[way]()
    named = file.relative_to(place) if place.is_dir() else file.name
    return f"{way} {named}"


def spoil_folder(place: Path, twin: Path, rng: np.random.Generator) -> str:
    """Exchange a whole folder with its neighbour, or with that of the twin."""
    folders = sorted(f for f in place.rglob("*") if f.is_dir())
    if not folders:
        return "nothing"
    folder = folders[rng.integers(len(folders))]
    across = twin / folder.relative_to(place)
    near = [f for f in folders if f.parent == folder.parent and f != folder]
    if near and (rng.random() < 0.5 or not across.is_dir()):
        fellow, aside = near[rng.integers(len(near))], place / "aside"
        folder.rename(aside), fellow.rename(folder), aside.rename(fellow)
        return f"swap folders {folder.relative_to(place)} {fellow.relative_to(place)}"
    if across.is_dir():
        shutil.rmtree(folder)
        shutil.copytree(across, folder)
        return f"across folder {folder.relative_to(place)}"
    return "nothing"


def flipped(data: bytes, rng: np.random.Generator) -> bytes:
    """A bit changed, or a byte, or a few."""
    out = bytearray(data)
    for _ in range(int(rng.choice([1, 1, 1, 4])) if data else 0):
        out[rng.integers(len(out))] ^= int(rng.choice([1 << rng.integers(8), 0xFF]))
    return bytes(out)


def edited(file: Path, data: bytes, across: Path, rng: np.random.Generator) -> bytes:
    """A value of a JSON record changed, also of one inside a zip file; or a member exchanged."""
    if file.suffix == ".json":
        try:
            record = json.loads(data)
        except ValueError:
            return data
        change(record, rng)
        return json.dumps(record).encode()
    if not zipfile.is_zipfile(io.BytesIO(data)):
        return flipped(data, rng)
    with zipfile.ZipFile(io.BytesIO(data)) as bundle:
        members = {name: bundle.read(name) for name in bundle.namelist()}
    names = list(members)
    name = names[rng.integers(len(names))]
    jsons = [each for each in names if each.endswith(".json")]
    if jsons and rng.random() < 0.5:
        record = json.loads(members[jsons[0]])
        change(record, rng)
        members[jsons[0]] = json.dumps(record).encode()
    elif across.is_file() and zipfile.is_zipfile(across) and rng.random() < 0.7:
        with zipfile.ZipFile(across) as bundle:
            members[name] = bundle.read(name) if name in bundle.namelist() else b""
    else:
        fellow = names[rng.integers(len(names))]
        members[name], members[fellow] = members[fellow], members[name]
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as bundle:
        for each, content in members.items():
            bundle.writestr(each, content)
    return out.getvalue()


def change(record: Any, rng: np.random.Generator) -> None:
    """Change one value of a JSON record, somewhere."""
    spots = [(record, key) for key in places(record)]
    while True:
        if not spots:
            return
        parent, key = spots[rng.integers(len(spots))]
        inner = [(parent[key], k) for k in places(parent[key])]
        if not inner or rng.random() < 0.15:
            break
        spots = inner
    value = parent[key]
    if rng.random() < 0.15:
        del parent[key]
    elif isinstance(value, bool):
        parent[key] = not value
    elif isinstance(value, int):
        parent[key] = int(rng.choice([value + 1, value - 1, -value, 2**40, 0]))
    elif isinstance(value, float):
        parent[key] = float(rng.choice([value * 1.1, value + 1e-9, -value, np.nan, 1e308]))
    elif isinstance(value, str):
        parent[key] = str(rng.choice([value[::-1], value + "x", value[:-1], ""]))
    else:
        parent[key] = [None, 0, [], {}, "x", 1.5][rng.integers(6)]


def places(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value)
    return list(range(len(value))) if isinstance(value, list) else []


# -- one case --------------------------------------------------------------------------------------
class Fuzz:
    """Cases by number: the same number is the same case."""

    def __init__(self, folder: Path, names: str = "") -> None:
        self.folder = folder
        self.targets = world(folder / "world", names)
        self.known: dict[str, str] = {}

    def run(self, number: int) -> tuple[str, str, str]:
        """The outcome of a case, what was spoilt, and what was said."""
        rng = np.random.default_rng([number, 0xF0])
        target = self.targets[number % len(self.targets)]
        if target.name not in self.known:
            self.known[target.name] = self._use(target)
        place = self._copy(target)
        told = f"{target.name}: {spoil(place, target.twin, rng)}"
        try:
            found = target.use(place)
        except InputError as error:
            said = str(error)
            one = "\n" not in said.strip() and len(said) < 1000
            return "found" if one else "TRACEBACK", told, said
        except Exception:
            return "TRACEBACK", told, traceback.format_exc()
        return "harmless" if found == self.known[target.name] else "SILENT", told, ""

    def _copy(self, target: Target) -> Path:
        place = self.folder / "case"
        if place.is_dir():
            shutil.rmtree(place)
        place.unlink(missing_ok=True)
        (shutil.copytree if target.place.is_dir() else shutil.copyfile)(target.place, place)
        return place

    def _use(self, target: Target) -> str:
        return target.use(self._copy(target))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--only", default="", help="targets with this in their name")
    parser.add_argument("--show", type=int, default=10, help="how many bad cases to tell of")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    began, table, shown = time.monotonic(), Counter(), 0
    with tempfile.TemporaryDirectory() as folder:
        fuzz = Fuzz(Path(folder), args.only)
        for number in range(args.first, args.first + args.cases):
            outcome, told, said = fuzz.run(number)
            table[told.split(":")[0], outcome] += 1
            if outcome.isupper() and shown < args.show:
                shown += 1
                print(f"case {number}: {outcome} {told}\n{said[-1500:]}")
        names = [target.name for target in fuzz.targets]
    for name in [*names, "all"]:
        counts = [sum(table[n, o] for n in names if name in (n, "all")) for o in OUTCOMES]
        told = ", ".join(f"{n} {o}" for n, o in zip(counts, OUTCOMES, strict=True))
        print(f"{name:15s} {told}")
    print(f"{args.cases} cases in {time.monotonic() - began:.0f} s")
    return int(any(outcome.isupper() for _, outcome in table))


if __name__ == "__main__":
    sys.exit(main())
