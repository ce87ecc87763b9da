"""Options of a fit that only measurements can choose, not knowledge of the data.

Each field of `Tuning` describes its option, as the fields of `TrainOptions` do. On the command line
and in records these options are not separate from the others.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from bigscreen.options.option import (
    INSIDE,
    Count,
    Option,
    Scope,
    Words,
    check_values,
    make_docstring,
    option,
    options_of,
    without_refusal,
)

NO_LANDMARKS = "{name} is for landmarks, and this machine has none; leave it out"
INEXACT = Scope(
    lambda o: not o.exact, "with --exact, which compares all rows with each other", NO_LANDMARKS
)
CURVED = Scope(lambda o: o.kernel != "linear", "with --kernel linear", NO_LANDMARKS)
DIVIDED = Scope(
    lambda o: o.early or o.tuning.start == "divide",
    "without --start divide or --early",
    "{name} is for tuning.start='divide' and for early; ask for one",
)


def scope_of_rule(name: str) -> tuple[Scope]:
    """Return the `Scope` of an option that only fits with this screening rule use."""
    return (Scope(lambda o: o.screening == name, f"but with --screening {name}"),)


@dataclass(frozen=True, repr=False)
class Tuning:
    """Options of a fit that only measurements can choose; its docstring is replaced below."""

    start: str = option(
        "auto",
        "Expert",
        Words(("auto", "cold", "divide", "nystrom")),
        "Where the fit begins. cold: at zero; divide: at the machines of parts of the rows; "
        "nystrom: at a quick fit with few landmarks; auto: cold.",
    )
    parts: int | None = option(
        None,
        "Expert",
        Count(),
        "Parts that --start divide and --early divide the rows into.",
        (DIVIDED,),
        otherwise="about 5000 rows each",
    )
    levels: int = option(
        1,
        "Expert",
        Count(),
        "Times to divide the rows: each time into a quarter as many parts.",
        (DIVIDED,),
    )
    features: str = option(
        "auto",
        "Expert",
        Words(("auto", "stored", "recomputed")),
        "Keep the comparisons with the landmarks on disk, or compute them in every pass. "
        "Both give the same model.",
        without_refusal(INEXACT),
    )
    truncation: float | None = option(
        None,
        "Expert",
        INSIDE,
        "Drop directions of the landmarks whose eigenvalue is below this part of the largest. "
        "The certificate says how many are left (rank).",
        (INEXACT, CURVED),
        otherwise="1e-12, 1e-6 with recomputed features, whose precision carries no more",
    )
    certify: str = option(
        "float32",
        "Expert",
        Words(("float32", "float64")),
        "Precision of the scores that the final proof is summed from (sums are float64).",
    )
    f: float = option(
        0.1,
        "Expert",
        INSIDE,
        "How bold f-safe screening is: smaller leaves out more.",
        scope_of_rule("f-safe"),
        flag="--f",
    )
    patience: int = option(
        3,
        "Expert",
        Count(),
        "Joachims screening leaves a row out once it has seemed decided so many times in a row.",
        scope_of_rule("joachims"),
    )

    def __post_init__(self) -> None:
        """Raise `InputError` if an option has a wrong value."""
        check_values(self, "tuning.")

    def __repr__(self) -> str:
        """Return the call that makes this object, without default values."""
        given = {own.name: getattr(self, own.name) for own in fields(self)}
        changed = [f"{name}={value!r}" for name, value in given.items() if value != DEFAULTS[name]]
        return f"Tuning({', '.join(changed)})"


OPTIONS: dict[str, Option] = options_of(Tuning)
"""All options of `Tuning` by name."""

DEFAULTS: dict[str, Any] = {own.name: own.default for own in fields(Tuning)}

Tuning.__doc__ = make_docstring(
    Tuning, "Options of a fit that only measurements can choose, not knowledge of the data."
)
