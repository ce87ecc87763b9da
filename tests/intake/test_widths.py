"""svmlight rows that are narrower or wider than the store or the model that they shall be like."""

import warnings

import numpy as np
import pytest
from click.testing import CliRunner
from ingest_cases import in_source_order
from libsvm_files import as_libsvm
from scipy.sparse import csr_array, issparse
from sklearn.datasets import dump_svmlight_file
from sklearn.svm import SVC as PeerSVC

from bigscreen import SVC, LinearSVC, NystroemSVC
from bigscreen.cli.commands import group
from bigscreen.errors import InputError
from bigscreen.export.libsvm import libsvm_scores, read_libsvm
from bigscreen.intake.ingest import ingest

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)


def rows_of(path, width, n=30):
    """Rows in a file of svmlight."""
    Z = np.random.default_rng(width).normal(size=(n, width)).astype(np.float32)
    dump_svmlight_file(Z, np.arange(n) % 2, str(path), zero_based=False)
    return Z


@pytest.mark.parametrize("width", [1, 3, 4, 7])
def test_an_imported_model_answers_as_libsvm_does(tmp_path, width):
    path = as_libsvm(PeerSVC(gamma=0.3).fit(X, Y), tmp_path / "m.model")
    model = read_libsvm(path)
    model.save(tmp_path / "m.bsm")
    Z = rows_of(tmp_path / "z.svm", width)
    made = ingest(tmp_path / "z.svm", tmp_path / "s", like=tmp_path / "m.bsm")
    assert made.store.n_features == max(width, 4)
    beyond = [f"the columns 5 to {width} of the source are beyond"] if width > 4 else []
    assert [note[: len(beyond[0])] for note in made.notes] == beyond
    wanted = libsvm_scores(path, np.pad(Z, ((0, 0), (0, max(4 - width, 0)))))
    np.testing.assert_allclose(model.scores(made.store), wanted, atol=1e-5)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        np.testing.assert_allclose(model.scores(csr_array(Z)), wanted, atol=1e-5)
    assert len(said) == (width > 4)
    for command, out in (("predict", [str(tmp_path / "o.csv")]), ("evaluate", [])):
        args = [command, str(tmp_path / "m.bsm"), str(made.store.path), *out]
        done = CliRunner().invoke(group, args)
        assert done.exit_code == 0, done.output
    with pytest.raises(InputError, match="have 5 features and the model was fitted on 4"):
        model.scores(np.zeros((2, 5), np.float32))


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["none", "standard", "minmax", "divide:2"])
@pytest.mark.parametrize("layout", ["dense", "sparse"])
@pytest.mark.parametrize(
    "machine", [SVC(gamma=0.3), LinearSVC(), NystroemSVC(n_components=20, gamma=0.3)], ids=str
)
def test_more_columns_are_zeros_of_the_fit(tmp_path, machine, scale, layout):
    dump_svmlight_file(X, Y, str(tmp_path / "x.svm"), zero_based=False)
    rows_of(tmp_path / "z.svm", 6)
    narrow = ingest(tmp_path / "x.svm", tmp_path / "n", scale=scale, layout=layout).store
    model = machine.fit(narrow).model_
    later = ingest(tmp_path / "z.svm", tmp_path / "s", like=narrow).store
    assert (
        later.preparation.features_fingerprint == narrow.preparation.widened(6).features_fingerprint
    )
    rows = in_source_order(later)[0].astype(np.float64)
    if model.landmarks is None:
        wanted = rows[:, :4] @ model.coef[0]
    else:
        Z = model.landmarks.toarray() if issparse(model.landmarks) else model.landmarks
        apart = rows[:, None] - np.pad(Z, ((0, 0), (0, 2)))
        wanted = np.exp(-0.3 * np.square(apart).sum(axis=2)) @ model.coef[0]
    np.testing.assert_allclose(model.scores(later)[:, 0], wanted + model.intercept[0], atol=1e-3)


def test_wider_rows_do_not_go_into_tables_or_edits(tmp_path):
    (tmp_path / "a.csv").write_text("a,b,label\n1,2,0\n3,4,1\n")
    table = ingest(tmp_path / "a.csv", tmp_path / "t").store
    rows_of(tmp_path / "z.svm", 6)
    with pytest.raises(InputError, match="go up to 6, and the store it shall be like has 2"):
        ingest(tmp_path / "z.svm", tmp_path / "s", like=table)
    made = ingest(tmp_path / "z.svm", tmp_path / "s").store
    with pytest.raises(InputError, match="6 features and the model was fitted on 2"):
        LinearSVC().fit(table).model_.scores(made)
