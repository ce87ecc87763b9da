"""What every test needs of its process."""

import signal

# Started in the background without job control, a process ignores SIGINT and so do its children:
# the tests that press Ctrl-C on real processes would wait in vain.
signal.signal(signal.SIGINT, signal.default_int_handler)
