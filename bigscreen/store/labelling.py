"""From the labels of a source to label codes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.errors import InputError
from bigscreen.store.layout import Label

MAX_LABELS = 65_536
REST = "rest"


def plain_label(value: Any) -> Label | None:
    """Return what a label is: an int or float if it reads as a number, a str, or None if missing.

    1, 1.0, "1", "+1" and True are one label.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or value == "":
        return None
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    try:
        number = float(value)
    except ValueError:
        return str(value)
    except TypeError:
        raise InputError(f"{value!r} is not a label: labels are numbers or texts.") from None
    if isinstance(value, str) and (not math.isfinite(number) or "_" in value):
        return value
    if math.isnan(number):
        return None
    # An integer comes back as it was: float() would round a long one.
    if isinstance(value, int):
        return int(value)
    if math.isinf(number):
        raise InputError(f"{value!r} is not a label: labels are finite numbers or texts.")
    return int(number) if number.is_integer() else number


class RawLabels:
    """Gives labels codes in order of first appearance; what they mean is settled at the end.

    Parameters
    ----------
    values : list of str, int or float, optional
        The label of each raw code so far; the list grows.
    """

    def __init__(self, values: list[Label] | None = None) -> None:
        self.values: list[Label] = [] if values is None else values
        self._codes: dict[Any, int] = {value: code for code, value in enumerate(self.values)}

    def encode(self, y: NDArray | None, rows: int, where: Callable[[int], str]) -> NDArray:
        """Return raw codes, int32 (rows,); -1 for a missing label.

        Raises
        ------
        InputError
            If there is not one label per row, or there are more than MAX_LABELS.
        """
        if y is None:
            return np.full(rows, -1, np.int32)
        y = np.asarray(y)
        if y.ndim == 2 and y.shape[1] == 1:
            y = y[:, 0]
        if y.shape != (rows,):
            raise InputError(f"{where(0)}: labels of shape {y.shape} for {rows} rows.")
        if y.dtype == object:
            # Sorting mixed objects is not possible, and a dict is faster anyway.
            found = {value: None for value in y.tolist()}
            table = {value: self._code(value) for value in found}
            codes = np.fromiter((table[value] for value in y.tolist()), np.int32, rows)
        else:
            values, inverse = np.unique(y, return_inverse=True)
            codes = np.array([self._code(v) for v in values.tolist()], np.int32)[inverse.ravel()]
        if len(self.values) > MAX_LABELS:
            first = int(np.argmax(codes >= MAX_LABELS))
            raise InputError(
                f"{where(first)}: there are more than {MAX_LABELS} different labels; say which "
                "column holds the label (this one looks like a measurement), or ask for regression."
            )
        return codes

    def _code(self, value: Any) -> int:
        label = plain_label(value)
        if label is None:
            return -1
        code = self._codes.get(label)
        if code is None:
            code = self._codes[label] = len(self.values)
            self.values.append(label)
        return code


def known_codes(values: list[Label], labels: list[Label], positive: Label | None) -> NDArray:
    """Map raw labels to the codes of an earlier store; int32 (raw codes,), -1 if it has none.

    Parameters
    ----------
    values : list
        Raw labels.
    labels, positive
        As in `Preparation`; with `positive` every other label counts as the rest, known or not.
    """
    if positive is not None:
        wanted = plain_label(positive)
        return np.array([int(value == wanted) for value in values], np.int32)
    codes = {plain_label(label): code for code, label in enumerate(labels)}
    return np.array([codes.get(value, -1) for value in values], np.int32)


def settle(
    values: list[Label], positive: Label | None, least: int = 2
) -> tuple[list[Label], NDArray[np.int32]]:
    """Decide the labels of a new store, and the code of each raw label.

    Numbers ascend; if a single label is a text, all are taken as texts and sorted as such.

    Raises
    ------
    InputError
        If there are fewer than `least` labels, or `positive` is not among them.
    """
    texts = any(isinstance(value, str) for value in values)
    labels = sorted([str(v) for v in values] if texts else values)  # type: ignore[type-var]
    if len(labels) < least:
        raise InputError(
            f"every row has the label {labels[0] if labels else None!r}: a classifier needs at "
            "least two labels; check which column holds the label, or ask for unlabelled rows, "
            "which a one-class machine is fitted to."
        )
    if positive is None:
        codes = {label: code for code, label in enumerate(labels)}
        return labels, np.array([codes[str(v) if texts else v] for v in values], np.int32)
    wanted = plain_label(positive)
    if wanted not in values:
        some = ", ".join(map(str, labels[:10]))
        raise InputError(
            f"no row has the label {positive!r} asked for as positive; there are {some}."
        )
    assert wanted is not None
    return [REST, wanted], known_codes(values, [], wanted)
