"""What a user's mistake raises: one sentence that says what is wrong, where, and what to do."""


class InputError(ValueError):
    """Bad input: a file, a parameter or a store that cannot be used as given.

    The message is one sentence for a person: what is wrong, where (file, line or row), what to do.
    The command line prints it and exits with code 2.
    """
