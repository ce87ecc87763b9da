"""The options of a fit, shared by `fit`, `plan` and `path`."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from bigscreen.cli.common import Bytes, Number, Seconds, threads_option
from bigscreen.errors import InputError

if TYPE_CHECKING:
    from bigscreen.data.dataset import Dataset
    from bigscreen.train.options import TrainOptions

_OPTIONS = [
    click.option(
        "--problem",
        type=click.Choice(
            ["c-svc", "squared-svc", "nu-svc", "one-class"]
            + ["svr", "squared-svr", "lad", "quantile"]
        ),
        default="c-svc",
        show_default=True,
        help="What to find. c-svc, nu-svc: which label a row has; svr, lad, quantile: which number "
        "(errors up to --epsilon free; every error counts; --tau of the rows below it); one-class: "
        "whether a row is like those of STORE. squared-svc, squared-svr: errors count by their "
        "squares.",
    ),
    click.option(
        "--nu",
        type=Number(above=0),
        metavar="NU",
        default=0.5,
        show_default=True,
        help="Of nu-svc and one-class, in place of --C: the part of the rows that may be on the "
        "wrong side, at most 1.",
    ),
    click.option(
        "--epsilon",
        type=Number(),
        metavar="E",
        default=0.1,
        show_default=True,
        help="Of svr and squared-svr: errors up to this size cost nothing.",
    ),
    click.option(
        "--tau",
        type=Number(above=0, below=1),
        metavar="T",
        default=0.5,
        show_default=True,
        help="Of quantile: the part of the rows that is to lie below.",
    ),
    click.option(
        "--kernel",
        type=click.Choice(["linear", "rbf", "polynomial", "laplacian", "sigmoid"]),
        default="rbf",
        show_default=True,
        help="How alike two rows are. linear: no curves, fast, right for wide sparse data; "
        "rbf: curves, the usual choice for up to a few hundred columns.",
    ),
    click.option(
        "--gamma",
        type=Number(above=0, words=("scale",)),
        default="scale",
        show_default=True,
        metavar="G|scale",
        help="How quickly likeness falls with distance: larger bends more. "
        "scale: 1 / (columns x variance of the values).",
    ),
    click.option(
        "--degree",
        type=click.IntRange(min=1),
        metavar="N",
        default=3,
        show_default=True,
        help="Power of the polynomial kernel.",
    ),
    click.option(
        "--coef0",
        type=Number(),
        metavar="X",
        default=0.0,
        show_default=True,
        help="Number added inside the polynomial and sigmoid kernels.",
    ),
    click.option(
        "--exact",
        is_flag=True,
        help="Compare all rows with each other, not with landmarks: the kernel machine itself. "
        "Takes longer, and the more rows the more.",
    ),
    click.option(
        "--landmarks",
        type=click.IntRange(min=1),
        metavar="M",
        help="Rows that every row is compared with in place of all the others: more follow finer "
        "shapes and cost more.  [default: 1000, or all rows if fewer]",
    ),
    click.option(
        "--sampling",
        type=click.Choice(["uniform", "rpcholesky"]),
        default="uniform",
        show_default=True,
        help="How landmarks are picked: by chance, or spread out to miss less of the kernel.",
    ),
    click.option(
        "--truncation",
        type=Number(above=0, below=1),
        metavar="X",
        help="Drop directions of the landmarks below this part of the largest.  [default: 1e-12, "
        "1e-6 with recomputed features, whose precision carries no more]",
    ),
    click.option(
        "--C",
        "C",
        type=Number(above=0),
        metavar="C",
        help="What a mistake on one row costs: larger fits the training rows harder.  [default: 1]",
    ),
    click.option(
        "--lambda",
        "lam",
        type=Number(above=0),
        metavar="L",
        help="The same choice per row instead of in total: C = 1 / (2 x rows x lambda).",
    ),
    click.option(
        "--class-weight",
        type=click.Choice(["none", "balanced"]),
        default="none",
        show_default=True,
        help="balanced: rows of a rare label weigh more, so that all labels weigh the same.",
    ),
    click.option(
        "--strategy",
        type=click.Choice(["rest", "one"]),
        default="rest",
        show_default=True,
        help="With more than two labels: each against the rest, or one against one, every pair.",
    ),
    click.option(
        "--intercept",
        type=click.Choice(["constant", "true", "none"]),
        help="Constant added to the score: constant (an appended column of ones, penalised), "
        "true (not penalised), none.  [default: constant]",
    ),
    click.option("--no-intercept", is_flag=True, help="Short for --intercept none."),
    click.option(
        "--tol",
        type=Number(above=0),
        metavar="X",
        default=1e-3,
        show_default=True,
        help="Stop once the relative gap is below this. The gap is how far the model can be from "
        "the best one, proved over all rows: .001 means within 0.1 %. With --exact and a kernel "
        "that is not positive semidefinite (sigmoid) nothing is proved: X is the KKT violation.",
    ),
    click.option(
        "--max-iter",
        type=click.IntRange(min=1),
        metavar="N",
        default=1000,
        show_default=True,
        help="Most passes over the data; then the best model so far is kept, with its gap.",
    ),
    click.option(
        "--time-budget",
        type=Seconds(),
        metavar="TIME",
        help="Most time to take, such as 90s, 10m, 2h, the waiting for workers included; then the "
        "same, or a sentence if there is no model yet.",
    ),
    click.option(
        "--memory",
        type=Bytes(),
        metavar="SIZE",
        help="Memory to stay within, all processes together, such as 4GiB.",
    ),
    click.option(
        "--solver",
        type=click.Choice(["auto", "newton", "cd", "block", "pairs"]),
        default="auto",
        show_default=True,
        help="newton: few passes, any number of rows; cd: coordinate descent. With --exact, block: "
        "many rows at a time; pairs: two at a time, in one process.",
    ),
    click.option(
        "--cache",
        type=Bytes(),
        metavar="SIZE",
        help="Memory for comparisons between rows that --exact may need again, such as 1GiB.  "
        "[default: 0.3 of --memory at most]",
    ),
    click.option(
        "--start",
        type=click.Choice(["auto", "cold", "divide", "nystrom"]),
        default="auto",
        show_default=True,
        help="Where the fit begins. cold: at nothing, also auto; divide: parts of the rows are "
        "fitted first; nystrom: a quick fit with few landmarks is.",
    ),
    click.option(
        "--parts",
        type=click.IntRange(min=1),
        metavar="N",
        help="Parts to divide the rows into.  [default: about 5000 rows each]",
    ),
    click.option(
        "--levels",
        type=click.IntRange(min=1),
        metavar="N",
        default=1,
        show_default=True,
        help="Times to divide the rows: each time into a quarter as many parts.",
    ),
    click.option(
        "--early",
        is_flag=True,
        help="With --exact: stop after the parts. Quick, every row is judged by its own part, and "
        "nothing is proved.",
    ),
    click.option(
        "--features",
        type=click.Choice(["auto", "stored", "recomputed"]),
        default="auto",
        show_default=True,
        help="Keep the comparisons with the landmarks on disk, or compute them in every pass. "
        "Both give the same model.",
    ),
    click.option(
        "--screening",
        type=click.Choice(["auto", "gap", "f-safe", "adaptive", "joachims", "none"]),
        default="auto",
        show_default=True,
        help="Leave out rows that are decided already. gap: provably so; f-safe: bolder, with a "
        "closing look at all rows; adaptive: as bold as turns out well; joachims: those that seem "
        "to be, with --exact; none: never. auto: none with --exact, else gap.",
    ),
    click.option(
        "--f",
        "f",
        type=Number(above=0, below=1),
        metavar="X",
        default=0.1,
        show_default=True,
        help="How bold f-safe screening is: smaller leaves out more.",
    ),
    click.option(
        "--patience",
        type=click.IntRange(min=1),
        metavar="N",
        default=3,
        show_default=True,
        help="Looks at a row in which it has to seem decided, for joachims screening.",
    ),
    click.option(
        "--certify",
        type=click.Choice(["float32", "float64"]),
        default="float32",
        show_default=True,
        help="Precision of the scores that the final proof is summed from (sums are float64).",
    ),
    click.option(
        "--seed",
        type=click.IntRange(min=0),
        metavar="N",
        default=0,
        show_default=True,
        help="Seed of every random choice: the same seed gives the same model.",
    ),
    click.option(
        "--work",
        metavar="FOLDER",
        help="Where stored features and checkpoints go.  [default: MODEL.work, removed at the end]",
    ),
    click.option(
        "--workers",
        type=click.IntRange(min=1),
        metavar="N",
        help="Worker processes on this machine; without it threads of one process do the work.",
    ),
    click.option(
        "--scheduler",
        metavar="ADDRESS",
        help="A running Dask scheduler to work on instead, such as tcp://10.0.0.1:8786, or "
        "tls://... with the three options below.",
    ),
    click.option(
        "--tls-ca",
        metavar="FILE",
        help="Certificate of the authority that an encrypted cluster trusts, as PEM.",
    ),
    click.option(
        "--tls-cert",
        metavar="FILE",
        help="Certificate that this authority has signed for you.",
    ),
    click.option("--tls-key", metavar="FILE", help="Its private key."),
    threads_option,
]

Command = TypeVar("Command", bound=Callable[..., Any])


def fit_options(command: Command) -> Command:
    """Add every option of a fit to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def some_options(names: Sequence[str]) -> Callable[[Command], Command]:
    """Add those options of a fit that have these names, in the order of a fit."""

    def add(command: Command) -> Command:
        for option in reversed(_OPTIONS):
            # What the option itself makes of a function is the one place that knows its name.
            (made,) = option(lambda: None).__click_params__  # type: ignore[attr-defined]
            if made.name in names:
                command = option(command)
        return command

    return add


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
    """The options as `bigscreen.train.run` wants them, checked against each other and the store.

    Raises
    ------
    InputError
        If two options contradict, one has no meaning for the kernel, or there are more landmarks
        than rows.
    """
    from bigscreen.train.options import TrainOptions

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
