"""Preparations encode and scale source rows, and survive JSON."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from store_tables import assert_same_features

from bigscreen.data.preparation import Preparation
from bigscreen.errors import InputError


def test_categories_become_one_hot_features():
    preparation = Preparation(
        n_raw=3, names=["age", "colour", "size"], categories={1: ["red", "green", "blue"]}
    )
    X = np.array([[1.5, 2, 7], [2.5, -1, 8], [3.5, 0, 9]])
    expected = [[1.5, 0, 0, 1, 7], [2.5, 0, 0, 0, 8], [3.5, 1, 0, 0, 9]]
    found = preparation.expand(X)
    assert found.dtype == X.dtype and preparation.n_features == 5
    np.testing.assert_array_equal(found, expected)
    for wrong in (3, -2, 0.5, np.nan):
        X[1, 1] = wrong
        with pytest.raises(InputError, match="row 1, column 'colour'"):
            preparation.expand(X)
    with pytest.raises(InputError, match="3 columns"):
        preparation.expand(X[:, :2])
    with pytest.raises(InputError, match="sparse rows"):
        preparation.expand(csr_array(X[:, :2]))


def test_features_are_scaled_in_float64():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, 4)).astype(np.float32)
    offset, factor = rng.normal(size=4), rng.random(4)
    both = Preparation(n_raw=4, scaling="standard", offset=offset, factor=factor)
    np.testing.assert_allclose(both.scale(X), (X - offset) * factor, rtol=1e-5, atol=1e-6)
    assert both.scale(X).dtype == np.float32
    with pytest.raises(InputError, match="fill sparse rows"):
        both.scale(csr_array(X))
    only = Preparation(n_raw=4, scaling="divide:255", factor=factor)
    assert_same_features(only.scale(csr_array(X)), csr_array(only.scale(X)))
    with pytest.raises(InputError, match="4 features"):
        only.scale(X[:, :3])
    assert Preparation.none().scale(X) is X
    wide = Preparation(n_raw=6).expand(csr_array(X))
    assert wide.shape == (20, 6) and (wide.toarray()[:, 4:] == 0).all()


@settings(max_examples=30, deadline=None)
@given(
    values=st.lists(st.floats(-1e6, 1e6), min_size=4, max_size=4),
    labels=st.lists(st.one_of(st.text(max_size=4), st.integers()), unique=True, max_size=5),
)
def test_a_preparation_survives_json(values, labels):
    preparation = Preparation(
        n_raw=3,
        names=["a", "b", "c"],
        categories={2: ["u", "v"]},
        scaling="standard",
        offset=np.array(values),
        factor=np.array(values) / 3,
        labels=labels,
        positive=labels[0] if labels else None,
    )
    again = Preparation.from_dict(json.loads(json.dumps(preparation.to_dict())))
    assert again == preparation and again.fingerprint == preparation.fingerprint
    np.testing.assert_array_equal(again.offset, preparation.offset)
    again.scaling = "minmax"
    assert again != preparation and again.fingerprint != preparation.fingerprint


def test_invalid_preparations_are_refused():
    for wrong in (
        {"categories": {0: ["a"]}},
        {"n_raw": 2, "categories": {2: ["a"]}},
        {"n_raw": 2, "names": ["a"]},
        {"n_raw": 2, "factor": [1.0]},
        {"factor": [np.nan]},
    ):
        with pytest.raises(InputError):
            Preparation(**wrong)
    with pytest.raises(InputError, match="cannot be read"):
        Preparation.from_dict({"scaling": "none"})
