"""Open a dataset on disk, check it and read its rows."""

import os
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bigscreen.data.folder import held_out_path, unfinished_path
from bigscreen.data.layout import SUMMARY, Features, Layout, chunk_digest, csr, csr_slice, csr_stack
from bigscreen.data.limits import read_json
from bigscreen.data.preparation import Preparation
from bigscreen.data.rows import Rows, describe_ranges
from bigscreen.data.zarr_arrays import (
    Checksums,
    LastChunk,
    StoredArray,
    csr_arrays,
    csr_folder,
    damaged_chunk,
    missing_chunk,
    row_arrays,
)
from bigscreen.data.zarr_stores import as_place
from bigscreen.errors import InputError, reason_of
from bigscreen.files.html import html_card
from bigscreen.files.remote import Place, RemotePath
from bigscreen.files.sealed import Damaged, check_seal

FORMAT = "bigscreen dataset"
"""Value of the manifest's field "format", which identifies a dataset."""
SCHEMA = 4
"""Version of the format of a dataset's manifest that is written; this and all earlier versions are
read. Version 1 had no regression targets; 1 and 2 had no checksums; 1 to 3 had one target, and no
indicators of missing numbers."""

CHECKSUM_SCHEMA = 3
"""First version of a dataset's manifest that has a checksum of every chunk and one of itself."""

MANIFEST = "manifest.json"
"""File of a dataset's folder with its layout, preparation, fingerprint and checksums."""

T = TypeVar("T")
"""Result of the function that `Dataset._read_checked` calls."""


class Dataset(Rows):
    """Rows that `DatasetWriter` has stored on disk; `Dataset.open` opens them.

    Several threads may read at once. A pickle holds only the place and the fingerprint.

    Attributes
    ----------
    manifest : dict
        The dataset's own record: layout, fingerprint, chunk digests, preparation, "extra".
    """

    path: Place

    def __init__(self, path: str | os.PathLike[str] | RemotePath | Any) -> None:
        """Read and check the manifest of the dataset in `path`; no array is read."""
        self.path = as_place(path).absolute()
        self.manifest = read_manifest(self.path)
        try:
            self.layout = Layout.from_dict(self.manifest["layout"])
            self.preparation = Preparation.from_dict(self.manifest["preparation"])
            self._chunks: list[dict[str, Any]] = self.manifest["chunks"]
            digests = [record["digest"] for record in self._chunks]
            summary = {name: self.manifest[name] for name in SUMMARY if name in self.manifest}
            self._label_counts = np.array(self.manifest["label_counts"], dtype=np.int64)
            self._targets = dict(self.manifest["targets"]) if self.regression else {}
            self._max_sqnorm = float(self.manifest["max_sqnorm"])
            self._compressed = bool(self.manifest["compressed"])
            self._fingerprint = str(self.manifest["fingerprint"])
            found = self.layout.fingerprint(
                digests, self.preparation.fingerprint, summary if self.has_checksums else None
            )
            if len(digests) != self.n_chunks or found != self._fingerprint:
                raise bad_manifest(self.path)
            self._arrays = row_arrays(self.path, self.layout, self._compressed, self._checksums())
            self._last = LastChunk()
            self._whole: set[int] = set()
            """Numbers of the chunks that were read in full, and so verified by their checksums."""
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise bad_manifest(self.path) from error

    @classmethod
    def open(
        cls, path: str | os.PathLike[str] | RemotePath | Any, verify: bool = True
    ) -> "Dataset":
        """Open a stored dataset.

        Parameters
        ----------
        path : path, URL, zarr.Group or store of zarr
            The folder, a URL such as s3://bucket/train.store, or what zarr has opened there: any
            store of zarr that can hold the dataset's files, such as a ``ZipStore``.
        verify : bool
            Also check that every chunk file exists and has the right size. The content of a chunk
            is compared with its checksum whenever it is read; the method `verify` reads them all.

        Raises
        ------
        InputError
            If there is no dataset, or it is unfinished, incomplete or newer than this program.
        """
        out = cls(path)
        if verify:
            out._check_files()
        return out

    def __reduce__(self) -> tuple[Any, tuple[Place, str]]:
        """Pickle the place and the fingerprint only; unpickling opens the dataset again."""
        return reopen, (self.path, self.fingerprint)

    def __repr__(self) -> str:
        kind = "sparse" if self.is_sparse else "dense"
        kind += " regression" if self.regression else ""
        return f"<Dataset {self.path}: {self.n_rows} {kind} rows, {self.n_features} features>"

    def _repr_html_(self) -> str:
        """Render the size, labels and scaling of the rows for a notebook."""
        layout = "sparse" if self.is_sparse else "dense"
        facts = {"features": f"{self.n_features:,}, {layout}"}
        if self.regression:
            facts |= describe_ranges(self.targets, self.target_names)
        else:
            counts = zip(self.labels, self.label_counts.tolist(), strict=True)
            shown = [f"{label} ({rows:,})" for label, rows in counts]
            facts["labels"] = ", ".join(shown[:12]) + ", ..." * (len(shown) > 12)
        facts |= {"scaling": self.preparation.scaling, "fingerprint": f"{self.fingerprint[:16]}..."}
        return html_card(f"bigscreen store {self.path}", f"{self.n_rows:,} rows", facts, "#1565c0")

    @property
    def fingerprint(self) -> str:
        """Hash of the content, the layout and the preparation, from the manifest."""
        return self._fingerprint

    @property
    def stored_bytes(self) -> int:
        """Total size of the dataset's files in bytes."""
        if isinstance(self.path, RemotePath):
            return sum(self.path.sizes().values())
        return sum(file.stat().st_size for file in self.path.rglob("*") if file.is_file())

    @property
    def has_checksums(self) -> bool:
        """Whether the manifest has the checksum of every chunk.

        Reading a chunk then also detects a chunk file that was exchanged for another valid one.
        """
        return bool(self.manifest["schema"] >= CHECKSUM_SCHEMA)

    @property
    def profile(self) -> dict[str, Any] | None:
        """Statistics of the source's columns, as ingest found them; None in older stores."""
        return self.manifest.get("profile")

    def held_out(self) -> "Dataset | None":
        """Open the dataset of rows that ingest held out of this one; None if it is not next to it.

        It has the name that `held_out_path` gives it, and comes of the same ingest.
        """
        extra = self.manifest["extra"]
        if not extra.get("holdout") or isinstance(self.path, RemotePath):
            return None
        place = held_out_path(self.path)
        if not (place / MANIFEST).is_file():
            return None
        held, sizes = Dataset.open(place), {"bytes_planned": None}
        same = held.manifest["extra"] | sizes == extra | sizes
        return held if same and held.preparation == self.preparation else None

    def check_unchanged(self) -> None:
        """Raise InputError if the path now holds a dataset with another fingerprint."""
        reopen(self.path, self.fingerprint)

    @property
    def max_sqnorm(self) -> float:
        """Largest squared Euclidean norm of a row's features, from the manifest."""
        return self._max_sqnorm

    @property
    def nnz(self) -> int:
        """Number of stored values of X: all of a dense matrix, the nonzeros of a sparse one."""
        if not self.is_sparse:
            return self.n_rows * self.n_features
        return sum(record["nnz"] for record in self._chunks)

    @property
    def label_counts(self) -> NDArray[np.int64]:
        """Number of rows with each label, int64 (n_labels,), from the manifest."""
        return self._label_counts

    @property
    def targets(self) -> dict[str, Any]:
        """Number and range of the regression targets, as `Rows.targets`, from the manifest."""
        return dict(self._targets)

    def X(self, start: int, stop: int) -> Features:
        """Read the features of rows start..stop-1: a dense array or a csr_array.

        Values are float32, or float64 if the dataset has float64 features.
        """
        if not self.is_sparse:
            rows = self._read("X", start, stop)
            self._whole.update(range(start // self.chunk_rows, -(-stop // self.chunk_rows)))
            return rows
        self.layout.check_range(start, stop)
        parts = []
        for k in range(start // self.chunk_rows, -(-stop // self.chunk_rows)):
            first, last = self.chunk(k)
            part = self._csr_chunk(k)
            if start > first or stop < last:
                part = csr_slice(part, max(start - first, 0), min(stop, last) - first)
            parts.append(part)
        return csr_stack(parts, self.n_features, self.layout.dtype)

    def y(self, start: int, stop: int) -> NDArray[Any]:
        """Read the label codes (int32) or targets (float64) of rows start..stop-1: see `Rows`."""
        return self._read("y", start, stop)

    def weights(self, start: int, stop: int) -> NDArray[np.float64]:
        """Read the weights of rows start..stop-1; ones if none are stored."""
        if self.has_weights:
            return self._read("weight", start, stop)
        self.layout.check_range(start, stop)
        return np.ones(stop - start)

    def sqnorms(self, start: int, stop: int) -> NDArray[np.float64]:
        """Read the squared Euclidean norms of rows start..stop-1, float64."""
        return self._read("sqnorm", start, stop)

    def row_ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Read the source row numbers of rows start..stop-1, int64."""
        return self._read("row_id", start, stop)

    def verify(self) -> None:
        """Read all rows and compare their hashes with the manifest's.

        Raises
        ------
        InputError
            If a chunk is missing or its content differs; the message names the first such chunk.
        """
        self._check_files()
        for k, record in enumerate(self._chunks):
            start, stop = self.chunk(k)
            X, y, ids = self.X(start, stop), self.y(start, stop), self.row_ids(start, stop)
            weights = self.weights(start, stop) if self.has_weights else None
            norms = self.sqnorms(start, stop)
            known = norms if self.has_checksums else None
            if chunk_digest(X, y, weights, ids, known) != record["digest"]:
                raise InputError(
                    f"rows {start} to {stop - 1} of the dataset {self.path} are not those that its "
                    "fingerprint stands for; make the dataset again from its source"
                )

    def _read(self, name: str, start: int, stop: int) -> NDArray[Any]:
        """Read rows start..stop-1 of the array ``name``: "X" (dense), "y", "weight", ..."""
        self.layout.check_range(start, stop)
        return self._read_checked(self._arrays[name].read, start, stop)

    def _read_from_chunk(self, k: int, places: NDArray[np.int64]) -> Any:
        """Read dense rows of chunk `k`, by their ascending positions ``places`` in the chunk."""
        array = self._arrays["X"]
        # A checksum covers a whole chunk, so single rows are read only from a chunk that was read
        # in full, and thereby verified, before.
        alone = k in self._whole and not self._last.has(k)
        if alone and array.should_read_singly(len(places)):
            return self._read_checked(array.read_rows, k, places)
        return super()._read_from_chunk(k, places)

    def _read_whole_chunk(self, k: int) -> Any:
        """Return all rows of chunk `k`, cached per thread; the caller must not write to them."""
        if self.is_sparse:
            return self._last.chunk(k, lambda _: self._csr_chunk(k))
        array = self._arrays["X"]
        rows = self._read_checked(self._last.chunk, k, lambda room: array.read_chunk(k, room))
        self._whole.add(k)
        return rows

    def _read_checked(self, read: Callable[..., T], *how: Any) -> T:
        """Return ``read(*how)``; if it fails, find out whether the store was replaced meanwhile.

        Raises
        ------
        InputError
            A replaced store is reported as such; otherwise the error of ``read``.
        """
        try:
            return read(*how)
        except InputError as error:
            # If the store was replaced during the read, report the replacement instead.
            self.check_unchanged()
            if "features_of" in self.manifest["extra"]:
                raise InputError(
                    f"{error}; these are features that a fit has stored: remove {self.path}, and "
                    "they are computed again"
                ) from error
            raise

    def _checksums(self) -> list[Checksums] | None:
        """Return each chunk's checksums from the manifest; None in stores without them."""
        return [record["crc32c"] for record in self._chunks] if self.has_checksums else None

    def _csr_files(self, k: int) -> list[StoredArray]:
        """Return the stored arrays (data, indices, indptr) of chunk `k`, if X is sparse."""
        start, stop = self.chunk(k)
        folder, record = csr_folder(self.path, k), self._chunks[k]
        known = record["crc32c"] if self.has_checksums else None
        nnz, wide = record["nnz"], self.layout.wide
        return csr_arrays(folder, stop - start, nnz, self._compressed, known, wide)

    def _csr_chunk(self, k: int) -> Features:
        """Read the rows of chunk `k` of a sparse dataset."""
        parts = [self._read_checked(array.read, 0, array.shape[0]) for array in self._csr_files(k)]
        data, indices, indptr = parts
        return csr(data, indices, indptr, self.n_features)

    def _check_files(self) -> None:
        """Raise InputError unless every file of every array exists and has the right size."""
        arrays = list(self._arrays.values())
        if self.is_sparse:
            arrays += [array for k in range(self.n_chunks) for array in self._csr_files(k)]
        size_of = file_size_lookup(self.path)
        for array in arrays:
            if size_of(array.folder / "zarr.json") is None:
                raise missing_chunk(array.folder / "zarr.json")
            for file, size in array.files():
                found = size_of(file)
                if found is None:
                    raise missing_chunk(file)
                if found == 0 or size not in (None, found):
                    raise damaged_chunk(file)


def file_size_lookup(folder: Place) -> Callable[[Place], int | None]:
    """Return a function from a file below `folder` to its size in bytes, or None if it is missing.

    The file sizes of a remote folder are listed once, in one request.
    """
    if isinstance(folder, RemotePath):
        found, start = folder.sizes(), len(str(folder).rstrip("/")) + 1
        return lambda file: found.get(str(file)[start:])

    def size_of(file: Place) -> int | None:
        """Return the size of a local file in bytes; None if it is missing."""
        assert not isinstance(file, RemotePath)
        try:
            return os.stat(file).st_size
        except FileNotFoundError:
            return None

    return size_of


def reopen(path: Place, fingerprint: str) -> Dataset:
    """Open a dataset that a pickle names; InputError unless it still has ``fingerprint``."""
    out = Dataset(path)
    if out.fingerprint != fingerprint:
        raise InputError(f"the dataset {path} was replaced by another while in use; start again")
    return out


def read_manifest(path: Place) -> dict[str, Any]:
    """Read and check the manifest of the dataset in `path`.

    Raises
    ------
    InputError
        If there is no readable, undamaged manifest; the message says why.
    """
    wip = path if path.suffix == ".wip" else unfinished_path(path)
    try:
        there = (path / MANIFEST).exists() or path.exists()
    except OSError as error:
        raise InputError(f"{path} cannot be reached: {reason_of(error)}") from error
    if not (path / MANIFEST).exists() and wip.is_dir():
        raise InputError(
            f"the dataset {wip.with_suffix('')} is unfinished: {wip} is what an interrupted run "
            "left; run the same command again to go on, or delete that folder to start over"
        )
    if not there:
        raise InputError(f"there is no dataset {path}; check the path")
    try:
        manifest = read_json(path / MANIFEST)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(
            f"{path} is not a bigscreen dataset (it has no {MANIFEST}); give the folder that "
            "ingesting a file made, or arrays of zarr as rows and labels"
        ) from error
    except OSError as error:
        raise InputError(f"{path / MANIFEST} cannot be read: {reason_of(error)}") from error
    except ValueError as error:
        raise bad_manifest(path) from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise InputError(f"{path / MANIFEST} does not describe a bigscreen dataset")
    schema = manifest.get("schema")
    if not isinstance(schema, int) or schema < 1:
        raise bad_manifest(path)
    if schema <= SCHEMA:
        try:
            check_seal(manifest, needed=schema >= CHECKSUM_SCHEMA)
        except Damaged as error:
            raise bad_manifest(path) from error
    if schema > SCHEMA:
        raise InputError(
            f"the dataset {path} has schema {schema}, newer than the {SCHEMA} that this version of "
            "bigscreen reads; update bigscreen"
        )
    return manifest


def bad_manifest(path: Place) -> InputError:
    """Return the error for a manifest that is damaged."""
    return InputError(
        f"{path / MANIFEST} is damaged; restore it from a copy or make the dataset again from its "
        "source"
    )
