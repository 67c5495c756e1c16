"""The two errors that a user meets; their text is one sentence: what was wrong, where, what would be right."""


class TrustmixError(ValueError):
    """Bad input, or a run that cannot go on; the message is written for the user and shown without a traceback."""


class StorageError(TrustmixError):
    """A file of ours could not be written or read. It ends the run: it is never a single client's failure."""
