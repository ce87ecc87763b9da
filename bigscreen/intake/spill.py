"""Spill of an ingest: rows are appended to buckets on disk, and read back sorted."""

from __future__ import annotations

import fcntl
import json
import os
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from bigscreen.data.layout import Features, csr, csr_stack, take_rows
from bigscreen.data.order import Order
from bigscreen.errors import InputError
from bigscreen.files.sealed import CHECKSUM, Damaged, seal, unseal
from bigscreen.intake.tuning import TUNING, IngestTuning


def record_type(n_targets: int = 1) -> np.dtype[Any]:
    """Return the type of a row in the record file of a bucket.

    (An ingest distributes all rows among buckets.) Its fields are the source row number, nonzeros
    (0 if dense), weight, and target or raw label code (labels are counted in order of first
    appearance); with several targets, an array of them.
    """
    y = ("y", "<f8") if n_targets == 1 else ("y", "<f8", (n_targets,))
    return np.dtype([("row", "<i8"), ("nnz", "<i8"), ("weight", "<f8"), y])


ENTRY = {kind: np.dtype([("index", "<i4"), ("value", kind)]) for kind in ("<f4", "<f8")}
"""An entry of a sparse row in the value file of a bucket: column index and value, by value type."""


def choose_bucket_bits(expected_bytes: int, tuning: IngestTuning = TUNING) -> int:
    """Return b so that 2**b buckets of `expected_bytes` have about `tuning.bucket_bytes` each.

    A bucket is a file that gets the rows of one range of sort keys. The estimate `expected_bytes`
    may be far off, because a compressed source does not tell its size: small buckets cost a few
    file handles, and large buckets are read back in parts.
    """
    buckets = max(expected_bytes // tuning.bucket_bytes, 0)
    return min(buckets.bit_length(), tuning.max_bucket_bits)


@dataclass
class SpilledRows:
    """Rows as they were read from the sources, before they are transformed.

    Attributes
    ----------
    record : structured array of `record_type`, (rows,)
        Source row number, nonzeros (0 if dense), weight, and raw label code or target of each row.
    X : float32 or float64 array (rows, d) or csr_array
        Values of the source columns.
    """

    record: NDArray[np.void]
    X: Features

    def __len__(self) -> int:
        return len(self.record)

    def take(self, rows: NDArray[np.int64]) -> SpilledRows:
        """Return the given rows, in the given order."""
        return SpilledRows(self.record.take(rows), take_rows(self.X, rows))


@dataclass(frozen=True)
class Part:
    """A range of sort keys within a bucket (a file of rows), from `low` to `high`, both inclusive.

    Its rows are sorted in memory at once. A row's sort key is a hash of its number, or its number
    if rows are not shuffled: see `Order`.
    """

    bucket: int
    low: int
    high: int


class Spill:
    """Buckets of rows on disk: for each a file of records and a file of values, which only grow.

    Parameters
    ----------
    folder : Path
        Created if it does not exist.
    order : Order
        Gives the sort key and the bucket of each row.
    width : int or None
        Columns of dense rows; None for CSR.
    lengths : dict of int to [int, int, int, int], optional
        For each bucket, the valid bytes of its two files and their crc32c; files are cut to these
        lengths. Versions before 0.1 wrote no checksums.
    wide : bool
        Whether values are float64 instead of float32.
    n_targets : int
        Number of targets of each row; 1 if rows have labels.
    tuning : IngestTuning

    Attributes
    ----------
    lengths : dict of int to list of int
        As the parameter, after the last `flush`.
    pending : int
        Bytes of rows that were added since the last `flush`.
    """

    def __init__(
        self,
        folder: Path,
        order: Order,
        width: int | None,
        lengths: dict[int, list[int]] | None = None,
        wide: bool = False,
        n_targets: int = 1,
        tuning: IngestTuning = TUNING,
    ) -> None:
        """Open the bucket files of a folder, cut to the given lengths; other files are deleted.

        `order` gives the bucket of each row; `width` is the number of columns (None: rows are CSR),
        and `wide` says that values are float64; rows have `n_targets` targets. ``_checked`` holds
        the buckets whose checksums were compared, and ``_waiting`` the rows of each bucket that are
        not on disk yet.
        """
        self.tuning = tuning
        self.real = "<f8" if wide else "<f4"
        self.record_type = record_type(n_targets)
        self.folder, self.order, self.width = folder, order, width
        self.lengths = dict(lengths or {})
        self.pending = 0
        self._checked: set[int] = set()
        self._waiting: dict[int, list[tuple[NDArray[Any], NDArray[Any]]]] = defaultdict(list)
        folder.mkdir(parents=True, exist_ok=True)
        self._truncate_files()

    def append(self, record: NDArray[np.void], X: Features) -> None:
        """Add rows to their buckets in memory; `flush` writes them to disk.

        Parameters
        ----------
        record : structured array of `record_type`, (rows,)
        X : dense or CSR array (rows, d)
            Features; copied.
        """
        buckets = self.order.buckets(self.order.keys(record["row"]))
        present, counts = np.unique(buckets, return_counts=True)
        # Copied even if all rows go into one bucket: the caller may overwrite X.
        by_bucket = np.argsort(_as_narrow_integers(buckets), kind="stable")
        record, X = record.take(by_bucket), take_rows(X, by_bucket)
        stop = 0
        for bucket, count in zip(present.tolist(), counts.tolist(), strict=True):
            start, stop = stop, stop + count
            values = self._values(X, start, stop)
            self._waiting[bucket].append((record[start:stop], values))
            self.pending += record[start:stop].nbytes + values.nbytes

    def flush(self) -> dict[int, list[int]]:
        """Write the added rows durably; return the new lengths and checksums of their buckets."""
        with ThreadPoolExecutor(self.tuning.flush_threads) as pool:
            grown = dict(pool.map(self._flush_bucket, self._waiting.items()))
        self.lengths.update(grown)
        self._waiting.clear()
        self.pending = 0
        return grown

    def _flush_bucket(
        self, waiting: tuple[int, list[tuple[NDArray[Any], NDArray[Any]]]]
    ) -> tuple[int, list[int]]:
        """Append waiting rows to the files of a bucket.

        Parameters
        ----------
        waiting : (int, list of (array, array))
            Number of the bucket; records and values of the rows to append.

        Returns
        -------
        int
            Number of the bucket.
        list of int
            New lengths and checksums of its two files.
        """
        bucket, pieces = waiting
        known = self.lengths.get(bucket, [0, 0, 0, 0])
        lengths, crcs = known[:2], known[2:]
        for i, file in enumerate(self.files(bucket)):
            own = [piece[i] for piece in pieces]
            lengths[i] = _append_durably(file, lengths[i], own)
            if crcs:
                crcs[i] = _extend_checksum(crcs[i], own)
        return bucket, [*lengths, *crcs]

    def files(self, bucket: int) -> tuple[Path, Path]:
        """Return the paths of the record file and the value file of a bucket."""
        return self.folder / f"{bucket:06d}.rows", self.folder / f"{bucket:06d}.values"

    def parts(self) -> list[Part]:
        """Return ascending ranges of sort keys; the rows of each take about `tuning.part_bytes`."""
        parts = []
        for bucket in sorted(self.lengths):
            pieces = -(-sum(self.lengths[bucket][:2]) // self.tuning.part_bytes)
            parts += [Part(bucket, *bounds) for bounds in self.order.split(bucket, pieces)]
        return parts

    def records(self, bucket: int) -> Iterator[NDArray[np.void]]:
        """Yield the records of a bucket in source order, `tuning.slab_bytes` at a time.

        A record has row number, nonzeros, weight and label of a row; see `record_type`.
        """
        self._verify_bucket(bucket)
        kind = self.record_type
        count = self.lengths[bucket][0] // kind.itemsize
        with open(self.files(bucket)[0], "rb") as file:
            per_slab = self.tuning.slab_bytes // kind.itemsize
            for at in range(0, count, per_slab):
                yield np.fromfile(file, kind, min(per_slab, count - at))

    def numbers(self) -> Iterator[NDArray[np.int64]]:
        """Yield the source row numbers of all rows in the buckets, in int64 arrays."""
        for bucket in sorted(self.lengths):
            for record in self.records(bucket):
                yield record["row"]

    def read(self, part: Part, n_features: int, index_base: int = 0) -> SpilledRows:
        """Return the rows of a part, sorted by their keys, with `n_features` columns.

        Parameters
        ----------
        part : Part
        n_features : int
            Columns of the result; larger than every column index that occurs.
        index_base : int
            Subtracted from the column indices of CSR rows.
        """
        chosen: list[SpilledRows] = []
        keys: list[NDArray[np.uint64]] = []
        for rows in self._read_slabs(part.bucket, n_features, index_base):
            of_rows = self.order.keys(rows.record["row"])
            inside = (of_rows >= np.uint64(part.low)) & (of_rows <= np.uint64(part.high))
            if not inside.all():
                kept = np.flatnonzero(inside)
                rows, of_rows = rows.take(kept), of_rows[kept]
            chosen.append(rows)
            keys.append(of_rows)
        record = np.concatenate([rows.record for rows in chosen])
        X = stack_rows([rows.X for rows in chosen])
        chosen.clear()
        return SpilledRows(record, X).take(np.argsort(np.concatenate(keys)))

    def _read_slabs(self, bucket: int, n_features: int, index_base: int) -> Iterator[SpilledRows]:
        """Yield the rows of a bucket in source order, in slabs of about `tuning.slab_bytes`.

        Rows have `n_features` columns; `index_base` is subtracted from the indices of CSR rows.
        """
        self._verify_bucket(bucket)
        of_records, of_values = self.lengths[bucket][:2]
        count = of_records // self.record_type.itemsize
        per_slab = max(self.tuning.slab_bytes * count // max(of_records + of_values, 1), 1)
        rows_file, values_file = self.files(bucket)
        with open(rows_file, "rb") as records, open(values_file, "rb") as values:
            for at in range(0, count, per_slab):
                record = np.fromfile(records, self.record_type, min(per_slab, count - at))
                X: Features
                if self.width is not None:
                    X = np.fromfile(values, self.real, len(record) * self.width)
                    X = X.reshape(len(record), self.width)
                else:
                    indptr = np.concatenate([[0], np.cumsum(record["nnz"])])
                    entries = np.fromfile(values, ENTRY[self.real], int(indptr[-1]))
                    indices = entries["index"] - np.int32(index_base)
                    X = csr(entries["value"].copy(), indices, indptr, n_features)
                yield SpilledRows(record, X)

    def _verify_bucket(self, bucket: int) -> None:
        """Compare the files of a bucket with their checksums, once, before the first use.

        Raises
        ------
        InputError
            If a file differs from what was written.
        """
        _, _, *crcs = self.lengths[bucket]
        if bucket in self._checked:
            return
        for file, crc in zip(self.files(bucket), crcs, strict=False):
            found = 0
            with open(file, "rb", buffering=0) as stream:
                while data := stream.read(self.tuning.slab_bytes):
                    found = google_crc32c.extend(found, data)
            if found != crc:
                raise InputError(
                    f"{file} is not what was written there: delete {self.folder.parent} and "
                    "ingest again."
                )
        self._checked.add(bucket)

    def _truncate_files(self) -> None:
        """Cut each bucket file to its length in `lengths`; delete files of other buckets.

        Raises
        ------
        InputError
            If a file is missing or shorter than its length.
        """
        known: dict[Path, int] = {}
        for bucket, lengths in self.lengths.items():
            known.update(zip(self.files(bucket), lengths[:2], strict=True))
        for file in self.folder.iterdir():
            if file not in known:
                file.unlink()
        for file, length in known.items():
            if not file.exists() or file.stat().st_size < length:
                raise InputError(
                    f"{file} has lost rows that were read before: delete {self.folder.parent} and "
                    "ingest again."
                )
            os.truncate(file, length)

    def _values(self, X: Features, start: int, stop: int) -> NDArray[Any]:
        """Return the features of rows `start` to ``stop - 1`` as the value file stores them.

        Dense rows are an array (rows, d); of sparse rows, all entries are one array of ENTRY.
        """
        if not isinstance(X, csr_array):
            return X[start:stop].astype(self.real, copy=False)
        first, last = int(X.indptr[start]), int(X.indptr[stop])
        entries = np.empty(last - first, ENTRY[self.real])
        entries["index"], entries["value"] = X.indices[first:last], X.data[first:last]
        return entries


def _as_narrow_integers(buckets: NDArray[np.int64]) -> NDArray[np.integer[Any]]:
    """Return bucket numbers as uint16 if they fit: numpy sorts that type by radix."""
    few = len(buckets) and int(buckets.max()) <= np.iinfo(np.uint16).max
    return buckets.astype(np.uint16 if few else np.int32)


def stack_rows(parts: list[Features]) -> Features:
    """Return the rows of all parts as one array or CSR matrix."""
    if isinstance(parts[0], csr_array):
        return csr_stack(parts, parts[0].shape[1])
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _extend_checksum(crc: int, pieces: list[NDArray[Any]]) -> int:
    """Return the crc32c of a file after `pieces` were appended; `crc` is its crc32c before that."""
    for piece in pieces:
        data = np.ascontiguousarray(piece).reshape(-1).view(np.uint8)
        crc = google_crc32c.extend(crc, data)
    return crc


def _append_durably(path: Path, length: int, pieces: list[NDArray[Any]]) -> int:
    """Append arrays to a file, and return its new length once they are on disk.

    Parameters
    ----------
    path : Path
    length : int
        Valid bytes of the file; bytes after them are cut off first.
    pieces : list of array
    """
    with open(path, "ab", buffering=0) as file:
        # A flush that failed half way (a full disk) may have left bytes that are not counted.
        file.truncate(length)
        for piece in pieces:
            rest = np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data
            while rest:
                rest = rest[file.write(rest) :]
            length += piece.nbytes
        os.fsync(file.fileno())
    return length


JOURNAL, LOCK = "journal.jsonl", "lock"
"""Names of the journal and of its lock file in the folder of an ingest."""


class Journal:
    """Append-only log of an ingest, one JSON record a line; the first record describes the job.

    Each record holds its checksum and the checksum of the record before: changed, lost or moved
    lines are detected.

    Parameters
    ----------
    folder : Path
        Created if it does not exist. It is locked against other processes while the journal is
        open; the system drops the lock with the process.
    job : dict
        JSON values: the sources, and all options that the result depends on.
    anew : bool
        Discard the records of another job instead of refusing them.

    Attributes
    ----------
    lines : list of dict
        Records that earlier runs of this job wrote, without the first.

    Raises
    ------
    InputError
        If another process uses the folder, or the journal is of another job, or damaged.
    """

    def __init__(self, folder: Path, job: dict[str, Any], anew: bool = False) -> None:
        """Lock the folder, read the records of earlier runs of this job, or begin a new journal.

        With `anew`, records of another job are discarded; else they are an error.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._lock = open(folder / LOCK, "w")  # noqa: SIM115 (until `close`)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise InputError(
                f"another process is ingesting in {folder}: wait for it, or choose another path."
            ) from None
        self.lines: list[dict[str, Any]] = []
        self._last: str | None = None
        """Checksum of the last record."""
        job = json.loads(json.dumps(job))
        self._file = open(folder / JOURNAL, "a+b")  # noqa: SIM115 (until `close`)
        try:
            self._recover(job, anew)
        except BaseException:
            self.close()
            raise

    def _recover(self, job: dict[str, Any], anew: bool) -> None:
        """Read the records of earlier runs of this job into `lines`, or begin a new journal.

        The last line is cut off if it was not written to its end.

        Parameters
        ----------
        job : dict
            The sources and all options that the result depends on; the first record holds them.
        anew : bool
            Whether a damaged journal, or records of another job, are discarded.

        Raises
        ------
        InputError
            If `anew` is false and the journal is damaged or of another job.
        """
        self._file.seek(0)
        text = self._file.read()
        # A line without an end was being written when the process died: it does not count.
        whole = text[: text.rfind(b"\n") + 1]
        self._file.truncate(len(whole))
        try:
            lines = [self._parse_line(line) for line in whole.splitlines()]
            changed = [key for key in job if lines and lines[0]["job"].get(key) != job[key]]
        except (Damaged, LookupError, AttributeError) as error:
            if not anew:
                raise InputError(
                    f"{self.folder / JOURNAL} is damaged, and what was done is not known: delete "
                    f"{self.folder} or use overwrite to start anew."
                ) from error
            lines, changed = [], []
        if not lines or (changed and anew):
            self._file.truncate(0)
            self._last = None
            self.write({"job": job})
            return
        if changed:
            raise InputError(
                f"{self.folder} was begun with other {' and '.join(changed)}: repeat that command "
                "to go on with it, or delete that folder or use overwrite to start anew."
            )
        self.lines = lines[1:]

    def write(self, line: dict[str, Any]) -> None:
        """Append a record (a dict of JSON values); it is on disk when this returns."""
        text = seal({**line, "after": self._last})
        self._last = unseal(text)[CHECKSUM]
        self._file.write(text + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _parse_line(self, text: bytes) -> dict[str, Any]:
        """Return the record in a line, without its checksum and the one of the record before.

        Raises
        ------
        Damaged
            If the line does not match its checksum, or does not follow the line parsed before.
        """
        # Records of versions before 0.1 have no checksum; after a record with one, all have one.
        line = unseal(text, needed=self._last is not None)
        if line.pop("after", None) != self._last:
            raise Damaged("a line is missing, or out of place")
        self._last = line.pop(CHECKSUM, None)
        return line

    def close(self) -> None:
        """Close the journal and unlock the folder."""
        self._file.close()
        self._lock.close()
