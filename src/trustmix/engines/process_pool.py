"""One single-threaded process a core, each with clients of its own for the whole run.

Workers are forked, so data, public set and initial models are shared, not copied, and nothing needs to be pickled but
requests and answers. A worker dies with its parent, and a worker that dies alone is started again: its clients go on
from their stores.
"""

import ctypes
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any, TypeAlias

import torch

from trustmix.errors import StorageError
from trustmix.federation import Failure, Reply, Request

Answer: TypeAlias = Reply | Failure
Serve: TypeAlias = Callable[[Any], Iterator[Any]]
"""What a worker does with a message it gets: the messages to send back, one by one."""

PR_SET_PDEATHSIG = 1
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


class Worker:
    """A process that answers the requests for its clients."""

    def __init__(self, serve: Serve, others: Sequence["Worker"]) -> None:
        context = multiprocessing.get_context("fork")
        self.connection, theirs = context.Pipe()
        inherited = [self.connection, *(other.connection for other in others)]
        self.process = context.Process(target=_work, args=(serve, theirs, inherited), daemon=True)
        self.process.start()
        theirs.close()

    def close(self) -> int | None:
        """End the process, if it has not ended by itself, and tell its exit code."""
        self.process.terminate()
        self.process.join()
        self.connection.close()
        return self.process.exitcode


def _work(serve: Serve, connection: Connection, inherited: Sequence[Connection]) -> None:
    """The life of a worker: requests in, answers out one by one, then None."""
    die_with_parent()
    keep_freed_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # whatever the parent does then, a worker simply ends
    for end in inherited:
        end.close()
    torch.set_num_threads(1)
    while True:
        try:
            requests = connection.recv()
        except EOFError:
            return
        try:
            for answer in serve(requests):
                connection.send(answer)
            connection.send(None)
        except StorageError as error:
            connection.send(error)


def die_with_parent() -> None:
    """Have the kernel (Linux) kill this process when its parent ends, however that ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def keep_freed_memory() -> None:
    """Have glibc keep the memory that a training step frees, which the next one needs again.

    By itself it gives large tensors back to the kernel, and fetching pages anew is an eighth of a small CNN's step.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # other C libraries have no such call
        libc.mallopt(M_MMAP_THRESHOLD, 2**30)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


class Pool:
    """Workers, and which client belongs to which."""

    def __init__(self, serves: Sequence[tuple[Sequence[str], Serve]]) -> None:
        self._serves = [serve for _, serve in serves]
        self._home = {client: index for index, (clients, _) in enumerate(serves) for client in clients}
        self._workers: list[Worker | None] = [None] * len(serves)

    def exchange(self, requests: Mapping[str, Request]) -> Iterator[Answer]:
        """Answers in the order of the requests, as soon as that order allows."""
        shares: dict[int, dict[str, Request]] = {}
        for client, request in requests.items():
            shares.setdefault(self._home[client], {})[client] = request
        busy = {self._send(index, share): index for index, share in shares.items()}
        arrived: dict[str, Answer] = {}
        try:
            for client in requests:
                while client not in arrived:
                    for connection in wait(list(busy)):
                        self._receive(connection, busy, shares, arrived)  # type: ignore[arg-type]
                yield arrived.pop(client)
            while busy:
                for connection in wait(list(busy)):
                    self._receive(connection, busy, shares, arrived)  # type: ignore[arg-type]
        finally:
            for index in busy.values():  # abandoned half way: what these workers still say concerns nobody
                self._end(index)

    def _send(self, index: int, share: Mapping[str, Request]) -> Connection:
        worker = self._workers[index]
        if worker is None or not worker.process.is_alive():
            others = [other for other in self._workers if other is not None and other is not worker]
            worker = self._workers[index] = Worker(self._serves[index], others)
        with suppress(BrokenPipeError):  # it has just died: receiving from it will tell
            worker.connection.send(share)
        return worker.connection

    def _receive(
        self,
        connection: Connection,
        busy: dict[Connection, int],
        shares: Mapping[int, Mapping[str, Request]],
        arrived: dict[str, Answer],
    ) -> None:
        """Take one message of a worker; if the worker is gone, its unanswered clients have failed."""
        index = busy[connection]
        try:
            message: Any = connection.recv()
        except (EOFError, OSError):
            message = None
            code = self._end(index)
            for client in shares[index]:
                arrived.setdefault(client, Failure(client, f"its worker process died (exit code {code})"))
        if isinstance(message, StorageError):
            raise message
        if message is None:
            del busy[connection]
        else:
            arrived[message.client] = message

    def _end(self, index: int) -> int | None:
        worker, self._workers[index] = self._workers[index], None
        return None if worker is None else worker.close()

    def close(self) -> None:
        """End all workers."""
        for index in range(len(self._workers)):
            self._end(index)
