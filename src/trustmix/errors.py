"""The two errors that reach a user; their text is one sentence: what was wrong, where, what would be right."""


class TrustmixError(ValueError):
    """Bad input, or a run that cannot go on; the command line shows its message without a traceback."""


class StorageError(TrustmixError):
    """A file of trustmix could not be written or read; it ends the run and never counts as one client's failure."""
