"""Files that appear whole or not at all: temp file, fsync, rename."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a file for writing that takes its name only when the block ends without an error.

    Parameters
    ----------
    path : path
        Final name. The bytes go to ``<path>.tmp`` in the same folder meanwhile.

    Yields
    ------
    binary file
        Seekable and open for reading and writing. After an error the temporary file is removed
        and whatever stood at `path` before is untouched.
    """
    final = Path(path)
    temporary = final.with_name(final.name + ".tmp")
    try:
        with open(temporary, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, final)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    # The rename itself is durable only once the folder is.
    folder = os.open(final.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
