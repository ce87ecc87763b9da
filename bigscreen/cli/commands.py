"""The group of all commands. Commands import heavy modules only when they run."""

import click

from bigscreen.cli.amend import amend, compress
from bigscreen.cli.apply import evaluate, predict
from bigscreen.cli.cluster_check import cluster_check
from bigscreen.cli.common import Commands
from bigscreen.cli.demo import demo
from bigscreen.cli.explain import explain
from bigscreen.cli.export import export, import_
from bigscreen.cli.fit import fit, plan
from bigscreen.cli.info import info
from bigscreen.cli.ingest import ingest
from bigscreen.cli.path import path, pick
from bigscreen.cli.report import report
from bigscreen.cli.resample import resample
from bigscreen.cli.rows import rows
from bigscreen.cli.tune import tune
from bigscreen.cli.warmup import warmup


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="bigscreen")
def group() -> None:
    """Support vector machines on data larger than memory, with a proof of how good the fit is.

    First see it work on made-up data, with nothing to prepare:

    \b
      bigscreen demo

    Then from your own file to predictions:

    \b
      bigscreen ingest my.csv train.store --label y --holdout .2
      bigscreen fit train.store model.bsm
      bigscreen evaluate model.bsm train-holdout.store

    \b
    Words used everywhere:
      store     a folder that ingest makes from your files, read in pieces
      landmark  one of the M rows that all rows are compared with
      gamma     how quickly likeness falls with distance: larger bends more
      C         what a mistake on a row costs: larger fits the training harder
      gap       how far the model can be from the best one, proved over every row
    """


_COMMANDS = (
    demo,
    ingest,
    info,
    plan,
    fit,
    path,
    pick,
    tune,
    resample,
    cluster_check,
    warmup,
)
_OF_A_MODEL = (predict, evaluate, explain, report, rows, amend, compress, export, import_)
for _command in (*_COMMANDS, *_OF_A_MODEL):
    group.add_command(_command)
