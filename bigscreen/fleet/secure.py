"""Encrypted clusters: certificates of a client, and explanations of failed connections."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from pathlib import Path
from typing import Any

from distributed import Security

from bigscreen.errors import InputError, reason_of

FLAGS = "--tls-ca, --tls-cert and --tls-key"


def certificates(
    ca: str | os.PathLike[str], cert: str | os.PathLike[str], key: str | os.PathLike[str]
) -> Security:
    """Read the certificates that a ``tls://`` connection needs.

    Parameters
    ----------
    ca, cert, key : path
        PEM files: the certificate of the authority that signed those of the scheduler and workers,
        a certificate that it signed for this client, and the key of that certificate.

    Raises
    ------
    InputError
        If the files cannot be read or do not belong together.
    """
    security = Security(
        require_encryption=True,
        tls_ca_file=os.fspath(ca),
        tls_client_cert=os.fspath(cert),
        tls_client_key=os.fspath(key),
    )
    for file in (ca, cert, key):
        try:
            open(file, "rb").close()
        except OSError as error:
            raise InputError(f"{file} cannot be read: {reason_of(error)}") from error
    try:
        security.get_connection_args("client")
    except (ssl.SSLError, OSError) as error:
        raise InputError(
            f"{ca}, {cert} and {key} are no authority, certificate and its key ({error}): give PEM "
            "files that belong together"
        ) from error
    return security


def write_certificates(security: Any, folder: str) -> dict[str, str]:
    """Write a temporary cluster's certificate and key to files that only this user can read.

    Returns
    -------
    dict
        The paths, under the names of the parameters of `certificates`.
    """
    texts = {
        "ca": security.tls_ca_file,
        "cert": security.tls_client_cert,
        "key": security.tls_client_key,
    }
    paths = {name: str(Path(folder, f"{name}.pem")) for name in texts}
    for name, path in paths.items():
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(texts[name])
    return paths


def explain_failure(address: str, error: Exception) -> str:
    """Explain in one sentence why a connection to a scheduler failed."""
    scheme, _, place = address.partition("://")
    speaks = _speaks_tls(place) if scheme in ("tcp", "tls") else None
    if speaks and scheme == "tcp":
        return (
            f"the scheduler at {address} takes encrypted connections only: give its address as "
            f"tls://{place}, with {FLAGS}"
        )
    if speaks is False and scheme == "tls":
        return f"the scheduler at {address} does not encrypt: give its address as tcp://{place}"
    if speaks:
        return (
            f"the scheduler at {address} and this process do not trust each other's certificates: "
            f"give files of its authority by {FLAGS} (or by Dask's configuration)"
        )
    return (
        f"no Dask scheduler answers at {address}: start one with `dask scheduler`, or check the "
        "address"
    )


def _speaks_tls(place: str) -> bool | None:
    """Whether a server encrypts; None if there is none, or it does not answer in time."""
    host, _, port = place.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        at = (host.strip("[]"), int(port))
        with (
            socket.create_connection(at, timeout=3) as plain,
            contextlib.closing(context.wrap_socket(plain)),
        ):
            return True
    except ssl.SSLError as error:
        # A server that requests a certificate, and gets none, does encrypt.
        return "alert" in str(error).lower()
    except (OSError, ValueError):
        return None
