"""Only clients with the key of an encrypted cluster can use it."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cli_world import World, bigscreen, succeed, world
from cluster_processes import processes
from distributed import Security
from fleet_programs import Gradient, descend, same, square

from bigscreen.errors import InputError
from bigscreen.fleet.connecting import connect
from bigscreen.fleet.inline import Inline
from bigscreen.fleet.local import local_cluster
from bigscreen.fleet.secure import certificates, write_certificates
from bigscreen.model.model import Model

__all__ = ["world"]  # a fixture

OPTIONS = ["--landmarks", "40", "--gamma", "1", "--solver", "newton"]


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "keys"
    folder.mkdir()
    return write_certificates(Security.temporary(), str(folder))


def flags(keys: dict[str, str]) -> list[str]:
    return [part for name, path in keys.items() for part in (f"--tls-{name}", path)]


def test_local_workers_take_work_from_their_own_client_alone(keys: dict[str, str]) -> None:
    with Inline(1) as inline:
        inline.start(Gradient(), 5)
        reference = descend(inline, 4)[1]
    with local_cluster(1) as fleet:
        assert fleet.address.startswith("tls://")
        everybody = [fleet.address, *fleet._client.nthreads()]
        assert all(address.startswith("tls://") for address in everybody)
        # by another process: without the key, and with a key of its own
        ask = (
            "import sys; from distributed import Client; from bigscreen.fleet.secure import *\n"
            "keys = sys.argv[2:]\n"
            "how = {'security': certificates(*keys)} if keys else {}\n"
            "print(Client(sys.argv[1], timeout=3, **how).run_on_scheduler(lambda: 'inside'))"
        )
        for address in everybody:
            plain = address.replace("tls://", "tcp://")
            for arguments in ([plain], [address, *keys.values()]):
                command = [sys.executable, "-c", ask, *arguments]
                told = subprocess.run(command, capture_output=True, text=True, timeout=60)
                assert told.returncode != 0 and "inside" not in told.stdout
        fleet.start(Gradient(), 5)
        assert same(descend(fleet, 4)[1], reference)


def test_keys_are_for_their_owner_alone(keys: dict[str, str]) -> None:
    for path in keys.values():
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


@pytest.mark.slow
def test_an_encrypted_cluster_takes_clients_with_its_key(
    world: World, tmp_path: Path, keys: dict[str, str]
) -> None:
    with processes(ports=(0, 0), keys=keys) as fleet:
        assert list(fleet.each(square, range(4))) == [0, 1, 4, 9]
        address = fleet.address
        model = tmp_path / "m.bsm"
        succeed("fit", world.store, model, *OPTIONS, "--scheduler", address, *flags(keys))
        succeed("fit", world.store, tmp_path / "here.bsm", *OPTIONS)
        cluster, here = Model.load(model), Model.load(tmp_path / "here.bsm")
        np.testing.assert_array_equal(cluster.coef, here.coef)

        # failures are explained in one sentence
        plain = address.replace("tls", "tcp")
        other = tmp_path / "other"
        other.mkdir()
        strange = write_certificates(Security.temporary(), str(other))
        for arguments, sentence in (
            (["--scheduler", plain], "takes encrypted connections only: give its address as tls:"),
            (["--scheduler", address], "do not trust each other's certificates"),
            (["--scheduler", address, *flags(strange)], "do not trust each other's certificates"),
            (["--scheduler", address, *flags(keys)[:2]], "give --tls-ca, --tls-cert, --tls-key"),
            (["--scheduler", plain, *flags(keys)], "--tls-ca is for a --scheduler of the form tls"),
            (["--workers", "1", *flags(keys)], "--tls-ca is for a --scheduler of the form tls"),
        ):
            fit = bigscreen("fit", world.store, tmp_path / "no.bsm", *OPTIONS, *arguments)
            said = fit.stderr.splitlines()
            assert fit.exit_code == 2 and len(said) == 1 and sentence in said[0], fit.stderr
        assert not (tmp_path / "no.bsm.work").exists()
        # Nothing more is heard at the end of a process whose connection came to nothing.
        words = "import sys, bigscreen.cli; sys.exit(bigscreen.cli.main())"
        command = [sys.executable, "-c", words, "cluster-check", "--scheduler", address]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        assert run.returncode == 2 and len(run.stderr.splitlines()) == 1, run.stderr


def test_a_tls_address_of_an_open_cluster_is_refused(keys: dict[str, str]) -> None:
    with processes(ports=(0,)) as fleet:
        secure = fleet.address.replace("tcp://", "tls://")
        with pytest.raises(InputError, match="does not encrypt: give its address as tcp://"):
            connect(secure, timeout=3, security=certificates(**keys))


def test_files_that_are_no_keys_are_refused(keys: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        certificates(keys["ca"], keys["cert"], tmp_path / "absent.pem")
    (tmp_path / "text.pem").write_text("no key")
    with pytest.raises(InputError, match="PEM files that belong together"):
        certificates(keys["ca"], keys["cert"], tmp_path / "text.pem")
