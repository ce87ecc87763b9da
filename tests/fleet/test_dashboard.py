"""A cluster serves Dask's dashboard if requested, and otherwise only encrypted ports."""

import socket
import ssl
import urllib.request

import psutil
import pytest
from fleet_programs import Gradient, square

from bigscreen.fleet.local import local_cluster


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


def test_dask_s_pages_are_served_if_asked_for():
    with local_cluster(1, metrics=True) as one:
        url = f"http://127.0.0.1:{one._client.run_on_scheduler(port)}/health"
        with urllib.request.urlopen(url, timeout=20) as page:
            assert page.read() == b"ok"


def test_no_port_but_the_encrypted_ones(fleet, others):
    ports = listening() - others
    assert len(ports) >= 3  # of the scheduler, a nanny and a worker
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for port in ports:
        # The server requests a certificate, which only this cluster has.
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
