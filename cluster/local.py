"""Keep worker processes running on this machine, for one command after another.

    python cluster/local.py --workers 4 --memory 4GiB

prints the options by which other commands reach them, ``--scheduler`` and three files that only
you can read, and stays until Ctrl-C. (``bigscreen fit --workers 4`` starts workers for that one
command; this saves starting them again.)
"""

from __future__ import annotations

import argparse
import signal

from bigscreen.files.scratch import scratch
from bigscreen.fleet.local import local_cluster
from bigscreen.fleet.secure import write_certificates


def main() -> None:
    """Start the workers and wait for their end."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=2, help="processes, one per core")
    parser.add_argument("--memory", help="limit of each, such as 4GiB (default: none)")
    options = parser.parse_args()
    signals = {signal.SIGINT, signal.SIGTERM}
    # before any thread starts, or one of those could take the signal
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    with (
        scratch("keys") as folder,
        local_cluster(options.workers, options.memory) as fleet,
    ):
        files = write_certificates(fleet.security, folder)
        tls = " ".join(f"--tls-{name} {path}" for name, path in files.items())
        print(f"--scheduler {fleet.address} {tls}", flush=True)
        signal.sigwait(signals)


if __name__ == "__main__":
    main()
