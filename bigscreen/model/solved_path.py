"""A solved path: the models of a grid of C or nu in one file, read one at a time."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Self

import numpy as np

from bigscreen.data.preparation import Preparation
from bigscreen.errors import InputError
from bigscreen.kernels.standard import kernel_from_dict
from bigscreen.model.file import (
    ABOUT_FILE,
    PATH,
    open_file,
    pack_rows,
    read_array,
    unpack_rows,
    write_file,
)
from bigscreen.model.model import Model, update_provenance
from bigscreen.problems.point import (
    ROUNDING_FIELDS,
    format_gap,
    gap_or_violation,
    meets_tol,
    relative_gap,
)

CERTIFICATE_FIELDS = ("primal", "dual", "gap", "relative_gap")
"""Fields that the record of a point and a certificate have in common."""


@dataclass(eq=False)
class SolvedPath:
    """The points of a path: models, certificates and cross-validation scores.

    Attributes
    ----------
    record : dict
        JSON-able. parameter ("C" or "nu"), values, names (of a point's machines: None, or a label
        each, against the rest), points (for each value a list of `path.walk.Step.record`, one for
        each machine), folds (a list like points for each fold; its steps have the fold's number),
        scores (folds x values), scoring, best (or None), and the models' common fields: kernel,
        kind, labels, preparation, provenance, n_features, landmarks (their storage).
    array : callable
        Reads an array by its name: the landmarks (of exact machines: the union of all points'
        support rows); ``support``, their row numbers in the training data, of exact machines;
        ``intercept`` (points, machines); and for point k ``coef-k`` (machines, own) with
        ``own-k``, positions among the landmarks, of exact machines.
    """

    record: dict[str, Any]
    array: Callable[[str], np.ndarray]

    def __len__(self) -> int:
        return len(self.record["values"])

    def __repr__(self) -> str:
        """Return the path in a line: kind, grid, kernel, features."""
        kind, kernel = self.record["kind"], self.record["kernel"]["name"]
        grid = f"{len(self)} values of {self.parameter}, {self.values[0]:g} to {self.values[-1]:g}"
        return f"<SolvedPath {kind}: {grid}, {kernel}, {self.record['n_features']:,} features>"

    @property
    def parameter(self) -> str:
        """The parameter of the grid: "C" or "nu"."""
        return str(self.record["parameter"])

    @property
    def values(self) -> np.ndarray:
        """The grid's values, float64 (points,)."""
        return np.array(self.record["values"], dtype=np.float64)

    @property
    def points(self) -> list[dict[str, Any]]:
        """The records of all solved points in the order of the grid, one per machine."""
        return [part for parts in self.record["points"] for part in parts]

    @property
    def walks(self) -> list[dict[str, Any]]:
        """The records of all solved points, followed by those of the cross-validation's folds."""
        folds = self.record["folds"] or []
        return [*self.points, *(part for fold in folds for parts in fold for part in parts)]

    @property
    def missed(self) -> str | None:
        """A sentence on the points that missed the requested tolerance; None if all met it."""
        tol = self.record["provenance"]["parameters"]["tol"]
        parts = self.walks
        missed = [part for part in parts if not meets_tol(part, tol)]
        if not missed:
            return None
        worst = max(missed, key=gap_or_violation)
        which = "points, those of the folds among them," if self.record["folds"] else "points"
        what, rounded = "KKT violation", ""
        if worst.get("violation") is None:
            what, moved = "relative gap", relative_gap(worst["rounding"], worst["primal"])
            rounded = f" (rounding can have moved it by {moved:.1e})"
        gap = format_gap(gap_or_violation(worst), ".2e")
        return (
            f"{len(missed)} of {len(parts)} {which} missed the {what} {tol:g}: the largest is "
            f"{gap}{rounded}, at {self.parameter} {worst['value']:.4g}"
        )

    @property
    def scores(self) -> np.ndarray | None:
        """Scores on held-out rows, float64 (folds, points); None without folds."""
        scores = self.record["scores"]
        return None if scores is None else np.array(scores, dtype=np.float64)

    @property
    def best(self) -> int | None:
        """The point with the largest mean score over the folds, the first if tied; or None."""
        best = self.record["best"]
        return None if best is None else int(best)

    def nearest(self, value: float) -> int:
        """Return the index of the point with this value, up to a relative difference of 1e-3.

        Raises
        ------
        InputError
            If there is no such point.
        """
        values = self.values
        k = int(np.argmin(np.abs(np.log(values / value)))) if value > 0 else 0
        if not value > 0 or abs(values[k] / value - 1) > 1e-3:
            raise InputError(
                f"the path has no point {self.parameter} = {value:g}; the nearest is "
                f"{values[k]:.6g}, of {len(values)} from {values[0]:g} to {values[-1]:g}"
            )
        return k

    def model(self, k: int | None = None) -> Model:
        """Build the model of point k (default: the best).

        Raises
        ------
        InputError
            If k is None and the path was solved without folds, so no point is known to be the best.
        """
        if k is None:
            k = self.best
            if k is None:
                raise InputError(
                    "the path was solved without folds, so none of its points is known to be the "
                    f"best; say which {self.parameter} is wanted"
                )
        k = range(len(self))[k]
        known = self.record
        landmarks, support = self._landmarks, self._support
        if support is not None:
            own = self.array(f"own-{k}")
            landmarks, support = landmarks[own], support[own]
        return Model(
            kernel=kernel_from_dict(known["kernel"]),
            landmarks=landmarks,
            coef=self.array(f"coef-{k}"),
            intercept=self._intercepts[k],
            labels=known["labels"],
            preparation=Preparation.from_dict(known["preparation"]),
            provenance=self._provenance(k),
            support=support,
            kind=known["kind"],
        )

    @cached_property
    def _landmarks(self) -> Any:
        """The landmarks of all points, (m, d); None for linear machines."""
        kind, width = self.record["landmarks"], int(self.record["n_features"])
        return None if kind == "none" else unpack_rows("landmarks", kind, width, self.array)

    @cached_property
    def _support(self) -> np.ndarray | None:
        """Row numbers of the landmarks in the training data, if machines are exact; else None."""
        return self.array("support") if self.record["exact"] else None

    @cached_property
    def _intercepts(self) -> np.ndarray:
        """Offsets, float64 (points, machines)."""
        return self.array("intercept")

    def _provenance(self, k: int) -> dict[str, Any]:
        """Build the provenance (data, parameters, certificates, ...) of point k, as of one fit."""
        known, parts = self.record["provenance"], self.record["points"][k]
        value = {self.parameter: self.record["values"][k]}
        names = self.record["names"]
        certificates = [
            {
                "label": name,
                **{key: part[key] for key in CERTIFICATE_FIELDS},
                "rounding_bound": part["rounding"],
                # (Older files have no such fields.)
                **{key: part.get(key) for key in ROUNDING_FIELDS},
                "proved": part["gap"] is not None,
                "psd": part.get("violation") is None,
                "violation": part.get("violation"),
                "certified_in": known["certified_in"],
                "rows": known["rows"],
                "support": part["support"],
                "intercept": None,
            }
            for name, part in zip(names, parts, strict=True)
        ]
        seconds = {key: sum(part["seconds"][key] for part in parts) for key in ("rules", "solver")}
        return {
            **known,
            "parameters": {**known["parameters"], **value},
            "certificates": certificates,
            "history": [],
            "screening": [_screening_record(n, p) for n, p in zip(names, parts, strict=True)],
            "seconds": {**seconds, "total": sum(seconds.values())},
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the path to one file, atomically."""
        names = ["intercept"]
        kind = self.record["landmarks"]
        if kind != "none":
            names += list(pack_rows("landmarks", self._landmarks)[1])
        exact = bool(self.record["exact"])
        names += ["support"] if exact else []
        for k in range(len(self)):
            names += [f"coef-{k}", f"own-{k}"] if exact else [f"coef-{k}"]
        arrays = {name: self.array(name) for name in names}
        write_file(path, self.record, arrays, PATH)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Open a path's file; its arrays are read when a model needs them.

        Raises
        ------
        InputError
            If there is no such file, it is not a path, or it is damaged.
        """
        name = os.fspath(path)

        with open_file(name, PATH) as (record, _):
            own = {field: part for field, part in record.items() if field not in ABOUT_FILE}
            said = {**own, "provenance": update_provenance(record["provenance"])}
            return cls(said, partial(read_array, os.path.abspath(name), record))


def _screening_record(name: Any, part: dict[str, Any]) -> dict[str, Any]:
    """Convert a solved point's record to the record of screening that a single fit's model has.

    ``name`` is the machine's label, ``part`` the point's record. fixed_at_hi counts the rows whose
    dual variable screening fixed at its upper bound, fixed_at_lo those fixed at the lower bound or
    at zero.
    """
    counts = part["screened"].get("all", {"lo": 0, "hi": 0, "zero": 0})
    rules = [rule for rule in part["screened"] if rule != "all"]
    return {
        "label": name,
        "rule": "+".join(rules) or "none",
        "fixed_at_hi": counts["hi"],
        "fixed_at_lo": counts["lo"] + counts["zero"],
        "taken_back": 0,
        "passes": [],
    }
