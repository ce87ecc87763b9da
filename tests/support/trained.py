"""Fits on two threads, without what they warn of."""

import warnings

from bigscreen.fleet.inline import Inline
from bigscreen.train.run import train


def fitted(data, options, report=lambda event: None):
    """The model of a data set."""
    with Inline(2) as fleet, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return train(data, options, fleet, report)


def proofs(model):
    """Its certificates."""
    return model.provenance["certificates"]
