"""Clients on this machine: one after another, in a process a core, or many small ones stacked into one.

All three do the same work in the same order for each client; their results differ by rounding only.
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
from trustmix.federation import Client, DeviceConfig, Failure, Reply, Request, TrainingJob, train, validate_loss

log = logging.getLogger(__name__)

Mode = Literal["sequential", "processes", "stacked"]

MAX_STACKED = 32
"""Clients stacked at most: beyond it the parameters of a step no longer fit the cache and nothing is gained."""


@dataclass(frozen=True)
class ExecutionPlan:
    """How the local engine runs clients."""

    mode: Mode = "sequential"
    workers: int = 1
    """Processes; 1 is the calling process itself."""
    hardware: DeviceConfig = field(default_factory=DeviceConfig)

    def __str__(self) -> str:
        where = f" in {self.workers} processes" if self.workers > 1 else ""
        place = "" if self.hardware.device == "cpu" else f" on {self.hardware.device}"
        mode = "sequential" if self.mode == "processes" else self.mode
        return f"{mode}{where}, {self.hardware.precision}{place}"


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def make_plan(
    mode: Mode, *, workers: int | None = None, hardware: DeviceConfig | None = None, clients: int = 1
) -> ExecutionPlan:
    """The plan of a mode: as many processes as cores, where processes can be forked and the model is on the CPU."""
    hardware = hardware or DeviceConfig()
    can_fork = sys.platform == "linux" and hardware.device == "cpu" and mode != "sequential"
    return ExecutionPlan(mode, min(workers or cores(), clients) if can_fork else 1, hardware)


class LocalEngine:
    """Runs clients by a plan; answers come in the order of the requests."""

    def __init__(self, clients: Sequence[Client], plan: ExecutionPlan | None = None, *, keep: bool = True) -> None:
        self.plan = plan or ExecutionPlan()
        self._clients = dict(zip(validate_ids(clients), clients, strict=True))
        for client in clients:
            client.to_device(self.plan.hardware, keep=keep)
        self._pool = None
        if self.plan.workers > 1:
            self._pool = Pool(
                [([c.id for c in share], self._serve) for share in assign_clients(clients, self.plan.workers)]
            )

    @property
    def clients(self) -> Sequence[str]:
        """The clients' ids, in the order given."""
        return list(self._clients)

    @property
    def members(self) -> Sequence[Client]:
        """The clients themselves, as they are in this process."""
        return list(self._clients.values())

    def exchange(self, requests: Mapping[str, Request]) -> Iterator[Reply | Failure]:
        """One step of each client asked; an error of a client's is its own and becomes its `Failure`."""
        return self._pool.exchange(requests) if self._pool else self._serve(requests)

    def _serve(self, requests: Mapping[str, Request]) -> Iterator[Answer]:
        """The answers of this process's clients."""
        asked = list(requests)
        size = MAX_STACKED if self.plan.mode == "stacked" else 1
        for begin in range(0, len(asked), size):
            together = asked[begin : begin + size]
            yield from run_generators(
                {client: self._clients[client].step_jobs(requests[client]) for client in together}
            )

    def close(self) -> None:
        """End the worker processes."""
        if self._pool:
            self._pool.close()


def validate_ids(clients: Sequence[Client]) -> list[str]:
    """The clients' ids, which must be there and differ."""
    ids = [client.id for client in clients]
    if len(set(ids)) != len(ids):
        raise TrustmixError("Two clients have the same id; every client needs one of its own.")
    if not ids:
        raise TrustmixError("A federation needs at least one client.")
    return ids


def assign_clients(clients: Sequence[Client], workers: int) -> list[list[Client]]:
    """Clients to workers in turn, kind by kind, so that every worker gets as many of each architecture."""
    kinds = list(dict.fromkeys(client.architecture for client in clients))
    by_kind = sorted(clients, key=lambda client: kinds.index(client.architecture))
    return [by_kind[worker::workers] for worker in range(workers)]


def run_generators(running: Mapping[str, Generator[TrainingJob, None, Reply]]) -> list[Answer]:
    """Let clients go through their stages side by side; jobs that are alike are trained as one."""
    answers: dict[str, Answer] = {}
    jobs = {client: job for client in running if (job := _advance(client, running[client], None, answers))}
    while jobs:
        errors = run_jobs(jobs)
        jobs = {c: job for c in list(jobs) if (job := _advance(c, running[c], errors.get(c), answers))}
    return [answers[client] for client in running]


def _advance(
    client: str, stages: Generator[TrainingJob, None, Reply], error: Exception | None, answers: dict[str, Answer]
) -> TrainingJob | None:
    """The client's next job; or None, when it has answered or failed."""
    try:
        return next(stages) if error is None else stages.throw(error)
    except StopIteration as end:
        answers[client] = end.value
    except StorageError:
        raise
    except Exception as problem:  # a client may run anybody's model
        log.debug("client %s failed", client, exc_info=True)
        answers[client] = Failure(client, f"{type(problem).__name__}: {problem}")
    return None


def run_jobs(jobs: Mapping[str, TrainingJob]) -> dict[str, Exception]:
    """Do the jobs, alike ones together, and tell which failed."""
    groups: dict[object, list[str]] = {}
    for client, job in jobs.items():
        groups.setdefault(stack_key(job) if len(jobs) > 1 else None, []).append(client)
    errors: dict[str, Exception] = {}
    for alike, members in groups.items():
        if len(members) < 2 or not _stacked({client: jobs[client] for client in members}, alike, errors):
            for client in members:
                try:
                    train(jobs[client])
                except Exception as error:  # goes to the client's own stages, which end by it
                    log.debug("client %s failed in training", client, exc_info=True)
                    errors[client] = error
    return errors


def _stacked(jobs: Mapping[str, TrainingJob], alike: object, errors: dict[str, Exception]) -> bool:
    """Do the jobs as one, if that is possible."""
    if alike in _unstackable:
        return False
    try:
        losses = train_stacked(list(jobs.values()))
    except Exception:  # whatever it is, one by one it happens to the client whose fault it is
        log.debug("cannot be stacked, going one by one", exc_info=True)
        _unstackable.add(alike)
        return False
    for client, loss in zip(jobs, losses, strict=True):
        try:
            validate_loss(loss)
        except TrustmixError as error:
            errors[client] = error
    return True


_unstackable: set[object] = set()
"""Likenesses of models that were found to draw random numbers or to update buffers while training."""
