"""Landmarks that are given: the machine of equal rows, from files, of mapped and shifted rows."""

import contracts
import numpy as np
import pytest
from cli_world import bigscreen, succeed, write_csv
from scipy import sparse

from bigscreen import InputError, TrainOptions
from bigscreen.amend.request import options_of
from bigscreen.data.dataset import Dataset
from bigscreen.data.memory import MemoryDataset
from bigscreen.features.landmarks import GivenLandmarks
from bigscreen.fleet.inline import Inline
from bigscreen.model.model import Model
from bigscreen.model.solved_path import SolvedPath
from bigscreen.path.options import PathOptions
from bigscreen.path.run import train_path
from bigscreen.train.run import train

HOW = {"gamma": 0.3, "seed": 2}


@pytest.fixture(scope="module")
def fleet():
    with Inline(1) as fleet:
        yield fleet


def kinds():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4))
    y = (X[:, 0] + X[:, 1] ** 2 > 0.5).astype(int)
    yield "float32", X.astype(np.float32), y
    yield "far", X + 1e5, y
    yield "sparse", sparse.csr_array(X * (X > 0), dtype=np.float32), y


@pytest.mark.parametrize(("name", "X", "y"), [*kinds()])
@pytest.mark.parametrize("metric", ["none", "diagonal"])
def test_given_landmarks_make_the_machine_of_equal_rows(name, X, y, metric, fleet):
    if metric != "none" and name == "far":
        pytest.skip("the metric's first machine chooses other landmarks")
    data = MemoryDataset(X, y, [0, 1])
    chosen = train(data, TrainOptions(landmarks=25, metric_learning=metric, **HOW), fleet)
    ids = np.array(chosen.provenance["nystrom"]["rows"])
    given = GivenLandmarks(data.rows(ids))
    options = TrainOptions(components=given, metric_learning=metric, **HOW)
    assert options.landmarks == 25
    made = train(data, options, fleet)
    assert "rows" not in made.provenance["nystrom"]
    if metric == "none":
        assert made.coef.tobytes() == chosen.coef.tobytes()
        dense = [m.landmarks.toarray() if name == "sparse" else m.landmarks for m in (made, chosen)]
        np.testing.assert_array_equal(*dense)
    else:
        assert made.preparation.metric is not None and made.coef.shape == (1, 25)
        found, mapped = made.landmarks, made.preparation.map(given.X)
        assert abs(found - mapped).max() == 0


def test_a_path_of_given_landmarks_has_their_machines(fleet):
    data = contracts.rows(0, n=300)
    how = TrainOptions(landmarks=30, **HOW)
    chosen = train_path(data, PathOptions(how, [0.1, 1.0]), fleet).model(1)
    given = GivenLandmarks(np.concatenate([chosen.landmarks, chosen.landmarks[:5]]))
    made = train_path(data, PathOptions(TrainOptions(components=given, **HOW), [0.1, 1.0]), fleet)
    # (Landmarks that repeat each other add nothing.)
    X = data.X(0, 300)
    np.testing.assert_allclose(made.model(1).scores(X), chosen.scores(X), atol=1e-2)
    assert made.model(1).landmarks.shape[0] == 35


def test_more_landmarks_than_rows_and_other_columns(fleet):
    data = contracts.rows(0, n=60)
    Z = np.random.default_rng(1).normal(size=(90, data.n_features)).astype(np.float32)
    made = train(data, TrainOptions(components=GivenLandmarks(Z), **HOW), fleet)
    assert made.provenance["certificates"][0]["relative_gap"] <= 1e-3
    assert options_of(made).components.fingerprint == GivenLandmarks(Z).fingerprint
    with pytest.raises(InputError, match="the landmarks have 2 columns and the rows have"):
        train(data, TrainOptions(components=GivenLandmarks(Z[:, :2]), **HOW), fleet)
    with pytest.raises(InputError, match="components must be a GivenLandmarks"):
        TrainOptions(components=Z)
    with pytest.raises(InputError, match="components is for landmarks"):
        TrainOptions(components=GivenLandmarks(Z), exact=True)


def test_a_file_of_landmarks_is_prepared_as_the_rows_are(tmp_path):
    table, few = write_csv(tmp_path / "all.csv"), write_csv(tmp_path / "few.csv", 12, seed=1)
    store, own = tmp_path / "all.store", tmp_path / "own.store"
    succeed("ingest", table, store, "--scale", "standard")
    succeed("ingest", few, own, "--like", store)
    by_file, by_store = tmp_path / "file.bsm", tmp_path / "store.bsm"
    succeed("fit", store, by_file, "--landmarks", few, "--gamma", 1, "--threads", 1)
    succeed("fit", store, by_store, "--landmarks", own, "--gamma", 1, "--threads", 1)
    rows, models = Dataset.open(own), [Model.load(by_file), Model.load(by_store)]
    found = [np.sort(model.landmarks, axis=0) for model in models]
    np.testing.assert_array_equal(found[0], np.sort(rows.X(0, 12), axis=0))
    np.testing.assert_array_equal(found[1], found[0])
    said = succeed("explain", by_file, store, "--row", 0, "--top", 2)
    assert "landmarks that add most" in said
    path = tmp_path / "path.bsp"
    succeed("path", store, path, "--landmarks", few, "--gamma", 1, "--C", "1,10", "--threads", 1)
    assert SolvedPath.load(path).model(0).landmarks.shape == (12, 3)
    tuned = tmp_path / "tuned.bsm"
    grid = ["--gamma", ".5,1", "--C", "1,10", "--folds", 2, "--threads", 1]
    succeed("tune", store, tuned, "--landmarks", few, *grid)
    np.testing.assert_array_equal(np.sort(Model.load(tuned).landmarks, axis=0), found[0])
    succeed("tune", store, tuned, "--landmarks", few, *grid, "--resume")  # (it is finished)
    other = bigscreen("tune", store, tuned, "--landmarks", 12, *grid, "--resume")
    assert other.exit_code == 2 and "components was" in other.stderr


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["x0,x1,other", "1,2,3"], "no column 'x2'"),
        (["x0,x1,x2", "1,,3"], "the value is missing"),
        (None, "a whole number, at least 1, or a file of rows, and there is no file"),
    ],
)
def test_files_that_are_no_landmarks_are_refused_in_one_sentence(lines, said, tmp_path):
    succeed("ingest", write_csv(tmp_path / "all.csv", 60), tmp_path / "s")
    file = tmp_path / "few.csv"
    if lines is not None:
        file.write_text("\n".join(lines) + "\n")
    result = bigscreen("fit", tmp_path / "s", tmp_path / "m", "--landmarks", file)
    assert result.exit_code == 2 and said in result.stderr and "Traceback" not in result.stderr
    assert not (tmp_path / "m").exists()
    scaled = tmp_path / "scaled.store"
    succeed("ingest", tmp_path / "all.csv", scaled, "--scale", "minmax")
    result = bigscreen("fit", tmp_path / "s", tmp_path / "m", "--landmarks", scaled)
    assert "was scaled or encoded otherwise" in result.stderr
