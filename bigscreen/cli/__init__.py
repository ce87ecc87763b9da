"""The command line: `bigscreen.cli.commands`, and how a process begins with one of them."""

import os
import signal
import sys

from bigscreen.fleet.ulimit import explain_narrow_limits


def main(args: "list[str] | None" = None, prog_name: "str | None" = None) -> None:
    """Run a command, by default that of this process, which ends with it."""
    if args is None:
        # Python would answer with the line that it has come to in what is now imported.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, end)
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, end)
    if (why := explain_narrow_limits()) is not None:
        print(f"error: {why}", file=sys.stderr)
        sys.exit(2)
    from bigscreen.cli.commands import group

    group.main(args, prog_name)


def end(number: int, frame: object) -> None:
    """End at once, in one line: for signals that come before anything has begun."""
    os.write(2, b"error: interrupted\n")
    os._exit(128 + number)
