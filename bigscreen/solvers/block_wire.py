"""Rows on their way from the shards to the coordinator, as the float64 words of a round."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bigscreen.store import Rows


def shares(data: Rows, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many of these rows live in every shard (n_shards,)."""
    return np.bincount(ids // data.shard_rows, minlength=data.n_shards)


def gathered(stack: NDArray[np.float64], data: Rows, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """One number a row, where every shard has sent those of its own rows in the order of ids.

    Parameters
    ----------
    stack : float64 (n_shards, at least the most rows of one shard)
    """
    out = np.empty(len(ids))
    shard = ids // data.shard_rows
    order = np.argsort(shard, kind="stable")
    place = np.arange(len(ids)) - np.repeat(np.cumsum(c := shares(data, ids)) - c, c)
    out[order] = stack[shard[order], place]
    return out


def received(fleet: Any, data: Rows, ids: NDArray[np.int64]) -> Any:
    """The features of these rows, in their order, from the shards that hold them."""
    if not len(ids):
        return data.X(0, 0)
    counts = shares(data, ids)
    message = {"kind": "rows", "ids": ids, "words": 0}
    if data.is_sparse:
        stack, _ = fleet.round(message)
        message["words"] = int(max(1, stack.max()))
    else:
        message["words"] = int(counts.max()) * data.n_features
    stack, _ = fleet.round(message)
    parts = [
        _decoded(data, words, count) for words, count in zip(stack, counts.tolist(), strict=True)
    ]
    back = np.argsort(np.argsort(ids // data.shard_rows, kind="stable"))
    if data.is_sparse:
        return sparse.csr_array(sparse.vstack(parts, format="csr"))[back]
    return np.concatenate(parts)[back]


def _decoded(data: Rows, words: NDArray[np.float64], count: int) -> Any:
    real = data.X(0, 0).dtype
    if not data.is_sparse:
        return words[: count * data.n_features].astype(real).reshape(count, data.n_features)
    sizes = words[:count].astype(np.int64)
    total = int(sizes.sum())
    columns = words[count : count + total].astype(np.int32)
    values = words[count + total : count + 2 * total].astype(real)
    indptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    return sparse.csr_array((values, columns, indptr), shape=(count, data.n_features))
