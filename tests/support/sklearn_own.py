"""A pytest plugin that runs the installed scikit-learn's tests of `sklearn.svm` on our machines.

    python -m pytest -p sklearn_own --own-results FILE --pyargs sklearn.svm.tests.test_svm

Before a test module is imported, the classes in the namespace `sklearn.svm` are replaced by
bigscreen's classes of the same name. The outcome of each case is written to FILE as JSON.
"""

import json
from pathlib import Path

from sklearn import svm

import bigscreen

NAMES = ("SVC", "NuSVC", "OneClassSVM", "SVR", "NuSVR", "LinearSVC", "LinearSVR")


def pytest_addoption(parser):
    parser.addoption("--own-results", type=Path, help="file for the outcome of every case")


def pytest_configure(config):
    for name in NAMES:
        if hasattr(bigscreen, name):
            setattr(svm, name, getattr(bigscreen, name))
    config.outcomes = {}


def pytest_runtest_makereport(item, call):
    """Record the worst outcome of set-up, call and tear-down, with the error's last line."""
    failed = call.excinfo is not None
    skipped = failed and call.excinfo.typename in ("Skipped", "XFailed")
    name = f"{item.module.__name__.rpartition('.')[2]}::{item.name}"
    if call.when == "call" or failed:
        outcome = "skipped" if skipped else "failed" if failed else "passed"
        told = call.excinfo.exconly() if failed else ""
        item.config.outcomes[name] = {"outcome": outcome, "told": told}


def pytest_sessionfinish(session):
    path = session.config.getoption("--own-results")
    if path is not None:
        path.write_text(json.dumps(session.config.outcomes))
