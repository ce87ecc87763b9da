"""The options of a fit, shared by `fit` and `plan`, and what they mean for a given store."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from bigscreen.cli.common import Bytes, Number, Seconds, threads_option
from bigscreen.errors import InputError

if TYPE_CHECKING:
    from bigscreen.fleet import Fleet
    from bigscreen.store.dataset import Dataset
    from bigscreen.train import TrainOptions

DEFAULT_LANDMARKS = 1000
# The options that only some kernels have a use for.
_USED_BY = {
    "gamma": ("rbf", "polynomial", "laplacian", "sigmoid"),
    "degree": ("polynomial",),
    "coef0": ("polynomial", "sigmoid"),
    "landmarks": ("rbf", "polynomial", "laplacian", "sigmoid"),
    "sampling": ("rbf", "polynomial", "laplacian", "sigmoid"),
}

# The options that `TrainOptions` takes as they are.
_PASSED_ON = (
    *("gamma", "degree", "coef0", "sampling", "seed", "tol", "max_iter", "time_budget", "memory"),
    *("solver", "features", "screening", "f", "certify"),
)

_OPTIONS = [
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
        "the best one, proved over all rows: .001 means within 0.1 %.",
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
        help="Most time to take, such as 90s, 10m, 2h; then the same.",
    ),
    click.option(
        "--memory",
        type=Bytes(),
        metavar="SIZE",
        help="Memory to stay within, all processes together, such as 4GiB.",
    ),
    click.option(
        "--solver",
        type=click.Choice(["auto", "newton", "cd"]),
        default="auto",
        show_default=True,
        help="newton: few passes, any number of rows; cd: coordinate descent.",
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
        type=click.Choice(["gap", "f-safe", "none"]),
        default="gap",
        show_default=True,
        help="Leave out rows that are decided already. gap: provably so; f-safe: bolder, with a "
        "closing look at all rows; none: never.",
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
        help="A running Dask scheduler to work on instead, such as tcp://10.0.0.1:8786.",
    ),
    threads_option,
]

Command = TypeVar("Command", bound=Callable[..., Any])


def fit_options(command: Command) -> Command:
    """Add every option of a fit to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


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

    def given(name: str) -> bool:
        return context.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE

    kernel = values["kernel"]
    for name, kernels in _USED_BY.items():
        if given(name) and kernel not in kernels:
            raise InputError(f"--{name} has no meaning with --kernel {kernel}; leave it out")
    if given("f") and values["screening"] != "f-safe":
        raise InputError("--f has a meaning only with --screening f-safe; leave it out")
    if values["C"] is not None and values["lam"] is not None:
        raise InputError(
            "--C and --lambda say the same in two ways (C = 1 / (2 x rows x lambda)); give one"
        )
    if values["no_intercept"] and values["intercept"] not in (None, "none"):
        raise InputError(f"--no-intercept contradicts --intercept {values['intercept']}; give one")
    landmarks = values["landmarks"] or min(DEFAULT_LANDMARKS, dataset.n_rows)
    if landmarks > dataset.n_rows:
        raise InputError(
            f"--landmarks {landmarks} is more than the {dataset.n_rows} rows of {dataset.path}; "
            f"give at most {dataset.n_rows}"
        )
    return TrainOptions(
        kernel=kernel,
        landmarks=landmarks,
        C=1.0 if values["C"] is None else values["C"],
        lam=values["lam"],
        class_weight=None if values["class_weight"] == "none" else values["class_weight"],
        intercept="none" if values["no_intercept"] else values["intercept"] or "constant",
        work=work,
        resume=resume,
        **{name: values[name] for name in _PASSED_ON},
    )


def check_fleet(values: dict[str, Any]) -> None:
    """Refuse contradicting ways to run, before anything is started."""
    chosen = [f"--{name}" for name in ("workers", "scheduler", "threads") if values[name]]
    if len(chosen) > 1:
        raise InputError(
            f"{' and '.join(chosen)} are different ways to run (processes here, a cluster, threads "
            "of one process); give one"
        )


@contextmanager
def open_fleet(values: dict[str, Any]) -> Iterator["Fleet"]:
    """What computes: threads, local worker processes or a Dask scheduler; closed at the end."""
    from bigscreen.fleet import Inline

    if not (values["workers"] or values["scheduler"]):
        with Inline(values["threads"]) as threads:
            yield threads
        return
    # Dask is slow to import, and threads need none of it.
    from bigscreen.fleet_start import connect, local_cluster

    if values["scheduler"]:
        with connect(values["scheduler"]) as cluster:
            yield cluster
        return
    # The coordinating process needs its share of the memory too.
    share = values["memory"] and values["memory"] // (values["workers"] + 1)
    # Ctrl-C reaches every process of the terminal. Processes born while it is ignored ignore it
    # too: the workers go on until the pass has ended and its checkpoint is written.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        started = local_cluster(values["workers"], share)
    finally:
        signal.signal(signal.SIGINT, before)
    with started as cluster:
        yield cluster
