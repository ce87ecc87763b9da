"""The store is the same, byte for byte, however many threads parse, and wherever pieces are cut."""

import gzip
import random
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from ingest_cases import tune_ingest

from bigscreen.data.dataset import Dataset
from bigscreen.errors import InputError
from bigscreen.intake import needs
from bigscreen.intake.ingest import ingest
from bigscreen.intake.needs import COSTS
from bigscreen.intake.readers.formats import open_source

ROWS = 300


def records(seed: int) -> list[str]:
    """A CSV file: numbers, texts (some of several lines, with quotes in them), labels."""
    chance = random.Random(seed)
    lines = ["a,b,text,label"]
    for row in range(ROWS):
        plain = f"x{row % 5}"
        quoted = ['"q ""q"" q"', '"one\ntwo"', '"\n\nz"', '"a,\n1,2,x,3\n"']
        text = chance.choice([plain, *quoted])
        gap = chance.choice(["", "NA", f"{chance.random():.3f}"])
        lines.append(f"{chance.random():.6f},{gap},{text},{row % 2}")
    return lines


def svmlight(seed: int) -> str:
    """An svmlight text with comments, blank lines and indices that grow."""
    chance = random.Random(seed)
    lines = []
    for row in range(ROWS):
        found = sorted(chance.sample(range(1, 20 + row), 5))
        lines.append(f"{row % 2} " + " ".join(f"{i}:{chance.random():.4f}" for i in found))
        lines += chance.choice([[], ["# nothing"], [""]])
    return "\n".join(lines)


def files(path: Path) -> dict[str, bytes]:
    """All that a store holds."""
    found = (file for file in sorted(path.rglob("*")) if file.is_file())
    return {str(file.relative_to(path)): file.read_bytes() for file in found}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csv", "csv.gz", "svm", "parquet"])
@pytest.mark.parametrize("size", [40, 333, 4096])
def test_the_same_store(
    kind: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune_ingest(monkeypatch, piece_bytes=size)
    source = tmp_path / f"rows.{kind}"
    options: dict[str, object] = {"impute": "mean", "seed": 3}
    if kind == "svm":
        options = {"scale": "standard"}
        source.write_text(svmlight(size))
    elif kind == "parquet":
        rng = np.random.default_rng(size)
        texts = [None if row % 7 == 0 else f"kind {row % 11}" for row in range(ROWS)]
        columns = {"a": rng.random(ROWS), "text": texts, "label": np.arange(ROWS) % 2}
        pyarrow.parquet.write_table(pyarrow.table(columns), source, row_group_size=17)
    else:
        text = ("\n".join(records(size)) + "\n" * (size % 3)).encode()
        source.write_bytes(text if kind == "csv" else gzip.compress(text))
    whole = files(ingest(source, tmp_path / "rows.store", threads=1, **options).store.path)
    for threads in (2, 3):
        options["overwrite"] = True
        made = ingest(source, tmp_path / "rows.store", threads=threads, **options)
        assert files(made.store.path) == whole
    assert Dataset.open(tmp_path / "rows.store").n_rows == ROWS


@pytest.mark.slow
@pytest.mark.parametrize("size", [24, 100, 1 << 20])
def test_the_first_error_and_its_line(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, rows = tmp_path / "rows.csv", records(1)
    before = "\n".join(rows[:200]) + "\n"
    source.write_text(before + '.5,"two\nlines\n,",y\n' + "\n".join(rows[200:]))
    tune_ingest(monkeypatch, piece_bytes=size)
    said = set()
    for threads in (1, 2, 3):
        with pytest.raises(InputError) as caught:
            ingest(source, tmp_path / "rows.store", impute="mean", threads=threads)
        said.add(str(caught.value))
    (sentence,) = said
    line = before.count("\n") + 1
    assert f"{source}, line {line}: 3 fields where 4 are expected" in sentence


def test_skipped_rows_may_hold_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows outside the requested range are not parsed, once the types of columns are known."""
    lines = ["a,text,label", *(f"{row},{'uvw'[row % 3]},{row % 2}" for row in range(120_300))]
    lines[120_150] = "wrong,w,1"  # after the first MiB, by which types are judged
    source = tmp_path / "rows.csv"
    source.write_text("\n".join(lines))
    tune_ingest(monkeypatch, piece_bytes=1 << 16)
    stores = [
        ingest(
            source, tmp_path / f"{threads}.store", rows="120160:", shuffle=False, threads=threads
        )
        for threads in (1, 3)
    ]
    rows = [made.store.X(0, 140) for made in stores]
    assert np.array_equal(*rows)
    assert rows[0][0, 0] == 120_160


def test_blocks_and_progress_do_not_depend_on_who_parses(tmp_path: Path) -> None:
    """What a reader says of itself is of the rows that it has given, not of those read ahead."""
    source = tmp_path / "rows.csv"
    source.write_text("\n".join(f"{row}.5,kind {row // 40},{row % 2}" for row in range(ROWS)))

    def eager(function, items):  # type: ignore[no-untyped-def]
        return iter([function(item) for item in items])

    seen = []
    for each in (map, eager):
        reader, of_blocks = open_source(source, header=False, piece_bytes=256), []
        for block in reader.blocks(0, each):
            kinds = {c: list(texts) for c, texts in reader.categories.items()}
            of_blocks.append((block.first_row, block.where(0), reader.progress(), kinds))
        seen.append(of_blocks)
    assert len(seen[0]) > 5
    assert seen[0] == seen[1]


def test_threads_within_the_memory() -> None:
    assert needs.count_threads(COSTS.base_bytes, 8) == 1
    assert needs.count_threads(COSTS.base_bytes + 2 * COSTS.thread_bytes, 8) == 3
    assert needs.count_threads(1 << 40, 8) == 8
    assert needs.count_threads(1 << 40, None) >= 1


def test_a_damaged_gzip_file_is_named_however_many_threads(tmp_path: Path) -> None:
    packed = gzip.compress("\n".join(records(0) + records(1)[1:] * 50).encode())
    (tmp_path / "rows.csv.gz").write_bytes(packed[: len(packed) // 2])
    for threads in (1, 3):
        with pytest.raises(InputError, match="ends too early"):
            ingest(tmp_path / "rows.csv.gz", tmp_path / "rows.store", threads=threads)
