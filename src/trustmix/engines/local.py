"""The local engine: clients on this machine, one after another, in one process per core, or stacked into one model.

All three modes do the same work in the same order for each client; their results differ by rounding only.
"""

import logging
import os
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from trustmix.engines.process_pool import Answer, Pool
from trustmix.engines.vectorized import stack_key, train_stacked
from trustmix.errors import StorageError, TrustmixError
from trustmix.federation import Client, Failure, Reply, Request
from trustmix.lazy import LazyMapping, LazySequence, numbered
from trustmix.learners import DeviceConfig, Job, TrainingJob, validate_loss

log = logging.getLogger(__name__)

Mode = Literal["sequential", "processes", "stacked"]

MAX_STACKED = 32
"""The largest number of clients in a stack: the parameters of more do not fit into the cache, and no time is gained."""


@dataclass(frozen=True)
class ExecutionPlan:
    """How the local engine runs clients.

    Parameters
    ----------
    mode
        "sequential", "processes" or "stacked".
    workers
        The number of processes; 1 is the calling process itself.
    hardware
        The device and the precision of all models.

    Examples
    --------
    >>> print(ExecutionPlan("stacked", workers=2))
    stacked in 2 processes, float32
    """

    mode: Mode = "sequential"
    workers: int = 1
    hardware: DeviceConfig = field(default_factory=DeviceConfig)

    def __str__(self) -> str:
        processes = f" in {self.workers} processes" if self.workers > 1 else ""
        device = "" if self.hardware.device == "cpu" else f" on {self.hardware.device}"
        mode = "sequential" if self.mode == "processes" else self.mode
        return f"{mode}{processes}, {self.hardware.precision}{device}"


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def make_plan(
    mode: Mode, *, workers: int | None = None, hardware: DeviceConfig | None = None, clients: int = 1
) -> ExecutionPlan:
    """Return the plan of a mode on this machine.

    Parameters
    ----------
    mode
        "sequential", "processes" or "stacked".
    workers
        The number of processes; None is one per core.
    hardware
        The device and the precision; the CPU in float32 if None.
    clients
        The number of clients, which is also the largest number of processes.

    Returns
    -------
    ExecutionPlan
        With one process if the mode is sequential, the device is not the CPU, or the system cannot fork.

    Examples
    --------
    >>> make_plan("sequential", workers=4, clients=8).workers
    1
    """
    hardware = hardware or DeviceConfig()
    can_fork = sys.platform == "linux" and hardware.device == "cpu" and mode != "sequential"
    return ExecutionPlan(mode, min(workers or cores(), clients) if can_fork else 1, hardware)


class LocalEngine:
    """Runs clients on this machine; answers come in the order of the requests.

    Parameters
    ----------
    clients
        The clients, each with an id of its own. Those of a `LazySequence`, whose ids are their numbers, are made for
        each step and dropped after it, so they need stores on disk.
    plan
        How they are run; one after another in this process if None.
    keep
        Whether models stay in memory between rounds; those of a `LazySequence` never do.

    Raises
    ------
    TrustmixError
        If there is no client, or two clients have the same id.

    Examples
    --------
    >>> import torch
    >>> from trustmix.data import Labelled
    >>> from trustmix.federation import Public
    >>> data = Labelled(torch.randn(8, 3), torch.tensor([0, 1] * 4))
    >>> client = Client("north", lambda: torch.nn.Linear(3, 2), data, data, Public(torch.randn(4, 3), 2))
    >>> engine = LocalEngine([client])
    >>> [answer.client for answer in engine.exchange({"north": Request(1)})]
    ['north']
    """

    def __init__(self, clients: Sequence[Client], plan: ExecutionPlan | None = None, *, keep: bool = True) -> None:
        self.plan = plan or ExecutionPlan()
        self._clients: Mapping[str, Client]
        worker_of: dict[str, int] = {}
        if isinstance(clients, LazySequence):
            self._ids = numbered(len(clients))
            self._clients = LazyMapping(self._ids, lambda id_: self._prepare(clients[int(id_)], keep=False))
        else:
            self._ids = validate_ids(clients)
            self._clients = {client.id: self._prepare(client, keep=keep) for client in clients}
            shares = assign_clients(clients, self.plan.workers)
            worker_of = {client.id: worker for worker, share in enumerate(shares) for client in share}
        self._pool = Pool(self._serve, self.plan.workers, worker_of) if self.plan.workers > 1 else None

    def _prepare(self, client: Client, *, keep: bool) -> Client:
        client.to_device(self.plan.hardware, keep=keep)
        return client

    @property
    def clients(self) -> Sequence[str]:
        """The client ids, in the order of the clients."""
        return self._ids

    def exchange(self, requests: Mapping[str, Request]) -> Iterator[Reply | Failure]:
        """Run one step of each client that has a request.

        Parameters
        ----------
        requests
            The request of each client, by client id.

        Returns
        -------
        iterator of Reply or Failure
            One answer for each request; an exception of one client becomes the `Failure` of that client.

        Raises
        ------
        StorageError
            If a client's state cannot be read or written.
        """
        return self._pool.exchange(requests) if self._pool else self._serve(requests)

    def _serve(self, requests: Mapping[str, Request]) -> Iterator[Answer]:
        """The answers of clients that are run in this process."""
        ids = list(requests)
        size = MAX_STACKED if self.plan.mode == "stacked" else 1
        for begin in range(0, len(ids), size):
            yield from run_generators(
                {client: self._clients[client].step_jobs(requests[client]) for client in ids[begin : begin + size]}
            )

    def close(self) -> None:
        """End the worker processes."""
        if self._pool:
            self._pool.close()


def validate_ids(clients: Sequence[Client]) -> list[str]:
    """Return the ids of the clients, which must differ.

    Parameters
    ----------
    clients
        At least one client.

    Returns
    -------
    list of str
        The ids in the order of the clients.

    Raises
    ------
    TrustmixError
        If there is no client, or two clients have the same id.
    """
    ids = [client.id for client in clients]
    if len(set(ids)) != len(ids):
        raise TrustmixError("Two clients have the same id; every client needs one of its own.")
    if not ids:
        raise TrustmixError("A federation needs at least one client.")
    return ids


def assign_clients(clients: Sequence[Client], workers: int) -> list[list[Client]]:
    """Assign clients to workers in turn, so that every worker gets as many clients of each architecture.

    Parameters
    ----------
    clients
        The clients.
    workers
        The number of workers.

    Returns
    -------
    list of list of Client
        The clients of each worker.
    """
    architectures = list(dict.fromkeys(client.architecture for client in clients))
    ordered = sorted(clients, key=lambda client: architectures.index(client.architecture))
    return [ordered[worker::workers] for worker in range(workers)]


def run_generators(running: Mapping[str, Generator[Job, None, Reply]]) -> list[Answer]:
    """Run the steps of several clients side by side; training jobs with the same stack key are trained as one.

    Parameters
    ----------
    running
        The generator `Client.step_jobs` of each client, by client id.

    Returns
    -------
    list of Reply or Failure
        One answer for each client, in the order of the clients.
    """
    answers: dict[str, Answer] = {}
    jobs = {client: job for client in running if (job := _advance(client, running[client], None, answers))}
    while jobs:
        errors = run_jobs(jobs)
        jobs = {c: job for c in list(jobs) if (job := _advance(c, running[c], errors.get(c), answers))}
    return [answers[client] for client in running]


def _advance(
    client: str, stages: Generator[Job, None, Reply], error: Exception | None, answers: dict[str, Answer]
) -> Job | None:
    """The next job of the client, or None once its answer is in `answers`."""
    try:
        return next(stages) if error is None else stages.throw(error)
    except StopIteration as end:
        answers[client] = end.value
    except StorageError:
        raise
    except Exception as problem:  # the model is user code and may raise anything
        log.debug("client %s failed", client, exc_info=True)
        answers[client] = Failure(client, f"{type(problem).__name__}: {problem}")
    return None


def run_jobs(jobs: Mapping[str, Job]) -> dict[str, Exception]:
    """Run training jobs; jobs with the same stack key are trained as one where the model allows it.

    Parameters
    ----------
    jobs
        The job of each client, by client id.

    Returns
    -------
    dict of str to Exception
        The exceptions of the clients whose jobs failed, by client id.
    """
    groups: dict[object, list[str]] = {}
    for client, job in jobs.items():
        groups.setdefault(stack_key(job) if len(jobs) > 1 else None, []).append(client)
    errors: dict[str, Exception] = {}
    for key, group in groups.items():
        if len(group) < 2 or not _try_stacked({client: jobs[client] for client in group}, key, errors):
            for client in group:
                try:
                    jobs[client].run()
                except Exception as error:  # raised again inside the client's own generator
                    log.debug("client %s failed in training", client, exc_info=True)
                    errors[client] = error
    return errors


def _try_stacked(jobs: Mapping[str, Job], key: object, errors: dict[str, Exception]) -> bool:
    """Train the jobs as one; false where that is not possible."""
    stackable = [job for job in jobs.values() if isinstance(job, TrainingJob)]
    if key in _unstackable or len(stackable) < len(jobs):
        return False
    try:
        losses = train_stacked(stackable)
    except Exception:  # trained one by one, the exception appears again at the client that causes it
        log.debug("cannot be stacked, going one by one", exc_info=True)
        _unstackable.add(key)
        return False
    for client, loss in zip(jobs, losses, strict=True):
        try:
            validate_loss(loss)
        except TrustmixError as error:
            errors[client] = error
    return True


_unstackable: set[object] = set()
"""Stack keys of models that draw random numbers or update buffers in training."""
