"""What the options of a fit mean for a given store: `bigscreen.train` gets them checked."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bigscreen.errors import InputError

if TYPE_CHECKING:
    from bigscreen.store.dataset import Dataset
    from bigscreen.train import TrainOptions

DEFAULT_LANDMARKS = 1000
# The options that only some kernels have a use for.
_USED_BY = {
    "gamma": ("rbf", "polynomial", "laplacian", "sigmoid"),
    "degree": ("polynomial",),
    "coef0": ("polynomial", "sigmoid"),
}
_OF_LANDMARKS = ("landmarks", "sampling", "truncation", "features")
_PENALISED = ("c-svc", "squared-svc", "lad", "svr", "squared-svr", "quantile")
# The options that only some problems have a use for; `lam` is `--lambda`.
_ASKED_BY = {
    **dict.fromkeys(("C", "lam"), _PENALISED),
    "nu": ("nu-svc", "one-class"),
    "epsilon": ("svr", "squared-svr"),
    "tau": ("quantile",),
    **dict.fromkeys(("class_weight", "strategy"), ("c-svc", "squared-svc", "nu-svc")),
    **dict.fromkeys(("intercept", "no_intercept"), (*_PENALISED, "nu-svc")),
}

# The options that `TrainOptions` takes as they are.
_PASSED_ON = (
    *("problem", "nu", "epsilon", "tau"),
    *(
        "gamma",
        "degree",
        "coef0",
        "sampling",
        "truncation",
        "seed",
        "tol",
        "max_iter",
        "time_budget",
        "memory",
    ),
    *("solver", "features", "screening", "f", "patience", "certify", "exact", "cache", "strategy"),
    *("start", "parts", "levels", "early"),
)


def train_options(
    context: click.Context, dataset: "Dataset", values: dict[str, Any], work: Path, resume: bool
) -> "TrainOptions":
    """The options as `bigscreen.train` wants them, checked against each other and the store.

    Raises
    ------
    InputError
        If two options contradict, one has no meaning for the kernel, or there are more landmarks
        than rows.
    """
    from bigscreen.train import TrainOptions

    _check(context, dataset, values)
    return TrainOptions(
        kernel=values["kernel"],
        landmarks=values["landmarks"] or min(DEFAULT_LANDMARKS, dataset.n_rows),
        C=1.0 if values["C"] is None else values["C"],
        lam=values["lam"],
        class_weight=None if values["class_weight"] == "none" else values["class_weight"],
        intercept="none" if values["no_intercept"] else values["intercept"] or "constant",
        work=work,
        resume=resume,
        **{name: values[name] for name in _PASSED_ON},
    )


def _check(context: click.Context, dataset: "Dataset", values: dict[str, Any]) -> None:
    check_machine(context, dataset, values)
    exact = values["exact"]
    for name, where, there in (
        ("cache", "without --exact or --solver pairs", exact or values["solver"] == "pairs"),
        ("early", "without --exact", exact),
        ("f", "but with --screening f-safe", values["screening"] == "f-safe"),
        ("patience", "but with --screening joachims", values["screening"] == "joachims"),
        ("parts", "without --start divide or --early", _divided(values)),
        ("levels", "without --start divide or --early", _divided(values)),
        ("strategy", "with two labels", len(dataset.labels) > 2),
    ):
        if _given(context, name) and not there:
            raise _useless(name, where)
    if values["C"] is not None and values["lam"] is not None:
        raise InputError(
            "--C and --lambda say the same in two ways (C = 1 / (2 x rows x lambda)); give one"
        )
    if values["no_intercept"] and values["intercept"] not in (None, "none"):
        raise InputError(f"--no-intercept contradicts --intercept {values['intercept']}; give one")


def check_machine(context: click.Context, dataset: "Dataset", values: dict[str, Any]) -> None:
    """Refuse options that have no meaning for the problem or the kernel, for fits and paths."""
    kernel, exact, problem = values["kernel"], values["exact"], values["problem"]
    for name, problems in _ASKED_BY.items():
        if _given(context, name) and problem not in problems:
            raise _useless(name, f"with --problem {problem}")
    for name, kernels in _USED_BY.items():
        if _given(context, name) and kernel not in kernels:
            raise _useless(name, f"with --kernel {kernel}")
    for name in _OF_LANDMARKS:
        if _given(context, name) and exact:
            raise _useless(name, "with --exact, which compares all rows with each other")
        if _given(context, name) and kernel == "linear" and name != "features":
            raise _useless(name, "with --kernel linear")
    if values["landmarks"] and values["landmarks"] > dataset.n_rows:
        raise InputError(
            f"--landmarks {values['landmarks']} is more than the {dataset.n_rows} rows of "
            f"{dataset.path}; give at most {dataset.n_rows}"
        )


def _given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE


def _useless(name: str, where: str) -> InputError:
    option = "lambda" if name == "lam" else name.replace("_", "-")
    return InputError(f"--{option} has no meaning {where}; leave it out")


def _divided(values: dict[str, Any]) -> bool:
    return values["early"] or values["start"] == "divide"
