"""HDF5 datasets whose values lie elsewhere, or nowhere: read right, or refused in one sentence."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from bigscreen.errors import InputError
from bigscreen.intake.ingest import ingest

X = np.random.default_rng(0).normal(size=(60, 3))
Y = np.arange(60) % 2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a folder with two parts of X, also as raw bytes, and another folder with all of X."""
    place, beside = tmp_path / "given", tmp_path / "beside"
    place.mkdir()
    beside.mkdir()
    for name, rows in (("one.h5", X[:40]), ("two.h5", X[40:])):
        with h5py.File(place / name, "w") as file:
            file["X"] = rows
    with h5py.File(beside / "all.h5", "w") as file:
        file["X"] = X
    X.tofile(place / "raw.bin")
    return place


def virtual(path: Path, *parts: tuple[slice, h5py.VirtualSource]) -> Path:
    layout = h5py.VirtualLayout(X.shape, "f8")
    for rows, source in parts:
        layout[rows] = source
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("X", layout)
        file["y"] = Y
    return path


ONE = h5py.VirtualSource("one.h5", "X", (40, 3))
TWO = h5py.VirtualSource("two.h5", "X", (20, 3))


@pytest.mark.parametrize(
    "parts",
    [
        [(np.s_[:40], ONE), (np.s_[40:], TWO)],
        [(np.s_[:10], ONE[:10]), (np.s_[40:], TWO), (np.s_[10:40], ONE[10:])],
        [(np.s_[:40], ONE), (np.s_[30:40], ONE[30:]), (np.s_[40:], TWO)],
    ],
)
def test_virtual_datasets_give_the_rows_of_their_parts(folder: Path, parts: list) -> None:
    store = ingest(virtual(folder / "v.h5", *parts), folder / "v.store", shuffle=False).store
    np.testing.assert_array_equal(store.X(0, 60), X.astype(np.float32))


def test_a_part_in_the_same_file(folder: Path) -> None:
    path = virtual(folder / "v.h5", (np.s_[:], h5py.VirtualSource(".", "kept", X.shape)))
    with h5py.File(path, "a") as file:
        file["kept"] = X
    store = ingest(path, folder / "v.store", h5_x="X", shuffle=False).store
    np.testing.assert_array_equal(store.X(0, 60), X.astype(np.float32))


def missing_file(folder: Path) -> Path:
    path = virtual(folder / "v.h5", (np.s_[:40], ONE), (np.s_[40:], TWO))
    (folder / "two.h5").unlink()
    return path


def missing_dataset(folder: Path) -> Path:
    return virtual(
        folder / "v.h5", (np.s_[:40], ONE), (np.s_[40:], h5py.VirtualSource("two.h5", "Z", (20, 3)))
    )


def damaged_part(folder: Path) -> Path:
    path = virtual(folder / "v.h5", (np.s_[:40], ONE), (np.s_[40:], TWO))
    (folder / "two.h5").write_bytes(b"no HDF5 at all")
    return path


def short_part(folder: Path) -> Path:
    with h5py.File(folder / "two.h5", "w") as file:
        file["X"] = X[40:55]
    return virtual(folder / "v.h5", (np.s_[:40], ONE), (np.s_[40:], TWO))


def rows_of_no_part(folder: Path) -> Path:
    return virtual(folder / "v.h5", (np.s_[:40], ONE), (np.s_[45:], TWO[5:]))


def overlapping_parts(folder: Path) -> Path:
    return virtual(folder / "v.h5", (np.s_[:40], ONE), (np.s_[30:50], TWO))


def part_outside(folder: Path) -> Path:
    outside = h5py.VirtualSource(str(folder.parent / "beside/all.h5"), "X", X.shape)
    return virtual(folder / "v.h5", (np.s_[:], outside))


def part_linked_outside(folder: Path) -> Path:
    with h5py.File(folder / "two.h5", "w") as file:
        file["X"] = h5py.ExternalLink(str(folder.parent / "beside/all.h5"), "X")
    return virtual(folder / "v.h5", (np.s_[:], h5py.VirtualSource("two.h5", "X", X.shape)))


def part_of_itself(folder: Path) -> Path:
    return virtual(folder / "v.h5", (np.s_[:], h5py.VirtualSource(".", "X", X.shape)))


def raw(path: Path, name: str) -> Path:
    """A dataset whose values are the bytes of a file."""
    with h5py.File(path, "w") as file:
        file.create_dataset("X", X.shape, "f8", external=[(name, 0, X.nbytes)])
        file["y"] = Y
    return path


def external(folder: Path) -> Path:
    return raw(folder / "v.h5", str(folder / "raw.bin"))


def part_with_external(folder: Path) -> Path:
    raw(folder / "two.h5", "/etc/passwd")
    return virtual(folder / "v.h5", (np.s_[:], h5py.VirtualSource("two.h5", "X", X.shape)))


def chunks_never_written(folder: Path) -> Path:
    with h5py.File(folder / "v.h5", "w") as file:
        file.create_dataset("X", X.shape, "f8", chunks=(10, 3))[:50] = X[:50]
        file["y"] = Y
    return folder / "v.h5"


def labels_never_written(folder: Path) -> Path:
    with h5py.File(folder / "v.h5", "w") as file:
        file["X"] = X
        file.create_dataset("y", len(X), "i8")
    return folder / "v.h5"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (missing_file, "its part two.h5:X is missing, so its rows would be read as 0"),
        (missing_dataset, "its part two.h5:Z is missing: .*two.h5 has no such dataset"),
        (damaged_part, "its part two.h5:X cannot be read"),
        (short_part, r"its part two.h5:X has the shape \(15, 3\), which is too small"),
        (rows_of_no_part, "whose parts hold 165 of its 180 values"),
        (overlapping_parts, "whose parts hold 150 of its 180 values"),
        (part_outside, "its part .*all.h5:X lies outside the folder .*given: put it there"),
        (part_linked_outside, "its part two.h5:X lies outside the folder"),
        (part_of_itself, "v.h5:X is a virtual dataset that is a part of itself"),
        (external, "v.h5:X has its values in another file, .*raw.bin"),
        (part_with_external, "two.h5:X has its values in another file, /etc/passwd"),
        (chunks_never_written, r"v.h5:X was not written to its end: it holds 5 of 6 chunk\(s\)"),
        (labels_never_written, r"v.h5:y was not written to its end: it holds 0 of 1 piece\(s\)"),
    ],
)
def test_what_would_be_zeros_or_another_file(folder: Path, given, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        ingest(given(folder), folder / "v.store")
    assert not list(folder.glob("v.store*"))
