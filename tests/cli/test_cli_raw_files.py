"""Commands that read raw files as a model's or a store's rows: arrays without labels, errors."""

import numpy as np
import pytest
from cli_world import bigscreen, succeed, write_csv
from scipy import sparse

from bigscreen.model.model import Model

ROWS = np.random.default_rng(5).normal(size=(12, 3)).round(2)


def refused(*args):
    result = bigscreen(*args)
    assert result.exit_code == 2, result.output
    return " ".join(result.stderr.split())


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """Make a store of 60 rows and a model of it; return their paths."""
    folder = tmp_path_factory.mktemp("raw")
    store, model = folder / "s", folder / "m"
    succeed("ingest", write_csv(folder / "rows.csv", 60), store)
    succeed("fit", store, model, "--exact", "--gamma", 1, "--threads", 1)
    return store, model


@pytest.fixture
def arrays(tmp_path):
    """Files of the same rows: without labels, and with labels in a further column."""
    np.save(tmp_path / "rows.npy", ROWS)
    np.savez(tmp_path / "rows.npz", X=ROWS)
    sparse.save_npz(tmp_path / "sparse.npz", sparse.csr_array(ROWS))
    np.save(tmp_path / "four.npy", np.column_stack([ROWS, ROWS[:, 0] > 0]))
    return tmp_path


def test_arrays_of_the_right_width_need_no_labels(fitted, arrays):
    store, model = fitted
    known = Model.load(model)
    for name in ("rows.npy", "rows.npz", "sparse.npz"):
        succeed("predict", model, arrays / name, arrays / "p.csv", "--overwrite")
        scores = np.genfromtxt(arrays / "p.csv", delimiter=",", skip_header=1)[:, 2]
        np.testing.assert_allclose(scores, known.scores(ROWS)[:, 0], atol=1e-6)
    few = arrays / "rows.npy"
    succeed("fit", store, arrays / "m", "--landmarks", few, "--gamma", 1, "--threads", 1)
    assert Model.load(arrays / "m").landmarks.shape == (12, 3)
    assert "answer" in succeed("explain", arrays / "m", few, "--row", 11)


def test_an_array_with_a_further_column_is_refused_with_the_command_that_reads_it(fitted, arrays):
    four, (_, model) = arrays / "four.npy", fitted
    said = refused("predict", model, four, arrays / "p.csv")
    assert "has 4 columns, and the rows that it is to be like have 3" in said
    assert f"`bigscreen ingest {four} STORE --like {model} --label COLUMN`" in said
    assert "like have 3" in refused("ingest", four, arrays / "s", "--like", model)


def test_errors_name_the_file_and_what_can_be_done(fitted, tmp_path):
    store, model = fitted
    file = tmp_path / "few.csv"
    file.write_text("x0,x1,x2\n1,2,3\n4,,6\n")
    for how in (
        ("predict", model, file, tmp_path / "p.csv"),
        ("explain", model, file, "--row", 0),
        ("fit", store, tmp_path / "m", "--landmarks", file),
    ):
        said = refused(*how)
        assert "few.csv, line 3, column 'x1': the value is missing; fill it in" in said
        assert "--drop-missing` and give that STORE" in said and "impute" not in said
    said = refused("ingest", file, tmp_path / "s", "--like", model)
    assert "--drop-missing" in said and "impute" not in said
    file.write_text("x0,x1,x2\n1,2,3\n")
    said = refused("explain", model, file, "--row", 1)
    assert said == f"error: {file} has no row 1 of its source"
    assert f"error: {file} has no labelled row" in refused("evaluate", model, file)
