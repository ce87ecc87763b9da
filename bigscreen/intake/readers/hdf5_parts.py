"""Check that an HDF5 dataset is complete: written to its end, and all virtual parts present."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from bigscreen.errors import InputError, reason_of

_SAME_FILE = "."
"""Name by which a virtual dataset refers to its own file."""


def check_complete(path: Path, dataset: Any) -> None:
    """Refuse a dataset with values that were never written, or that lie outside its folder.

    HDF5 silently returns the fill value, 0, for values that were never written, and for rows of a
    virtual dataset whose part is missing.

    Parameters
    ----------
    path : Path
        Path of the file with the dataset. The parts of virtual datasets must lie in its folder,
        or in folders within it.
    dataset : h5py.Dataset

    Raises
    ------
    InputError
        If the dataset is in external storage, is incomplete, or lacks a part.
    """
    _check(path, path.resolve().parent, dataset, ())


def _check(path: Path, folder: Path, dataset: Any, above: tuple[tuple[Path, str], ...]) -> None:
    """Raise InputError if a dataset, or a part of a virtual dataset, is incomplete.

    Parameters
    ----------
    path : Path
        Path of the file with the dataset.
    folder : Path
        Folder in which all parts must lie.
    dataset : h5py.Dataset
    above : tuple of (Path, str)
        File and name of the virtual datasets of which this dataset is a part, to find circles.
    """
    place = f"{path}:{dataset.name.lstrip('/')}"
    if dataset.external:
        raise InputError(
            f"{place} has its values in another file, {dataset.external[0][0]}, as raw bytes that "
            "could be anything: write them into the HDF5 file itself (h5repack does)."
        )
    own = (path.resolve(), dataset.name)
    if own in above:
        raise InputError(f"{place} is a virtual dataset that is a part of itself.")
    if dataset.is_virtual:
        _check_parts(place, path, folder, dataset, (*above, own))
        return
    written, pieces, what = 1, 1, "piece"
    if dataset.chunks:
        sizes = zip(dataset.shape, dataset.chunks, strict=True)
        pieces = math.prod(-(-size // chunk) for size, chunk in sizes)
        written, what = dataset.id.get_num_chunks(), "chunk"
    elif dataset.size:
        written = int(dataset.id.get_storage_size() > 0)
    if written < pieces:
        raise InputError(
            f"{place} was not written to its end: it holds {written} of {pieces} {what}(s), and "
            f"every other value would be read as {dataset.fillvalue}; write all of it."
        )


def _check_parts(
    place: str, path: Path, folder: Path, dataset: Any, above: tuple[tuple[Path, str], ...]
) -> None:
    """Raise InputError if a part of a virtual dataset is missing, or a value has no part.

    Parameters
    ----------
    place : str
        Name of the dataset, for errors.
    path : Path
        Path of the file with the dataset.
    folder : Path
        Folder in which all parts must lie.
    dataset : h5py.Dataset
    above : tuple of (Path, str)
        File and name of this virtual dataset, and of those of which it is a part.
    """
    import h5py

    covered = h5py.h5s.create_simple(dataset.shape)
    covered.select_none()
    for part in dataset.virtual_sources():
        _add_covered(covered, part.vspace)
        name = f"{place} is a virtual dataset, and its part {part.file_name}:{part.dset_name}"
        found = path if part.file_name == _SAME_FILE else _find_part(path.parent, part.file_name)
        if found is None:
            raise InputError(f"{name} is missing, so its rows would be read as 0: fetch it, too.")
        try:
            file = h5py.File(found, "r")
        except OSError as error:
            raise InputError(f"{name} cannot be read ({reason_of(error)}).") from None
        with file:
            source = file.get(part.dset_name)
            if not isinstance(source, h5py.Dataset):
                raise InputError(f"{name} is missing: {found} has no such dataset.")
            # (A dataset may be a link to one in a further file.)
            if not Path(source.file.filename).resolve().is_relative_to(folder):
                raise InputError(
                    f"{name} lies outside the folder {folder}: put it there, or copy all rows into "
                    "one file (h5repack does)."
                )
            if not _holds_part(source, part):
                raise InputError(
                    f"{name} has the shape {source.shape}, which is too small: the rows that it "
                    "lacks would be read as 0."
                )
            _check(found, folder, source, above)
    mapped = covered.get_select_npoints()
    if mapped != dataset.size:
        raise InputError(
            f"{place} is a virtual dataset whose parts hold {mapped} of its {dataset.size} values: "
            "every other value would be read as 0; write all of them into one dataset."
        )


def _add_covered(covered: Any, space: Any) -> None:
    """Add the values of one part to the covered values (overlapping parts count once).

    Both arguments are h5py dataspaces of the shape of the virtual dataset: `covered` is updated,
    and `space` selects the values of the part.
    """
    import h5py

    if space.get_select_type() == h5py.h5s.SEL_ALL:
        covered.select_all()
    elif space.is_regular_hyperslab():
        start, stride, count, block = space.get_regular_hyperslab()
        covered.select_hyperslab(start, count, stride, block, op=h5py.h5s.SELECT_OR)


def _holds_part(source: Any, part: Any) -> bool:
    """Whether the dataset `source` has all values that a virtual dataset takes from it.

    `part` is the entry of the virtual dataset, as `h5py.Dataset.virtual_sources` returns it.
    """
    import h5py

    space = part.src_space
    if space.get_select_type() == h5py.h5s.SEL_ALL:
        return bool(source.size == part.vspace.get_select_npoints())
    last = space.get_select_bounds()[1]
    return len(last) == source.ndim and all(map(int.__lt__, last, source.shape))


def _find_part(folder: Path, name: str) -> Path | None:
    """Return the file that HDF5 opens for the `name` of a virtual part; None if there is none.

    It is searched for in `folder`, which has the virtual dataset, and then in the current folder.
    """
    places = [folder / name, folder / os.path.basename(name), Path(name)]
    return next((place for place in places if place.is_file()), None)
