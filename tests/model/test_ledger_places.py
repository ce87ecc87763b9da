"""Ledgers find rows by their numbers in the source."""

import numpy as np

from bigscreen.model.ledger import DualPoint, Ledger


def test_positions_of_known_rows_and_minus_1_for_others():
    ledger = Ledger(np.zeros(4, np.float16), 0.1, np.array([1, 3, 4, 8]))
    np.testing.assert_array_equal(ledger.places(np.array([8, 0, 3, 9, 1])), [3, -1, 1, -1, 0])
    whole = Ledger(np.zeros(3, np.float16), 0.1)
    np.testing.assert_array_equal(whole.places(np.array([2, 0, 5])), [2, 0, -1])
    assert len(whole.places(np.zeros(0, np.int64))) == 0


def test_a_dual_point_follows_its_rows():
    rng = np.random.default_rng(0)
    numbers = rng.permutation(100)[:60]
    places = np.sort(rng.choice(60, 7, replace=False))
    dual = DualPoint(np.zeros(1), 0.0, 0.0, places, np.arange(7.0))
    margins = rng.normal(size=60).astype(np.float16)
    found = Ledger(margins, 0.1, None, dual).renumber(numbers)
    np.testing.assert_array_equal(found.rows, np.sort(numbers))
    np.testing.assert_array_equal(found.margins, margins[np.argsort(numbers)])
    np.testing.assert_array_equal(found.dual.places, np.sort(found.dual.places))
    for place, alpha in zip(found.dual.places, found.dual.alpha, strict=True):
        assert numbers[places[int(alpha)]] == found.rows[place]
