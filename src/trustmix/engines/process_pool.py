"""A pool of single-threaded worker processes, one per core, each with the same clients for the whole run.

Clients that are not assigned to a worker are dealt to the workers in turn in each exchange.

Workers are forked, so data, public set and initial models are shared, not copied, and only requests and answers are
pickled. A worker ends with its parent. A worker that dies is started again, and its clients continue from their stores.
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
"""The function of a worker: from one received message to the messages that are sent back."""

HANDLED_BY_PARENT = (signal.SIGINT, signal.SIGTERM)
PR_SET_PDEATHSIG = 1
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


class Worker:
    """A forked process that calls a function for each message and sends back what the function yields, then None.

    Parameters
    ----------
    serve
        The function.
    others
        The workers that run already; the new process closes its copies of their connections.
    """

    def __init__(self, serve: Serve, others: Sequence["Worker"]) -> None:
        context = multiprocessing.get_context("fork")
        self.connection, child_connection = context.Pipe()
        inherited = [self.connection, *(other.connection for other in others)]
        self.process = context.Process(target=_run_worker, args=(serve, child_connection, inherited), daemon=True)
        # Signals wait until the new process has handlers of its own: a handler of the parent must not run there.
        previous = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED_BY_PARENT)
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous)
        child_connection.close()

    def close(self) -> int | None:
        """End the process.

        Returns
        -------
        int or None
            The exit code.
        """
        self.process.terminate()
        self.process.join()
        self.connection.close()
        return self.process.exitcode


def _run_worker(serve: Serve, connection: Connection, inherited: Sequence[Connection]) -> None:
    """Answer messages until the parent closes the connection."""
    die_with_parent()
    keep_freed_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED_BY_PARENT)
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
    """Make the kernel (Linux) kill this process when its parent ends for any reason."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def keep_freed_memory() -> None:
    """Make glibc keep the memory that a training step frees, because the next step needs it again.

    By default glibc returns large tensors to the kernel, and the new pages cost an eighth of the time of a small CNN's
    step.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # other C libraries have no such call
        libc.mallopt(M_MMAP_THRESHOLD, 2**30)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


class Pool:
    """Worker processes.

    Parameters
    ----------
    serve
        The function that answers the requests of clients.
    workers
        The number of processes.
    worker_of
        By client id: the number of the worker that has the client. A client without one has another worker in each
        exchange.
    """

    def __init__(self, serve: Serve, workers: int, worker_of: Mapping[str, int]) -> None:
        self._serve = serve
        self._worker_of = worker_of
        self._workers: list[Worker | None] = [None] * workers

    def exchange(self, requests: Mapping[str, Request]) -> Iterator[Answer]:
        """Send requests to the workers and collect the answers.

        Parameters
        ----------
        requests
            The request of each client, by client id.

        Yields
        ------
        Reply or Failure
            One answer for each request, in the order of the requests, each as soon as that order allows.

        Raises
        ------
        StorageError
            If a client's state cannot be read or written.
        """
        shares: dict[int, dict[str, Request]] = {}
        for place, (client, request) in enumerate(requests.items()):
            index = self._worker_of.get(client, place % len(self._workers))
            shares.setdefault(index, {})[client] = request
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
            for index in busy.values():  # an abandoned exchange: later answers must not reach the next exchange
                self._stop(index)

    def _send(self, index: int, share: Mapping[str, Request]) -> Connection:
        worker = self._workers[index]
        if worker is None or not worker.process.is_alive():
            others = [other for other in self._workers if other is not None and other is not worker]
            worker = self._workers[index] = Worker(self._serve, others)
        with suppress(BrokenPipeError):  # the worker has just died; `_receive` handles that
            worker.connection.send(share)
        return worker.connection

    def _receive(
        self,
        connection: Connection,
        busy: dict[Connection, int],
        shares: Mapping[int, Mapping[str, Request]],
        arrived: dict[str, Answer],
    ) -> None:
        """Receive one message of a worker; if the worker has died, its clients without an answer have failed."""
        index = busy[connection]
        try:
            message: Any = connection.recv()
        except (EOFError, OSError):
            message = None
            code = self._stop(index)
            for client in shares[index]:
                arrived.setdefault(client, Failure(client, f"its worker process died (exit code {code})"))
        if isinstance(message, StorageError):
            raise message
        if message is None:
            del busy[connection]
        else:
            arrived[message.client] = message

    def _stop(self, index: int) -> int | None:
        worker, self._workers[index] = self._workers[index], None
        return None if worker is None else worker.close()

    def close(self) -> None:
        """End all workers."""
        for index in range(len(self._workers)):
            self._stop(index)
