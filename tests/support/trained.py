"""Fits on two threads, without warnings."""

import warnings

from bigscreen.fleet.blas import blas_threads
from bigscreen.fleet.inline import Inline
from bigscreen.plan.plan import plan_on
from bigscreen.train.run import train


def fitted(data, options, report=lambda event: None):
    """Fit a model to a data set."""
    with Inline(2) as fleet, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return train(data, options, fleet, report)


def fitted_by(kind, data, options, fleet, plan=None, report=None, **more):
    """Fit a model by this kind of job, with another plan than its own if one is given."""
    plan = plan or plan_on(fleet, data, options)
    with blas_threads(1), kind(data, options, fleet, report, plan, **more) as job:
        job.begin()
        for some in job.turns():
            job.solve(some)
        return job.model()


def proofs(model):
    """Return a model's certificates."""
    return model.provenance["certificates"]
