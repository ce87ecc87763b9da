"""The options of a fit: `TrainOptions`, which checks them when it is made.

Each field of `TrainOptions` and of `Tuning` describes its option: the values it can have, the
machines that use it, and what it does. The options and help of the command line, the checks and the
docstrings are made from these descriptions.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from bigscreen.errors import InputError
from bigscreen.options.option import (
    DURATION,
    FLAG,
    FOLDER,
    INSIDE,
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    SIZE,
    Count,
    CountOrFile,
    NamedNumbers,
    Number,
    Option,
    Other,
    Scope,
    Words,
    check_values,
    make_docstring,
    option,
    options_of,
    without_refusal,
)
from bigscreen.options.tuning import CURVED, DIVIDED, INEXACT, Tuning
from bigscreen.options.tuning import DEFAULTS as TUNED_DEFAULTS
from bigscreen.options.tuning import OPTIONS as TUNED

__all__ = ["OPTIONS", "PROBLEMS", "TrainOptions", "has_coupling"]


class ProblemKind(NamedTuple):
    """A kind of optimisation problem: its parameters, and what it needs of the rows.

    ``parameters``: names of options; ``classifies``: whether it predicts labels; ``squared``:
    whether its losses are squared.
    """

    parameters: tuple[str, ...]
    classifies: bool = False
    squared: bool = False
    own_offset: bool = False
    """Whether the problem defines its own offset, so that the option intercept has no effect."""
    twice: bool = False
    """Whether it needs each row twice, which no stored data set has."""


PROBLEMS = {
    "c-svc": ProblemKind(("C",), classifies=True),
    "squared-svc": ProblemKind(("C",), classifies=True, squared=True),
    "nu-svc": ProblemKind(("nu",), classifies=True),
    "one-class": ProblemKind(("nu",), own_offset=True),
    "svr": ProblemKind(("C", "epsilon")),
    "squared-svr": ProblemKind(("C", "epsilon"), squared=True),
    "lad": ProblemKind(("C",)),
    "quantile": ProblemKind(("C", "tau")),
    "nu-svr": ProblemKind(("C", "nu"), twice=True),
}
"""The kinds of problems by name."""

KERNELS = {
    "linear": (),
    "rbf": ("gamma",),
    "polynomial": ("gamma", "degree", "coef0"),
    "poly": ("gamma", "degree", "coef0"),  # scikit-learn's name of it
    "laplacian": ("gamma",),
    "sigmoid": ("gamma", "coef0"),
    "matern12": ("gamma",),
    "matern32": ("gamma",),
    "matern52": ("gamma",),
    "chi2": ("gamma",),
}
"""The kernels by name, and the parameters of each."""

INTERCEPTS = {
    True: "true",
    "true": "true",
    "penalized": "penalized",
    "constant": "penalized",  # the name before "penalized"
    False: "none",
    "none": "none",
}
"""The values of the option intercept, and the word for each in records and on the command line."""

RECIPE_OFFSETS = {"true": "true", "penalized": "constant", "none": "none"}
"""The kinds of offset, and the name of each in `bigscreen.problems.recipes`."""

STOCHASTIC = ("snacks", "pegasos")
"""Solvers whose steps use rows drawn at random."""

DEVICE_SOLVER, EXACT_DEVICE_SOLVER = "dense", "block"
"""The solvers that compute on a device other than the CPU: of machines on landmarks and linear
machines, and of exact machines."""

UNSCREENED = (*STOCHASTIC, "dense")
"""Solvers that leave no rows out, whatever the screening rule: they read all, or rows at random."""


def scope_of_problems(parameter: str, refusal: str = "") -> tuple[Scope]:
    """Return the `Scope` of an option that only problems with this parameter use.

    ``refusal``: the error message in Python for other problems; empty: Python ignores the option.
    """

    def fits(options: Any) -> bool:
        """Whether the options' problem has the parameter."""
        return parameter in PROBLEMS[options.problem].parameters

    return (Scope(fits, "with --problem {problem}", refusal),)


def scope_of_kernels(parameter: str) -> tuple[Scope]:
    """Return the `Scope` of an option that only kernels with this parameter use."""
    return (Scope(lambda o: parameter in KERNELS[o.kernel], "with --kernel {kernel}"),)


ANY_OFFSET = Scope(lambda o: not PROBLEMS[o.problem].own_offset, "with --problem {problem}")
PREDICTORS = Scope(
    lambda o: o.problem not in ("one-class", "nu-svr"),
    "with --problem {problem}",
    "{name} is for classifiers and regressions, and not for {problem}; leave it out",
)
CLASSIFIERS = Scope(
    lambda o: PROBLEMS[o.problem].classifies,
    "with --problem {problem}",
    "{name} is for classifiers and {problem} knows no classes; leave it out",
)
ONLY_EXACT = "{name} is for exact machines; leave it out or ask for exact"
EXACT = Scope(lambda o: o.exact, "without --exact", ONLY_EXACT)
PAIRED = Scope(
    lambda o: o.exact or o.solver == "pairs", "without --exact or --solver pairs", ONLY_EXACT
)


METRIC = (
    Scope(
        lambda o: not callable(o.kernel) and o.kernel not in ("linear", "chi2", "precomputed"),
        "with --kernel {kernel}",
        "{name} needs a kernel with a name, other than linear and chi2; leave it out",
    ),
    Scope(
        lambda o: o.problem not in ("one-class", "nu-svr"),
        "with --problem {problem}",
        "{name} is for labels or targets, and not for {problem}; leave it out",
    ),
    Scope(
        lambda o: not o.probability,
        "with --probability",
        "{name} learns from the labels or targets of all rows, so that no fold holds any out; "
        "leave out probability",
    ),
)
"""The machines that a metric can be learned for."""

LEARNED_METRIC = Scope(
    lambda o: o.metric_learning != "none",
    "without --metric-learning",
    "{name} is for a learned metric; leave it out, or ask for one with metric_learning",
)

CHANGEABLE = ("memory", "cache", "time_budget", "max_iter", "device", "device_memory")
"""Options that a resumed run may change."""


@dataclass(frozen=True)
class TrainOptions:
    """The options of a fit; the docstring is replaced below."""

    problem: str = option(
        "c-svc",
        "Data",
        Words(tuple(PROBLEMS), inside=tuple(name for name in PROBLEMS if PROBLEMS[name].twice)),
        "What to find. c-svc, nu-svc: which label a row has; svr, lad, quantile: which number "
        "(errors up to --epsilon free; every error counts; --tau of the rows below it); one-class: "
        "whether a row is like those of STORE. squared-svc, squared-svr: errors count by their "
        "squares.",
        detail="The squared ones are for linear machines and landmarks; nu-svr is for exact "
        "machines on rows that are there twice (`bigscreen.data.memory.Mirrored`).",
    )
    class_weight: str | Mapping[Any, float] | None = option(
        None,
        "Data",
        Other(
            "be 'balanced' or a mapping from label to weight",
            lambda value: isinstance(value, Mapping) or value == "balanced",
            ("none", "balanced"),
        ),
        "Let rows of a rare label weigh more (balanced), so that all labels weigh the same.",
        (CLASSIFIERS,),
    )
    strategy: str = option(
        "rest",
        "Data",
        Words(("rest", "one")),
        "With more than two labels: each against the rest, or one against one, every pair.",
        (CLASSIFIERS,),
    )
    kernel: str | Callable[[Any, Any], Any] = option(
        "rbf",
        "Kernel",
        Other(
            "be a name or a function",
            lambda value: callable(value) or isinstance(value, str),
            tuple(KERNELS),
        ),
        f"How alike two rows are: {', '.join(KERNELS)}. linear: no curves, fast, right for wide "
        "sparse data; rbf: curves, the usual choice for up to a few hundred columns; matern12, "
        "matern32, matern52: rougher curves, the smaller the number; chi2: for counts and "
        "histograms, values of at least 0.",
        detail='An exact machine also takes "precomputed" (rows in memory, a square matrix of '
        "entries) and a function ``f(A, B)`` that returns the entries between two sets of rows.",
        metavar="NAME",
    )
    gamma: float | str = option(
        "scale",
        "Kernel",
        Number(POSITIVE.must, POSITIVE.test, ("scale", "auto")),
        "How quickly likeness falls with distance: larger bends more. "
        "scale: 1 / (columns x variance of the values), its root with matern, its product with "
        "the mean value with chi2; auto: 1 / columns.",
        scope_of_kernels("gamma"),
        metavar="G|scale|auto",
    )
    exact: bool = option(
        False,
        "Kernel",
        FLAG,
        "Compare all rows with each other, not with landmarks: the kernel machine itself. "
        "Takes longer, and the more rows the more.",
    )
    landmarks: int = option(
        1000,
        "Kernel",
        CountOrFile(),
        "Rows that every row is compared with in place of all the others: more follow finer "
        "shapes and cost more. On the command line a number of rows of the store, or a file of "
        "rows, raw or a store.",
        without_refusal(INEXACT, CURVED),
        metavar="M|FILE",
        otherwise="1000, or all rows if fewer",
    )
    components: Any = option(
        None,
        "Kernel",
        Other("be a GivenLandmarks", lambda value: hasattr(value, "as_rows_of")),
        "Landmarks that are given, instead of rows that are chosen; landmarks is their number.",
        (INEXACT, CURVED),
        otherwise="rows are chosen",
        flag=None,
    )
    sampling: str = option(
        "uniform",
        "Kernel",
        Words(("uniform", "rpcholesky", "leverage", "kmeans", "auto")),
        "How landmarks are picked. uniform: by chance; rpcholesky: spread out to miss less of the "
        "kernel; leverage: those more often that are unlike the others; kmeans: the rows nearest "
        "to the middles of as many clusters; auto: rpcholesky where rows repeat each other, else "
        "uniform.",
        without_refusal(INEXACT, CURVED),
    )
    degree: int = option(
        3, "Kernel", Count(), "Power of the polynomial kernel.", scope_of_kernels("degree")
    )
    coef0: float = option(
        0.0,
        "Kernel",
        Number(),
        "Number added inside the polynomial and sigmoid kernels.",
        scope_of_kernels("coef0"),
    )
    metric_learning: str = option(
        "none",
        "Kernel",
        Words(("none", "diagonal", "full")),
        "Learn from a first machine on --landmarks which columns, or mixtures of columns, labels "
        "or targets depend on, and fit to rows that are stretched along them. diagonal: a factor "
        "for each column; full: a matrix, of at most 1,000 columns.",
        METRIC,
        detail="The map is a part of the model's preparation, and the certificate is of the mapped "
        "columns. Its scale keeps the mean squared distance of rows.",
    )
    metric_from: Mapping[str, float] | Sequence[Mapping[str, float]] | None = option(
        None,
        "Kernel",
        NamedNumbers(("gamma", "C", "nu")),
        "Values of gamma and C (or nu) of the first machine of --metric-learning, such as "
        "gamma=0.05,C=10. After each / follow the values of a further machine, fitted to mapped "
        "rows, from which the map is learned again. tune prints the values that it found.",
        (LEARNED_METRIC,),
        detail="In Python a mapping, or a list of them.",
        otherwise="gamma and C of the fit",
    )
    C: float = option(
        1.0,
        "Machine",
        POSITIVE,
        "What a mistake on one row costs: larger fits the training rows harder.",
        scope_of_problems("C"),
        metavar="C",
        flag="--C",
    )
    lam: float | None = option(
        None,
        "Machine",
        POSITIVE,
        "The same choice per row instead of in total: C = 1 / (2 x rows x lambda).",
        scope_of_problems("C", "lambda stands for C, which {problem} has not; use nu"),
        metavar="L",
        called="lambda",
        flag="--lambda",
    )
    nu: float = option(
        0.5,
        "Machine",
        SHARE,
        "Of nu-svc and one-class, in place of --C: the part of the rows that may be on the "
        "wrong side, at most 1.",
        scope_of_problems("nu"),
        "It is also the least part of the rows' weight that supports the margin.",
        "NU",
    )
    epsilon: float = option(
        0.1,
        "Machine",
        NOT_NEGATIVE,
        "Of svr and squared-svr: errors up to this size cost nothing.",
        scope_of_problems("epsilon"),
        metavar="E",
    )
    tau: float = option(
        0.5,
        "Machine",
        INSIDE,
        "Of quantile: the part of the rows that is to lie below.",
        scope_of_problems("tau"),
        metavar="T",
        called="the quantile tau",
    )
    intercept: bool | str = option(
        "penalized",
        "Machine",
        Other(
            "be True, 'penalized' or False",
            lambda value: isinstance(value, Hashable) and value in INTERCEPTS,
            ("true", "penalized", "none", "constant"),
        ),
        "Constant added to the score: true (that of LIBSVM, not penalised), penalized (an appended "
        "column of ones, whose weight is penalised with the others), none.",
        (ANY_OFFSET,),
        "True and False stand for the words true and none. A one-class machine's offset is its "
        "own.",
        "[true|penalized|none]",
        "penalized",
    )
    intercept_scaling: float = option(
        1.0,
        "Machine",
        POSITIVE,
        "What a penalized offset appends to the rows in place of 1: of c-svc, svr and the squared "
        "ones on linear machines and landmarks.",
        flag=None,
    )
    probability: bool = option(
        False,
        "Machine",
        FLAG,
        "Learn what scores mean, too, from machines that are each fitted without a fifth of the "
        "rows: probabilities, sets of labels, and where to draw the line between two labels; of a "
        "regression, intervals that hold the target.",
        (PREDICTORS,),
    )
    tol: float = option(
        1e-3,
        "Stopping",
        POSITIVE,
        "Stop once the relative gap is below this. The gap is how far the model can be from "
        "the best one, proved over all rows: .001 means within 0.1 %. With --exact and a kernel "
        "that is not positive semidefinite (sigmoid) nothing is proved: X is the KKT violation.",
        detail="Such kernels are sigmoid, polynomial with coef0 below 0, and a matrix or function "
        "that shows it; their tol is LIBSVM's eps.",
    )
    time_budget: float | None = option(
        None,
        "Stopping",
        DURATION,
        "Most time to take, such as 90s, 10m, 2h, the waiting for workers included. Then the "
        "best model so far is kept, with its gap; if there is none yet, the command says so.",
        detail="A number of seconds.",
    )
    max_iter: int = option(
        1000,
        "Stopping",
        Count(),
        "Most passes over the data; then the best model so far is kept, with its gap.",
    )
    early: bool = option(
        False,
        "Stopping",
        FLAG,
        "With --exact: stop after the parts. Quick, every row is judged by its own part, and "
        "nothing is proved.",
        (EXACT,),
    )
    memory: int | None = option(
        None,
        "Running",
        SIZE,
        "Memory to stay within, all processes together, such as 4GiB.",
        detail="A number of bytes; the machine, its container and `ulimit` say what a process may "
        "use.",
        otherwise="0.8 of what the process may use",
    )
    work: Path | None = option(
        None,
        "Running",
        FOLDER,
        "Where stored features and checkpoints go.",
        otherwise="the output's name with .work, removed at the end",
    )
    resume: bool = option(
        False, "Running", FLAG, "Go on from the checkpoints in ``work``.", flag=None
    )
    seed: int = option(
        0, "Running", Count(0), "Seed of every random choice: the same seed gives the same model."
    )
    cache: int | None = option(
        None,
        "Running",
        SIZE,
        "Memory for comparisons between rows that --exact may need again, such as 1GiB.",
        (PAIRED,),
        "A number of bytes, or less where less is left or needed. No result depends on it.",
        otherwise="0.3 of --memory at most",
    )
    device: str = option(
        "auto",
        "Running",
        Words(("auto", "cpu", "cuda")),
        "What computes. cuda: a GPU, with CuPy or PyTorch, by --solver dense (block for exact "
        "machines); auto: a GPU if there is one and the fit is large, else the cpu.",
    )
    device_memory: int | None = option(
        None,
        "Running",
        SIZE,
        "Memory to stay within on each GPU, such as 4GiB.",
        (Scope(lambda o: o.device != "cpu", "with --device cpu"),),
        "A number of bytes.",
        otherwise="0.9 of what is free there",
    )
    solver: str = option(
        "auto",
        "Expert",
        Words(
            ("auto", "newton", "dense", "cd", "interior", "block", "pairs", "snacks", "pegasos"),
            {"block": EXACT},
        ),
        "newton: few passes, any number of rows; dense: the same steps without shortcuts, in one "
        "process; cd: coordinate descent; interior: some 30 large "
        "steps for few rows, however hard the problem. snacks: steps on rows "
        "drawn at random, near in one pass, and then slow: it proves what it has reached, seldom "
        "--tol; pegasos: an older kind of it. With --exact, block: many rows at a time; pairs: two "
        "at a time, in one process.",
        detail="cd moves one variable at a time: it solves problems without a coupling, which are "
        "those without nu and without an unpenalised offset. snacks and pegasos solve those "
        "without nu whose losses are not squared, pegasos without an unpenalised offset; they end "
        "with two stages that each lower the objective by less than tol of it.",
    )
    screening: str = option(
        "auto",
        "Expert",
        Words(("auto", "gap", "f-safe", "adaptive", "joachims", "none"), {"joachims": PAIRED}),
        "Leave out rows that are decided already. gap: provably so; f-safe: bolder, with a "
        "closing look at all rows; adaptive: as bold as turns out well; joachims: those that seem "
        "to be, with --exact; none: never. auto: none with --exact, else gap.",
    )

    tuning: Tuning = option(
        Tuning(),
        "Expert",
        Other("be a bigscreen.Tuning", lambda value: isinstance(value, Tuning)),
        "Options that only measurements can choose.",
        flag=None,
    )

    def __post_init__(self) -> None:
        """Raise `InputError` if an option has a wrong value, or options contradict each other."""
        check_values(self)
        object.__setattr__(self, "intercept", INTERCEPTS[self.intercept])
        if self.components is not None:
            object.__setattr__(self, "landmarks", len(self.components))
        if self.kernel == "poly":
            object.__setattr__(self, "kernel", "polynomial")
        self._check_scopes()
        self._check_metric()
        self._check_problem()
        self._check_exact()
        self._check_start()
        self._check_solver()
        self._check_device()

    @classmethod
    def from_record(cls, values: Mapping[str, Any]) -> TrainOptions:
        """Make options from a mapping by name, which includes those of `Tuning`.

        Parameters
        ----------
        values : mapping
            Values by name, as in records; missing options have their defaults.
        """
        tuned = {name: value for name, value in values.items() if name in TUNED}
        own = {name: value for name, value in values.items() if name not in TUNED}
        return cls(tuning=Tuning(**tuned), **own)

    def tuned(self, **values: Any) -> TrainOptions:
        """Return the options with these values of `Tuning` replaced."""
        return replace(self, tuning=replace(self.tuning, **values))

    @property
    def record(self) -> dict[str, Any]:
        """The options as JSON values, without the work folder and whether to resume."""
        found = {name: self._value(name) for name in OPTIONS if name not in ("work", "resume")}
        if callable(self.kernel):
            found["kernel"] = getattr(self.kernel, "__qualname__", type(self.kernel).__qualname__)
        if self.intercept_scaling == 1:
            del found["intercept_scaling"]  # older records do not have this option
        if self.components is None:
            del found["components"]  # (nor this one)
        else:
            found["components"] = self.components.fingerprint
        if not self.probability:
            del found["probability"]  # (nor this one)
        for name in ("metric_learning", "metric_from", "device", "device_memory"):
            if found[name] == DEFAULTS[name]:
                del found[name]  # (nor these)
        if self.metric_from is not None:
            found["metric_from"] = self.metric_machines
        if isinstance(self.class_weight, Mapping):
            found["class_weight"] = {str(k): _to_plain(v) for k, v in self.class_weight.items()}
        return {name: _to_plain(value) for name, value in found.items()}

    @property
    def metric_machines(self) -> list[dict[str, float]]:
        """The values of `metric_from`, one mapping for each machine; one empty mapping if None."""
        given: Any = self.metric_from or {}
        parts = [given] if isinstance(given, Mapping) else given
        return [{name: float(value) for name, value in part.items()} for part in parts]

    @property
    def folder_record(self) -> dict[str, Any]:
        """The record of the options in work folders: `record`, but the offset named as in recipes.

        Recipes are the problems of `bigscreen.problems.recipes`.
        """
        return {**self.record, "intercept": RECIPE_OFFSETS[str(self.intercept)]}

    @property
    def divided(self) -> bool:
        """Whether the fit begins with divide and conquer."""
        return DIVIDED.fits(self)

    @property
    def rule(self) -> str:
        """The name of the screening rule of the fit: never "auto", but what it stands for."""
        if self.solver in UNSCREENED:
            return "none"
        if self.screening != "auto":
            return self.screening
        return "none" if self.exact else "gap"

    @property
    def classifies(self) -> bool:
        """Whether the fit is a classification, which may have several problems."""
        return PROBLEMS[self.problem].classifies

    @property
    def offset(self) -> str:
        """The kind of offset that the problem has: "none", "constant" (penalised) or "true".

        They are the names of `bigscreen.problems.recipes`.
        """
        own = PROBLEMS[self.problem].own_offset
        return "true" if own else RECIPE_OFFSETS[str(self.intercept)]

    @property
    def coupled(self) -> bool:
        """Whether the dual has a coupling constraint, so that no variable can move alone."""
        return has_coupling(self.problem, self.offset)

    @property
    def indefinite(self) -> bool:
        """Whether the exact machine's kernel, by its name, is not positive semidefinite.

        A fit with an indefinite kernel ends at a stationary point; ``tol`` is the KKT violation.
        """
        if not self.exact or callable(self.kernel):
            return False
        # Imported here: kernels are slow to import, and --help must not wait for them.
        from bigscreen.kernels.standard import make_kernel

        return not make_kernel(self.kernel, 1.0, self.degree, self.coef0).psd

    def _value(self, name: str) -> Any:
        """Return the value of an option, also of one that is a field of ``tuning``."""
        return getattr(self.tuning if name in TUNED else self, name)

    def _check_scopes(self) -> None:
        """Refuse options that this machine does not use."""
        for name, own in OPTIONS.items():
            value, words = self._value(name), isinstance(own.values, Words)
            asked = own.scopes if value != DEFAULTS[name] else ()
            if isinstance(own.values, Words) and value in own.values.only:
                asked = (*asked, own.values.only[value])
            for scope in asked:
                if scope.refusal and not scope.fits(self):
                    called = f"tuning.{name}" if name in TUNED else name
                    what = f"{called} {value}" if words else called
                    raise InputError(scope.refusal.format(name=what, problem=self.problem))

    def _check_problem(self) -> None:
        """Raise `InputError` if other options do not suit the problem."""
        if PROBLEMS[self.problem].squared:
            self._check_squared()
        if self.problem == "nu-svr" and not (self.exact and not self.early):
            raise InputError("nu-svr is for exact machines, not for landmarks or early ends")
        if self.problem == "nu-svr" and self.tuning.start == "divide":
            raise InputError(
                "nu-svr cannot start from parts of the rows; use tuning.start 'cold' or 'nystrom'"
            )
        common = self.exact or self.solver == "pairs" or self.problem in ("lad", "quantile")
        if self.intercept_scaling != 1 and self.intercept == "penalized" and common:
            raise InputError(
                "intercept_scaling is for c-svc, svr and squared losses on linear machines or "
                "landmarks, by newton or cd; leave it at 1"
            )

    def _check_metric(self) -> None:
        """Refuse values for the machine that a metric is learned from if it does not use them."""
        for name in (name for part in self.metric_machines for name in part):
            if explain_useless(name, self) is not None:
                kernel = name in KERNELS[str(self.kernel)] or name == "gamma"
                has = f"kernel {self.kernel}" if kernel else self.problem
                raise InputError(f"`metric_from` names {name}, which {has} has not; leave it out")

    def _check_squared(self) -> None:
        """Raise `InputError` if other options do not suit a squared loss."""
        plain = self.problem.replace("squared", "c" if self.classifies else "").lstrip("-")
        for name, asked in (
            ("an exact machine", self.exact),
            (f"solver {self.solver}", self.solver in ("pairs", "interior")),
            ("divide and conquer", self.divided),
            ("`tuning.start='nystrom'`", self.tuning.start == "nystrom"),
        ):
            if asked:
                raise InputError(
                    f"{name} does not solve {self.problem}, whose losses are squared: ask for a "
                    f"linear machine or landmarks, solver newton or cd, or for {plain}"
                )

    def _check_solver(self) -> None:
        """Raise `InputError` if the solver does not suit the problem or other options."""
        if self.solver in STOCHASTIC:
            self._check_stochastic()
        if self.solver == "cd" and self.coupled:
            nu = "nu" in PROBLEMS[self.problem].parameters
            raise InputError(
                f"coordinate descent cannot fit {self.problem if nu else 'an unpenalised offset'}, "
                "which ties the variables to each other; use the newton solver"
                + (", or pairs" if nu else ", pairs, or intercept penalized")
            )

    def _check_device(self) -> None:
        """Refuse a device for machines and solvers that only the CPU computes."""
        if self.device != "cuda":
            return
        if self._kernel_is_given or self.early:
            what = "an early machine" if self.early else "a given kernel"
            raise InputError(f"{what} is computed on the CPU; leave out `device`")
        if not self.can_use_device:
            raise InputError(
                f"solver {self.solver} computes on the CPU, and solver {self._device_solver} on "
                "device cuda; leave out `solver`, or `device`"
            )

    @property
    def can_use_device(self) -> bool:
        """Whether a device other than the CPU can compute this fit, as far as options tell."""
        given = self._kernel_is_given or self.early
        return not given and self.solver in ("auto", self._device_solver)

    @property
    def _device_solver(self) -> str:
        """The solver of this machine on a device other than the CPU."""
        return EXACT_DEVICE_SOLVER if self.exact else DEVICE_SOLVER

    @property
    def _kernel_is_given(self) -> bool:
        """Whether the kernel is a function or a precomputed matrix."""
        return callable(self.kernel) or self.kernel == "precomputed"

    def _check_stochastic(self) -> None:
        """Refuse problems that stochastic solvers do not solve."""
        squared = PROBLEMS[self.problem].squared
        if squared or "nu" in PROBLEMS[self.problem].parameters:
            raise InputError(
                f"solver {self.solver} is for losses that grow no faster than the error, without "
                f"a total to meet, and {self.problem} "
                f"{'squares its errors' if squared else 'has a nu'}; use the newton solver"
            )
        if self.solver == "pegasos" and self.coupled:
            raise InputError(
                "pegasos has no unpenalised offset; use intercept penalized, or solver snacks"
            )

    def _check_exact(self) -> None:
        """Refuse kernels and solvers that do not go with an exact machine, or only with one."""
        given = self._kernel_is_given
        if given and not self.exact:
            kernel = "a precomputed kernel or one that is a function"
            raise InputError(ONLY_EXACT.format(name=kernel))
        if self.exact and self.solver in ("newton", "cd", "interior", *UNSCREENED):
            raise InputError(
                f"solver {self.solver} needs landmarks or a linear machine; "
                "use block or pairs for an exact one"
            )
        if self.indefinite:
            from bigscreen.screening.dynamic import check_rule  # see `indefinite`

            check_rule(self.rule, definite=False)
        stored = self.exact or self.kernel == "linear" or self.tuning.features != "recomputed"
        if self.solver in ("cd", "interior", "pairs") and not stored:
            raise InputError(
                f"solver {self.solver} needs stored features; use `tuning.features='auto'`"
            )

    def _check_start(self) -> None:
        """Raise `InputError` if the start of the solve does not suit other options."""
        if self.early and self.probability:
            raise InputError(
                "early stops after the parts, of which nothing is fitted again without some rows; "
                "leave out early, or probability"
            )
        start = self.tuning.start
        if self.early and start not in ("auto", "divide"):
            raise InputError(
                f"early stops after the parts; it does not go with `tuning.start={start!r}`"
            )
        on_device = self.device == "cuda" and not self.exact
        if (on_device or self.solver == "dense") and start not in ("auto", "cold"):
            raise InputError(
                f"{'device cuda' if on_device else 'solver dense'} begins a fit at zero, not at "
                f"`tuning.start={start!r}`; use `tuning.start='cold'`, or leave out "
                f"`{'device' if on_device else 'solver'}`"
            )
        if start == "nystrom" and (self.kernel == "precomputed" or callable(self.kernel)):
            raise InputError(
                "`tuning.start='nystrom'` needs a kernel with a name; use `tuning.start='cold'` or "
                "`tuning.start='divide'`"
            )
        if start == "nystrom" and self.kernel == "linear" and not self.exact:
            raise InputError(
                "a linear machine has no landmarks for `tuning.start='nystrom'`; use "
                "`tuning.start='cold'` or `tuning.start='divide'`"
            )


def _to_plain(value: Any) -> Any:
    """Convert a numpy number to a Python number."""
    return value.item() if hasattr(value, "item") else value


def has_coupling(problem: str, offset: str) -> bool:
    """Whether the dual of a problem with this offset has a coupling constraint."""
    return "nu" in PROBLEMS[problem].parameters or offset == "true"


OPTIONS: dict[str, Option] = {
    **{name: own for name, own in options_of(TrainOptions).items() if name != "tuning"},
    **TUNED,
}
"""All options of a fit by name, including those of `Tuning`."""

DEFAULTS: dict[str, Any] = {
    **{own.name: own.default for own in fields(TrainOptions) if own.name != "tuning"},
    **TUNED_DEFAULTS,
}


def flag(name: str) -> str:
    """Return the name of an option on the command line."""
    return OPTIONS[name].typed(name)


def explain_useless(name: str, options: Any) -> str | None:
    """Return the command line's message for an option that this machine does not use, or None."""
    for scope in OPTIONS[name].scopes:
        if not scope.fits(options):
            return scope.where.format(problem=options.problem, kernel=options.kernel)
    return None


TrainOptions.__doc__ = make_docstring(TrainOptions, "The options of a fit.")
