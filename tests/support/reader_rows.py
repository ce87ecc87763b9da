"""What the tests of readers share: writing a small file, and reading all of a source."""

import numpy as np
from scipy.sparse import csr_array, vstack


def written(folder, content, name="data"):
    """Write bytes or text as they are and return the path."""
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read(reader, skip_rows=0, piece_bytes=8 << 20):
    """Return X (dense or CSR), y and each row's place, after checking the numbering of rows.

    The reader reads `piece_bytes` at a time.
    """
    reader.piece_bytes = piece_bytes
    blocks = list(reader.blocks(skip_rows))
    row = skip_rows
    for block in blocks:
        assert block.first_row == row
        row += block.X.shape[0]
    if reader.sparse:
        width = max(block.X.shape[1] for block in blocks)
        parts = [
            csr_array((b.X.data, b.X.indices, b.X.indptr), shape=(b.X.shape[0], width))
            for b in blocks
        ]
        X = csr_array(vstack(parts))
    else:
        X = np.vstack([block.X for block in blocks])
    y = [] if blocks[0].y is None else [label for block in blocks for label in block.y]
    places = [block.where(i) for block in blocks for i in range(block.X.shape[0])]
    return X, y, places
