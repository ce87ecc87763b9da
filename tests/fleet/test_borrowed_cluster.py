"""A fit can use a Dask client or cluster of the caller, which it leaves running."""

import pickle
import re
import subprocess
import sys

import numpy as np
import pytest
from distributed import Client, LocalCluster, performance_report
from places import ROOT
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

import bigscreen
from bigscreen.errors import InputError


def machine(**how):
    return bigscreen.NystroemSVC(n_components=30, random_state=0, **how)


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(800, 5))
    return X, (X[:, 0] + X[:, 1] ** 2 > 0.5).astype(int)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["tcp://", "tls://", "inproc://"])
def test_a_fit_on_a_client_or_a_cluster_is_the_fit_here(rows, tmp_path, protocol):
    secure = {"protocol": protocol, "security": True} if protocol == "tls://" else {}
    kind = {"processes": protocol != "inproc://", "dashboard_address": None, **secure}
    here = machine().fit(*rows)
    with LocalCluster(n_workers=1, threads_per_worker=1, **kind) as cluster:
        with Client(cluster) as client:
            for scheduler in (client, cluster):
                there = machine(scheduler=scheduler, work=str(tmp_path)).fit(*rows)
                assert np.array_equal(there.coef_, here.coef_)
            assert client.submit(lambda x: x + 1, 1).result() == 2
        assert cluster.scheduler_address.startswith(protocol)
        with bigscreen.connect(cluster) as fleet:
            assert fleet.workers == 1
    with pytest.raises(InputError, match="no scheduler any more; make a new one"):
        machine(scheduler=cluster, work=str(tmp_path)).fit(*rows)


def test_copies_of_an_estimator_share_its_client(rows, tmp_path):
    with (
        LocalCluster(processes=False, n_workers=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        one = machine(scheduler=client, work=str(tmp_path))
        assert clone(one).scheduler is client
        search = GridSearchCV(one, {"C": [0.1, 1.0]}, cv=2).fit(*rows)
        assert search.best_estimator_.scheduler is client
        again = pickle.loads(pickle.dumps(search.best_estimator_))
        assert again.scheduler == client.scheduler.address
        assert np.array_equal(again.predict(rows[0]), search.predict(rows[0]))


def test_the_performance_report_of_dask_shows_a_fit(rows, tmp_path):
    pytest.importorskip("bokeh", reason="Dask's page is made by bokeh")
    with (
        LocalCluster(processes=False, n_workers=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
        performance_report(filename=str(tmp_path / "fit.html")),
    ):
        machine(scheduler=client, work=str(tmp_path)).fit(*rows)
    page = (tmp_path / "fit.html").read_text()
    assert "<title>Dask Performance Report</title>" in page and "bigscreen" in page


def test_what_is_no_scheduler_is_refused(rows):
    with pytest.raises(InputError, match="or a Dask client or cluster, got 7"):
        machine(scheduler=7).fit(*rows)


@pytest.mark.slow
@pytest.mark.parametrize("page", ["jobs", "dask"])
def test_the_example_of_a_page_runs(tmp_path, page):
    text = (ROOT / f"docs/{page}.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    script = tmp_path / "borrow.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert 0 <= float(done.stdout) <= 1e-3
