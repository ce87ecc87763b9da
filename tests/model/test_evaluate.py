"""Metrics against scikit-learn's, and predictions in the source's order."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn import metrics

from bigscreen.data.dataset import Dataset
from bigscreen.data.layout import Layout
from bigscreen.data.memory import MemoryDataset
from bigscreen.data.preparation import Preparation
from bigscreen.data.writer import DatasetWriter
from bigscreen.errors import InputError
from bigscreen.evaluate.evaluate import _auc, evaluate, evaluate_sample
from bigscreen.evaluate.predict import write_predictions
from bigscreen.kernels.standard import make_kernel
from bigscreen.model.model import Model, check_match

D = 6


def make_model(labels: list, preparation: Preparation | None = None) -> Model:
    rng = np.random.default_rng(0)
    scorers = 1 if len(labels) == 2 else len(labels)
    return Model(
        kernel=make_kernel("linear", 1.0, 3, 0.0),
        landmarks=None,
        # Halves, and rows of small integers below: many equal scores for the AUC to get right.
        coef=rng.integers(-2, 3, size=(scorers, D)) / 2,
        intercept=np.zeros(scorers),
        labels=labels,
        preparation=preparation or Preparation.none(),
    )


def make_rows(n: int, labels: list, unlabelled: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    codes = rng.integers(0, len(labels), size=n)
    codes[:unlabelled] = -1
    return rng.integers(-2, 3, size=(n, D)).astype(np.float32), codes


def store(
    path: Path,
    X: np.ndarray,
    y: np.ndarray,
    labels: list | None,
    row_ids: np.ndarray | None = None,
) -> Dataset:
    writer = DatasetWriter(
        path,
        Layout.of(
            n_rows=len(X),
            n_features=X.shape[1],
            sparse=False,
            labels=labels,
            weights=False,
            shard_rows=256,
            chunk_rows=64,
        ),
        Preparation.none(),
    )
    for k in range(writer.n_chunks):
        rows = slice(*writer.chunk(k))
        writer.write(k, X[rows], y[rows], None, None if row_ids is None else row_ids[rows])
    return writer.finish()


@pytest.mark.parametrize("labels", [["a", "b"], [0, 1, 2, 3]])
def test_metrics_are_scikit_learns(tmp_path: Path, labels: list) -> None:
    X, codes = make_rows(1000, labels, unlabelled=37)
    model = make_model(labels)
    found = evaluate(model, store(tmp_path / "s", X, codes, labels))
    known = codes >= 0
    scores = model.scores(X[known])
    truth, guess = codes[known], model.decide(scores)
    assert found["rows"] == known.sum() and found["unlabelled"] == 37
    assert found["accuracy"] == pytest.approx(metrics.accuracy_score(truth, guess), abs=1e-15)
    assert found["error"] == pytest.approx(1 - found["accuracy"], abs=1e-15)
    matrix = metrics.confusion_matrix(truth, guess, labels=range(len(labels)))
    names = [str(label) for label in labels]
    assert [[found["confusion"][i][j] for j in names] for i in names] == matrix.tolist()
    recalls = metrics.recall_score(truth, guess, average=None)
    assert found["balanced_accuracy"] == pytest.approx(recalls.mean(), abs=1e-12)
    parts = metrics.precision_recall_fscore_support(truth, guess, zero_division=0)
    own = [found["by_label"][name] for name in names]
    for name, expected in zip(("precision", "recall", "f1", "rows"), parts, strict=True):
        np.testing.assert_allclose([part[name] or 0 for part in own], expected, atol=1e-12)
    if len(labels) == 2:
        ranked = metrics.average_precision_score(truth, scores[:, 0])
        assert found["average_precision"] == pytest.approx(ranked, abs=1e-12)
        assert found["auc"] == pytest.approx(metrics.roc_auc_score(truth, scores[:, 0]), abs=1e-12)
        assert found["f1"] == pytest.approx(metrics.f1_score(truth, guess), abs=1e-12)
    else:
        assert found["auc"] is None and found["average_precision"] is None
        expected = metrics.f1_score(truth, guess, average="macro")
        assert found["f1"] == pytest.approx(expected, abs=1e-12)


def test_f1_macro_leaves_out_a_label_that_never_occurs() -> None:
    labels = ["a", "b", "never"]
    model = make_model(labels)
    model.intercept[2] = -1000.0
    X, codes = make_rows(300, labels[:2])
    found = evaluate(model, MemoryDataset(X, codes, labels))
    expected = metrics.f1_score(codes, model.decide(model.scores(X)), average="macro")
    assert found["f1"] == pytest.approx(expected, abs=1e-12)


def test_labels_match_by_value_not_by_code() -> None:
    model = make_model(["a", "b"])
    X, codes = make_rows(200, ["a", "b"])
    straight = evaluate(model, MemoryDataset(X, codes, ["a", "b"]))
    turned = evaluate(model, MemoryDataset(X, 1 - codes, ["b", "a"]))
    assert straight == turned


def test_auc_counts_every_pair_across_blocks() -> None:
    rng = np.random.default_rng(5)
    positive, negative = (np.sort(rng.integers(0, 9, size=n).astype(float)) for n in (31, 17))
    pairs = positive[:, None] - negative
    expected = ((pairs > 0).sum() + (pairs == 0).sum() / 2) / pairs.size
    assert _auc(positive, negative, block=7) == expected
    assert _auc(positive, np.empty(0)) is None


def test_one_label_alone_has_no_auc() -> None:
    X, _ = make_rows(50, ["a", "b"])
    found = evaluate(make_model(["a", "b"]), MemoryDataset(X, np.ones(50, int), ["a", "b"]))
    assert found["auc"] is None and found["rows"] == 50


def test_data_that_cannot_be_evaluated_is_refused(tmp_path: Path) -> None:
    X, codes = make_rows(100, ["a", "b"])
    model = make_model(["a", "b"])
    with pytest.raises(InputError, match=r"no labelled row"):
        evaluate(model, MemoryDataset(X, None, []))
    with pytest.raises(InputError, match=r"label c and the model knows only a, b"):
        evaluate(model, MemoryDataset(X, codes, ["a", "c"]))
    narrow = store(tmp_path / "narrow", X[:, :4], codes, ["a", "b"])
    with pytest.raises(InputError, match=r"has 4 features and m\.bsm was fitted on 6.*--like"):
        check_match(model, narrow, "m.bsm")
    scaled = make_model(["a", "b"], Preparation(scaling="divide:2", factor=np.full(D, 0.5)))
    with pytest.raises(InputError, match=r"scaled or encoded otherwise.*--like m\.bsm"):
        check_match(scaled, store(tmp_path / "plain", X, codes, ["a", "b"]), "m.bsm")


def read_text(path: Path) -> tuple[list[str], list[list[str]]]:
    with open(path, newline="") as file:
        header, *rows = csv.reader(file, delimiter="\t" if path.suffix == ".tsv" else ",")
    return header, rows


@pytest.mark.parametrize("labels", [["a, b", "c"], [4, 7], [0.5, 1.0, 2.0]])
def test_predictions_come_in_source_order(tmp_path: Path, labels: list) -> None:
    X, codes = make_rows(700, labels)
    # A hold-out of a file of 2000 rows, shuffled.
    ids = np.random.default_rng(9).permutation(2000)[:700].astype(np.int64)
    dataset, model = store(tmp_path / "s", X, codes, labels, ids), make_model(labels)
    order = np.argsort(ids)
    scores = model.scores(X)[order]
    guess = model.decide(scores)
    chosen = scores[:, 0] if len(labels) == 2 else scores.max(axis=1)
    counts = write_predictions(model, dataset, tmp_path / "out.npy")
    table = np.load(tmp_path / "out.npy", allow_pickle=False)
    np.testing.assert_array_equal(table["row"], ids[order])
    assert table["label"].tolist() == [labels[code] for code in guess]
    np.testing.assert_array_equal(table["score"], chosen)
    assert counts == {str(label): int((guess == c).sum()) for c, label in enumerate(labels)}
    for name in ("out.csv", "out.tsv"):
        write_predictions(model, dataset, tmp_path / name)
        header, rows = read_text(tmp_path / name)
        assert header == ["row", "label", "score"]
        assert [int(row[0]) for row in rows] == ids[order].tolist()
        assert [row[1] for row in rows] == [str(labels[code]) for code in guess]
        assert [float(row[2]) for row in rows] == chosen.tolist()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.csv", "out.npy", "out.tsv", "s"]


def test_predictions_with_all_scores_have_a_column_per_label(tmp_path: Path) -> None:
    labels = [0, 1, 2]
    X, codes = make_rows(130, labels)
    dataset, model = store(tmp_path / "s", X, codes, labels), make_model(labels)
    write_predictions(model, dataset, tmp_path / "out.npy", all_scores=True)
    table = np.load(tmp_path / "out.npy", allow_pickle=False)
    np.testing.assert_array_equal(table["score"], model.scores(X))
    write_predictions(model, dataset, tmp_path / "out.csv", all_scores=True)
    header, rows = read_text(tmp_path / "out.csv")
    assert header == ["row", "label", "score_0", "score_1", "score_2"]
    assert [[float(v) for v in row[2:]] for row in rows] == model.scores(X).tolist()


def test_predictions_of_pairs_are_votes(tmp_path: Path) -> None:
    labels = [0, 1, 2, 3]
    X, codes = make_rows(130, labels)
    dataset = store(tmp_path / "s", X, codes, labels)
    model = make_model(labels)
    pairs = np.random.default_rng(2).integers(-2, 3, size=(6, D)) / 2
    model = replace(model, coef=pairs, intercept=np.zeros(6), strategy="one")
    values = model.decision_values(model.scores(X))
    guess = model.predict(X)
    write_predictions(model, dataset, tmp_path / "all.npy", all_scores=True)
    np.testing.assert_array_equal(np.load(tmp_path / "all.npy")["score"], values)
    write_predictions(model, dataset, tmp_path / "out.npy")
    table = np.load(tmp_path / "out.npy")
    np.testing.assert_array_equal(table["label"], guess)
    np.testing.assert_array_equal(table["score"], values[np.arange(130), guess])
    found = evaluate(model, dataset)
    assert found["accuracy"] == pytest.approx(np.mean(guess == codes)) and found["auc"] is None


def test_an_error_half_way_leaves_nothing(tmp_path: Path) -> None:
    labels = ["a", "b"]
    X, codes = make_rows(300, labels)
    dataset, model = store(tmp_path / "s", X, codes, labels), make_model(labels)
    chunks = sorted(path for path in (tmp_path / "s" / "X" / "c").rglob("*") if path.is_file())
    victim = chunks[2]
    data = bytearray(victim.read_bytes())
    data[10] ^= 255
    victim.write_bytes(data)
    for name in ("out.csv", "out.npy"):
        with pytest.raises(InputError):
            write_predictions(model, dataset, tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_suffix_says_the_format(tmp_path: Path) -> None:
    dataset = MemoryDataset(*make_rows(10, ["a", "b"]), ["a", "b"])
    with pytest.raises(InputError, match=r"out\.xlsx should end in \.csv, \.tsv or \.npy"):
        write_predictions(make_model(["a", "b"]), dataset, tmp_path / "out.xlsx")
    assert not list(tmp_path.iterdir())


def make_kind(kind: str, **parameters: object) -> Model:
    labels = {"regressor": [], "one-class": [-1, 1]}[kind]
    model = make_model(["a", "b"])
    return replace(model, kind=kind, labels=labels, provenance={"parameters": parameters})


def make_targets(n: int, missing: int) -> tuple[np.ndarray, np.ndarray]:
    X, _ = make_rows(n, [0])
    y = X @ np.arange(D) + np.random.default_rng(4).normal(size=n) + 1e3
    y[:missing] = np.nan
    return X, y


def test_regression_is_scikit_learns(tmp_path: Path) -> None:
    X, y = make_targets(900, 40)
    data = store(tmp_path / "s", X, y, None)
    model = make_kind("regressor", problem="quantile", tau=0.3)
    found = evaluate(model, data)
    truth, guess = y[40:], model.scores(X[40:])[:, 0]
    assert (found["rows"], found["unlabelled"]) == (860, 40)
    pairs = {
        "mae": metrics.mean_absolute_error(truth, guess),
        "rmse": metrics.root_mean_squared_error(truth, guess),
        "r2": metrics.r2_score(truth, guess),
        "pinball": metrics.mean_pinball_loss(truth, guess, alpha=0.3),
    }
    assert {name: found[name] for name in pairs} == pytest.approx(pairs, rel=1e-12)
    assert evaluate(model, MemoryDataset(X, y, None)) == pytest.approx(found, rel=1e-12)
    assert evaluate(make_kind("regressor", problem="svr", tau=0.3), data)["pinball"] is None
    same = MemoryDataset(X, np.full(900, 0.1), None)
    assert evaluate(model, same)["r2"] is None


@pytest.mark.parametrize("positive", [None, "1", 3])
def test_one_class_on_labelled_rows(positive: object) -> None:
    labels = [1, 3]
    X, codes = make_rows(1000, labels, unlabelled=100)
    model = make_kind("one-class")
    found = evaluate(model, MemoryDataset(X, codes, labels), positive=positive)
    scores, known = model.scores(X)[:, 0], codes >= 0
    at = 0 if positive == "1" else 1
    expected = metrics.roc_auc_score(codes[known] == at, scores[known])
    assert found["positive"] == labels[at]
    assert found["auc"] == pytest.approx(expected, abs=1e-12)
    assert (found["rows"], found["unlabelled"]) == (1000, 100)
    assert found["outside"] == pytest.approx(np.mean(scores <= 0))
    shares = {str(label): np.mean(scores[codes == c] <= 0) for c, label in enumerate(labels)}
    assert found["outside_by_label"] == pytest.approx(shares)


def test_one_class_on_rows_of_one_label_or_none() -> None:
    X, codes = make_rows(300, ["a", "b"])
    model = make_kind("one-class")
    share = np.mean(model.scores(X) <= 0)
    for data in (MemoryDataset(X, None, []), MemoryDataset(X, np.arange(300.0), None)):
        found = evaluate(model, data)
        assert found["outside"] == share and found["unlabelled"] == 300
        assert found["auc"] is found["positive"] is None and found["outside_by_label"] == {}
    one = evaluate(model, MemoryDataset(X, 0 * codes, ["a"]))
    assert (one["positive"], one["auc"], one["outside_by_label"]) == ("a", None, {"a": share})
    rare = evaluate(model, MemoryDataset(X, 0 * codes, ["a", "b"]))
    assert (rare["positive"], rare["auc"], rare["outside_by_label"]) == ("b", None, {"a": share})


def test_data_that_does_not_suit_the_kind_is_refused() -> None:
    X, codes = make_rows(90, ["a", "b", "c"])
    labelled, targets = MemoryDataset(X, codes, ["a", "b", "c"]), MemoryDataset(X, X[:, 0], None)
    classifier = make_model(["a", "b"])
    for model, data, said in (
        (classifier, targets, "the data has targets and the model predicts labels.*--like MODEL"),
        (make_kind("regressor"), labelled, "has labels and the model predicts numbers"),
        (make_kind("regressor"), MemoryDataset(X, None, None), "has no target, so nothing can"),
        (make_kind("regressor"), MemoryDataset(X, None, []), "has no target, so nothing can"),
        (classifier, MemoryDataset(X, None, None), "has no labelled row"),
        (make_kind("one-class"), labelled, r"has 3 labels \(a, b, c\); say which.*--positive"),
    ):
        with pytest.raises(InputError, match=said):
            evaluate(model, data)
    with pytest.raises(InputError, match="has no label 'd' to be positive; its labels are a, b, c"):
        evaluate(make_kind("one-class"), labelled, positive="d")
    with pytest.raises(InputError, match="has no label 'd' .* its labels are none"):
        evaluate(make_kind("one-class"), targets, positive="d")
    with pytest.raises(InputError, match="positive is for one-class machines"):
        evaluate(classifier, labelled, positive="a")


@pytest.mark.parametrize("kind", ["regressor", "one-class"])
def test_regressors_and_one_class_machines_write_predictions(kind: str, tmp_path: Path) -> None:
    X, y = make_targets(300, 0)
    ids = np.random.default_rng(9).permutation(900)[:300].astype(np.int64)
    data, model = store(tmp_path / "s", X, y, None, ids), make_kind(kind)
    order = np.argsort(ids)
    scores = model.scores(X)[order, 0]
    inside = np.where(scores > 0, 1, -1)
    columns = {"prediction": scores} if kind == "regressor" else {"label": inside, "score": scores}
    counts = write_predictions(model, data, tmp_path / "out.npy", all_scores=True)
    found = {-1: (inside < 0).sum(), 1: (inside > 0).sum()} if kind == "one-class" else {}
    assert counts == {str(label): count for label, count in found.items()}
    table = np.load(tmp_path / "out.npy")
    assert table.dtype.names == ("row", *columns)
    write_predictions(model, data, tmp_path / "out.csv")
    header, rows = read_text(tmp_path / "out.csv")
    assert header == ["row", *columns]
    for j, (name, values) in enumerate({"row": ids[order], **columns}.items()):
        np.testing.assert_array_equal(table[name], values)
        assert [float(row[j]) for row in rows] == values.tolist()


def test_a_sample_has_every_label_in_its_share() -> None:
    X, codes = make_rows(4000, ["a", "b"])
    codes = np.where(np.arange(4000) == 1234, 1, 0)  # one row of the second label
    data, model = MemoryDataset(X, codes, ["a", "b"]), make_model(["a", "b"])
    found = evaluate_sample(model, data, max_rows=100)
    assert found["rows"] == 100 and found["by_label"]["b"]["rows"] == 1
    assert evaluate_sample(model, data, max_rows=4000) == evaluate(model, data)
    assert evaluate_sample(model, data, max_bytes=4 * D * 30)["rows"] == 30
    chunked = MemoryDataset(X, codes, ["a", "b"], chunk_rows=128, shard_rows=128)
    assert evaluate_sample(model, chunked, max_rows=3000)["rows"] == 7 * 128 + 32
