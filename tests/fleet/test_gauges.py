"""What a cluster's dashboard and Prometheus see of a job."""

import socket
import ssl
import urllib.request

import numpy as np
import psutil
import pytest
from fleet_programs import Gradient, square

from bigscreen.fleet.local import local_cluster
from bigscreen.intake.ingest import ingest
from bigscreen.train.options import TrainOptions
from bigscreen.train.run import train


def listening():
    """Ports that this process and its children listen at."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    found = (connection for process in processes for connection in process.net_connections())
    return {one.laddr.port for one in found if one.status == psutil.CONN_LISTEN}


@pytest.fixture(scope="module")
def others():
    """Ports of what other tests have left in this process."""
    return listening()


@pytest.fixture(scope="module")
def fleet(others):
    with local_cluster(1) as found:
        yield found


def port(dask_scheduler):
    return dask_scheduler.http_server.port


def metrics(fleet):
    """The lines of the scheduler's page that are of this fleet."""
    url = f"http://127.0.0.1:{fleet._client.run_on_scheduler(port)}/metrics"
    with urllib.request.urlopen(url, timeout=20) as page:
        lines = page.read().decode().splitlines()
    return [line for line in lines if line.startswith("bigscreen_") and fleet._name in line]


def test_a_fit_shows_its_gap(tmp_path):
    pytest.importorskip("prometheus_client", reason="a scheduler serves /metrics by it")
    X = np.random.default_rng(0).normal(size=(600, 3))
    data = ingest((X, (X[:, 0] > 0).astype(int)), tmp_path / "rows.store").store
    with local_cluster(1, metrics=True) as other:
        assert metrics(other) == []
        train(data, TrainOptions(landmarks=20, work=tmp_path / "work"), other)
        found = dict(line.rsplit(" ", 1) for line in metrics(other))
        values = {name.partition("{")[0]: float(value) for name, value in found.items()}
        assert values["bigscreen_pass"] >= 1 and values["bigscreen_rows_alive"] == 600
        assert 0 < values["bigscreen_relative_gap"] < 2 and len(found) == 3
        with local_cluster(1, metrics=True) as one:  # in this process, as the other's scheduler is
            one.show({"bigscreen_pass": 3, "bigscreen_relative_gap": None})
            (line,) = metrics(one)
            assert line.endswith(" 3.0")
            address = one._name
        assert len(metrics(other)) == 3
        other._name, name = address, other._name
        assert metrics(other) == []  # its gauges left with it
        other._name = name


def test_no_port_but_the_encrypted_ones(fleet, others):
    ports = listening() - others
    assert len(ports) >= 3  # of the scheduler, a nanny and a worker
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for port in ports:
        # The server wants a certificate, which nobody else has.
        with (
            socket.create_connection(("127.0.0.1", port), timeout=20) as plain,
            pytest.raises(ssl.SSLError, match="(?i)alert"),
        ):
            context.wrap_socket(plain).recv(1)


def test_the_dashboard_has_names(fleet):
    seen = []

    def keys(dask_scheduler):
        return [task.prefix.name for task in dask_scheduler.tasks.values()]

    fleet.start(Gradient(), 2)
    seen += fleet._client.run_on_scheduler(keys)
    for _ in fleet.each(square, range(3)):
        seen += fleet._client.run_on_scheduler(keys)
    fleet.stop()
    assert {"bigscreen-host-Gradient", "bigscreen-square"} <= set(seen)
