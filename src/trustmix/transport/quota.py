"""How many bytes a node may send to the server: as many as the answer to the last request needs, and no more."""

import threading


class UploadQuota:
    """The bytes that each node may still send. Safe for threads: the server grants them, the proxy takes them.

    Examples
    --------
    >>> quota = UploadQuota()
    >>> quota.grant("north", 100)
    >>> quota.take("north", 80), quota.take("north", 80), quota.take("south", 1)
    (True, False, False)
    """

    def __init__(self) -> None:
        self._left: dict[str, int] = {}
        self._lock = threading.Lock()

    def grant(self, node: str, size: int) -> None:
        """Let a node send this many bytes from now on; what is left of an earlier grant is not added.

        Parameters
        ----------
        node : str
            The node's id.
        size : int
            Bytes.
        """
        with self._lock:
            self._left[node] = max(size, self._left.get(node, 0))

    def take(self, node: str, size: int) -> bool:
        """Use a part of a node's quota.

        Parameters
        ----------
        node : str
            The node's id.
        size : int
            Bytes.

        Returns
        -------
        bool
            Whether the node may send them; if not, its quota stays as it is.
        """
        with self._lock:
            left = self._left.get(node, 0)
            if size > left:
                return False
            self._left[node] = left - size
            return True
