"""Fits on two threads, without warnings."""

import warnings

from bigscreen.fleet.inline import Inline
from bigscreen.train.run import train


def fitted(data, options, report=lambda event: None):
    """Fit a model to a data set."""
    with Inline(2) as fleet, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return train(data, options, fleet, report)


def proofs(model):
    """Return a model's certificates."""
    return model.provenance["certificates"]
