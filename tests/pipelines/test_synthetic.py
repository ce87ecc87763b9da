"""The stand-ins have the shapes and the Bayes errors that they state."""

import numpy as np
import pytest
from scipy.sparse import vstack
from scipy.special import expit

from bigscreen.data import synthetic as standins
from bigscreen.data.memory import MemoryDataset
from bigscreen.data.synthetic import Blocks, bayes_error, susy_like
from bigscreen.errors import InputError
from bigscreen.evaluate.evaluate import evaluate
from bigscreen.fleet.inline import Inline
from bigscreen.model.model import Model
from bigscreen.options.train import TrainOptions
from bigscreen.train.run import train
from pipelines.scale import shapes
from pipelines.scale.shapes import HIGGS_RULE, higgs_like, rcv1_like


def data_set(blocks: Blocks, take: slice) -> MemoryDataset:
    """Gather blocks in memory."""
    parts = [blocks.block(k) for k in range(len(blocks))[take]]
    sparse = not isinstance(parts[0][0], np.ndarray)
    X = (vstack if sparse else np.concatenate)([X for X, _ in parts])
    labels, codes = np.unique(np.concatenate([y for _, y in parts]), return_inverse=True)
    return MemoryDataset(X.tocsr() if sparse else X, codes.astype(np.int32), labels.tolist())


def fitted(data: MemoryDataset, **options: object) -> Model:
    with Inline(2) as fleet:
        return train(data, TrainOptions(**options), fleet)


def straight_error() -> float:
    """Integrate the error of ``sign(x_0)``, the best straight classifier of `susy_like`.

    (For any x_0 and radii, x_1 x_2 has either sign with equal chance, and flipping both x_1 and
    x_2 changes nothing else: a convex loss gives them no weight.)
    """
    x, weight = standins._half_normal()
    linear, product = standins.Radii.rule
    straight = linear * x[:, None, None]
    curved = product * x[:, None] * x
    wrong = 0.5 * (expit(-straight - curved) + expit(-straight + curved))
    return float(np.einsum("i,j,k,ijk->", weight, weight, weight, wrong))


@pytest.mark.parametrize("make", [susy_like, higgs_like, rcv1_like])
def test_any_block_can_be_made_alone(make) -> None:
    """A block depends only on the seed and its number; its first rows not on its length."""
    size = make(1).block_rows
    long, short = make(size + 100), make(size + 40)
    assert len(long) == 2 and [X.shape[0] for X, _ in long] == [size, 100]
    (X, y), (X0, y0) = long.block(1), short.block(1)
    np.testing.assert_array_equal(y[:40], y0)
    dense = [x if isinstance(x, np.ndarray) else x.toarray() for x in (X[:40], X0)]
    np.testing.assert_array_equal(*dense)
    assert not np.array_equal(make(40, seed=1).block(0)[1], make(40, seed=0).block(0)[1])
    for k in (-1, 2):
        with pytest.raises(IndexError, match="no block"):
            long.block(k)


def test_no_rows_are_refused() -> None:
    with pytest.raises(InputError, match="at least 1 row"):
        susy_like(0)


def test_higgs_shape_and_error() -> None:
    X, y = higgs_like(1 << 16).block(0)
    assert X.shape == (1 << 16, 28) and X.dtype == np.float32
    np.testing.assert_allclose(X.std(axis=0), 1, atol=0.02)
    straight, curved = HIGGS_RULE
    best = straight * X[:, 0] + curved * X[:, 1] * X[:, 2] > 0
    assert bayes_error(HIGGS_RULE) == pytest.approx(0.27, abs=0.005)
    assert np.mean(best != y) == pytest.approx(bayes_error(HIGGS_RULE), abs=0.007)


def test_susy_shape_and_errors() -> None:
    X, y = susy_like(1 << 16).block(0)
    assert X.shape == (1 << 16, 18) and X.dtype == np.float32 and set(y.tolist()) == {0, 1}
    np.testing.assert_allclose(X.mean(axis=0), 0, atol=0.02)
    np.testing.assert_allclose(X.std(axis=0), 1, atol=0.02)
    assert bayes_error() == pytest.approx(0.2, abs=0.005)
    assert straight_error() >= bayes_error() + 0.03
    # The integrals against the drawn labels, 4 standard deviations.
    linear, product = standins.Radii.rule
    chance = expit(linear * X[:, 0] + product * X[:, 1] * X[:, 2])
    spread = 4 * 0.5 / np.sqrt(len(y))
    assert np.mean((chance > 0.5) != y) == pytest.approx(bayes_error(), abs=spread)
    assert np.mean((X[:, 0] > 0) != y) == pytest.approx(straight_error(), abs=spread)


@pytest.mark.slow
def test_susy_is_curved() -> None:
    """The best linear classifier is 3 points worse than the Bayes error, a kernel comes near it."""
    blocks = susy_like(2 << 16)
    learn, held = data_set(blocks, slice(0, 1)), data_set(blocks, slice(1, 2))
    straight = evaluate(fitted(learn, kernel="linear"), held)["error"]
    curved = evaluate(fitted(learn, gamma=1 / 36, landmarks=200, tol=1e-2), held)["error"]
    assert straight >= bayes_error() + 0.03
    assert straight == pytest.approx(straight_error(), abs=0.006)
    assert bayes_error() - 0.006 <= curved <= 0.215


def test_rcv1_shape() -> None:
    X, y = rcv1_like(1 << 14).block(0)
    assert X.shape == (1 << 14, 47_236) and X.dtype == np.float32 and X.indices.dtype == np.int32
    assert X.has_sorted_indices and set(y.tolist()) == {-1, 1}
    assert X.nnz / X.shape[0] == pytest.approx(75, abs=3)
    np.testing.assert_allclose(np.add.reduceat(X.data.astype(float) ** 2, X.indptr[:-1]), 1, 1e-5)
    assert abs(y.mean()) < 0.1
    # Zipf: a word's frequency falls like one over its rank.
    often = np.sort(np.bincount(X.indices, minlength=X.shape[1]))[::-1]
    assert 0.7 < np.log(often[200] / often[2000]) / np.log(10) < 1.2


def test_rcv1_labels_follow_a_linear_rule() -> None:
    X, y = rcv1_like(1 << 14).block(0)
    rule = shapes._language(0).rule
    assert np.count_nonzero(rule) == 1000
    assert np.mean(np.sign(X @ rule) != y) == pytest.approx(shapes.RCV1_NOISE, abs=0.005)
