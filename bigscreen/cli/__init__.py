"""The command line: the entry point of the process; its commands are in `cli.commands`."""

import os
import signal
import sys

from bigscreen.fleet.ulimit import explain_narrow_limits


def main(args: "list[str] | None" = None, prog_name: "str | None" = None) -> None:
    """Run a command, by default the command of this process, and exit."""
    if args is None:
        # (While modules are imported, Python would answer Ctrl-C with a traceback.)
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
    """Exit at once with one line: the handler of signals that come before a command has begun."""
    os.write(2, b"error: interrupted\n")
    os._exit(128 + number)
