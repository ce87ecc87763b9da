"""What columns for missing values, and encodings of a text column of many kinds, bring to a model.

    python -m pipelines.bench.encodings [--parts gaps kinds] [--seeds 3] [--rows 1500] [--out DIR]

gaps: values of real tables are taken out, and the median replaces them; compared with the same
table and a column of 0 and 1 for each column that lacks values, which says where one is missing.
Values go missing by chance, or because of what they are (40 % of those above the column's median),
or because of the label (30 % of one half of the outcomes, 10 % of the other). In the made-up table
`people` they are missing by chance. HistGradientBoosting takes the missing values as they are.

kinds: a column of many kinds is left out, or becomes a column of 0 and 1 for each kind (one-hot),
2^6 or 2^10 hashed ones, the logarithm of how many learned rows have the kind (count), or one-hot
and count. Soil is covtype's, service is KDD-99's, and places are houses' longitude and latitude,
which are cells of a tenth of a degree, as a zip code is.

The machine is exact; `tune` chooses rbf or laplacian, of three values of gamma and three of C, by
three folds of the learned rows. A fifth of the rows judges, at most 3,000.
"""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import warnings
from collections import Counter
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.feature_extraction import FeatureHasher
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from bigscreen.data.memory import MemoryDataset
from bigscreen.fleet.inline import Inline
from bigscreen.options.train import TrainOptions
from bigscreen.train.kernel import gamma_scale
from bigscreen.tune.options import TuneOptions
from bigscreen.tune.search import tune
from pipelines.bench import common, first_models, tables

GAPS = ("people", *tables.FILES)
KERNELS = ("rbf", "laplacian")
WAYS = ("chance", "value", "label")
KINDS = ("soil", "service", "places")
ENCODINGS = ("left out", "one-hot", "hash:6", "hash:10", "count", "one-hot and count")


def scaled(X: np.ndarray, learned: np.ndarray) -> np.ndarray:
    """Scale columns by the learned rows, but for columns of 0 and 1, as `ingest` does."""
    truths = np.isin(X, (0, 1)).all(axis=0)
    out = StandardScaler().fit(X[learned]).transform(X)
    out[:, truths] = X[:, truths]
    return out


def error_of(X: Any, y: np.ndarray, regression: bool, learned: Any, held: Any) -> float:
    """Search and fit on the learned rows; return the error of the held rows, as `tables` has it."""
    X = scaled(X, learned)
    if regression:
        y = (y - y[learned].mean()) / y[learned].std()
    data = MemoryDataset(X[learned], y[learned], None if regression else [0, 1])
    fit = TrainOptions(**({"problem": "svr", "epsilon": 0.05} if regression else {}))
    with Inline(1) as fleet:
        gammas = {
            kernel: gamma_scale(data, fleet, kernel) * 4.0 ** np.arange(-2, 1) for kernel in KERNELS
        }
        model = tune(data, TuneOptions(fit, gammas, np.logspace(0, 2, 3), None, 3), fleet)
    return judge(model.predict(X[held]), y[held], regression)


def judge(answers: np.ndarray, y: np.ndarray, regression: bool) -> float:
    """Return the part of wrong labels, or the root mean square over the targets' deviation."""
    if regression:
        return float(np.sqrt(np.mean(np.square(answers - y))) / y.std())
    return float(np.mean(answers != y))


def boosting(X: Any, y: np.ndarray, regression: bool, learned: Any, held: Any, seed: int) -> float:
    """Fit boosted trees by their defaults; return the error of the held rows."""
    kind = HistGradientBoostingRegressor if regression else HistGradientBoostingClassifier
    answers = kind(random_state=seed).fit(X[learned], y[learned]).predict(X[held])
    return judge(answers, y[held], regression)


def people() -> tuple[np.ndarray, np.ndarray, bool]:
    """Return the customers of `first_models` as columns, with their missing numbers as NaN."""
    rows = first_models.people()[1:]
    joined = np.array([row[1] for row in rows], "M8[D]").astype(float)
    cells = [(row[2] or "nan", row[3].replace("NA", "nan"), row[6]) for row in rows]
    words = OneHotEncoder(sparse_output=False).fit_transform([[row[4], row[5]] for row in rows])
    X = np.column_stack([joined, np.array(cells, float), words])
    return X, np.array([row[7] == "yes" for row in rows]).astype(int), False


def split(n: int, rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of the learned rows and of the held ones, by chance."""
    rest, held = np.split(np.random.default_rng(seed).permutation(n), [int(0.8 * n)])
    return rest[:rows], held[:3000]


def make_gaps(X: np.ndarray, y: np.ndarray, way: str, seed: int) -> np.ndarray:
    """Take out values of half of the columns that have more than ten kinds of values."""
    draw, out = np.random.default_rng(seed), X.copy()
    high = y > np.median(y) if len(np.unique(y)) > 2 else y == 1
    for c in range(X.shape[1]):
        if len(np.unique(X[:, c])) <= 10 or draw.random() < 0.5:
            continue
        chance = {
            "chance": np.full(len(y), 0.2),
            "value": 0.4 * (X[:, c] > np.median(X[:, c])),
            "label": np.where(high, 0.3, 0.1),
        }[way]
        out[draw.random(len(y)) < chance, c] = np.nan
    return out


def gaps(name: str, way: str, seed: int, rows: int) -> dict[str, float]:
    """Return the errors with the median alone, with columns for what is missing, and of trees."""
    X, y, regression = people() if name == "people" else tables.table(name)
    learned, held = split(len(y), rows, seed)
    if name != "people":
        X = make_gaps(X, y, way, seed)
    own = (y, regression, learned, held)
    found = {}
    for who, more in (("median", False), ("median and columns", True)):
        filler = SimpleImputer(strategy="median", add_indicator=more).fit(X[learned])
        found[who] = error_of(filler.transform(X), *own)
    return {**found, "boosting": boosting(X, *own, seed)}


def table_of_kinds(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool]:
    """Return columns without the one of many kinds, its texts, outcomes, whether they are targets.

    Of KDD-99 the other columns of text are left out; its label is normal or not.
    """
    if name == "service":
        with gzip.open(common.file("kddcup99/kddcup.data_10_percent.gz"), "rt") as file:
            rows = [*csv.reader(file)]
        some = np.random.default_rng(0).choice(len(rows), 50_000, replace=False)
        rows = [rows[k] for k in some]
        X = np.array([[row[0], *row[4:-1]] for row in rows], float)
        y = np.array([row[-1] != "normal." for row in rows]).astype(int)
        return X, np.array([row[2] for row in rows], object), y, False
    X, y, regression = tables.table("covtype" if name == "soil" else "houses")
    if name == "soil":
        return X[:, :14], X[:, 14:].argmax(axis=1).astype(str).astype(object), y, regression
    cells = [f"{a:.1f} {b:.1f}" for a, b in X[:, :2]]
    return X[:, 2:], np.array(cells, object), y, regression


def encoded(texts: np.ndarray, how: str, learned: np.ndarray) -> list[np.ndarray]:
    """Return the columns that a text column becomes; only learned rows teach what they are."""
    if how == "left out":
        return []
    if how == "one-hot and count":
        return [*encoded(texts, "one-hot", learned), *encoded(texts, "count", learned)]
    if how.startswith("hash:"):
        width = 1 << int(how.removeprefix("hash:"))
        made = FeatureHasher(width, input_type="string", alternate_sign=False)
        return [csr_array(made.transform([[text] for text in texts])).toarray()]
    if how == "count":
        counts = Counter(texts[learned])
        return [np.log1p([[counts[text]] for text in texts])]
    made = OneHotEncoder(sparse_output=False, handle_unknown="ignore").fit(texts[learned, None])
    return [made.transform(texts[:, None])]


def kinds(name: str, seed: int, rows: int) -> dict[str, float]:
    """Return the error with each encoding of a table's column of many kinds."""
    X, texts, y, regression = table_of_kinds(name)
    learned, held = split(len(y), rows, seed)
    return {
        how: error_of(np.hstack([X, *encoded(texts, how, learned)]), y, regression, learned, held)
        for how in ENCODINGS
    }


def main() -> None:
    """Run, print, and write the record."""
    parser = common.arguments(__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=("gaps", "kinds"), default=["gaps", "kinds"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1500, help="learn from at most these [1500]")
    options = parser.parse_args()
    record: dict[str, list[dict[str, float]]] = {}
    jobs = [
        *((name, way) for name in GAPS for way in WAYS if name != "people" or way == "chance"),
        *((name, "kinds") for name in KINDS),
    ]
    jobs = [job for job in jobs if ("kinds" if job[1] == "kinds" else "gaps") in options.parts]
    for (name, way), seed in itertools.product(jobs, range(options.seeds)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            args = (seed, options.rows)
            found = kinds(name, *args) if way == "kinds" else gaps(name, way, *args)
        record.setdefault(f"{name}, {way}", []).append(found)
        print(name, way, seed, json.dumps(found), flush=True)
    for part in options.parts:
        own = {job: found for job, found in record.items() if ("kinds" in job) == (part == "kinds")}
        heads = [*next(iter(own.values()))[0]]
        lines = []
        for job, found in own.items():
            each = [np.array([one[who] for one in found]) for who in heads]
            lines.append([job, *(f"{np.mean(e):.4f} +- {np.std(e):.4f}" for e in each)])
        common.show(f"{part}: errors, mean and deviation over seeds", ("table", *heads), lines)
    common.save(options.out, "encodings", record)


if __name__ == "__main__":
    main()
