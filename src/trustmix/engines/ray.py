"""Clients on a Ray cluster, or on a Ray started here for the run (the extra `ray`).

An actor is the local engine over clients of its own, which live there for the whole run; what they share lies once
in each node's object store, and all actors of the node read it there. An actor that dies costs its clients one round:
it is started again, and they go on from their stores.
"""

import copy
import importlib
import logging
import math
import os
import platform
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from trustmix.engines.autotune import best_device, select_plan
from trustmix.engines.local import ExecutionPlan, LocalEngine, assign_clients, validate_ids
from trustmix.errors import StorageError, TrustmixError
from trustmix.federation import ENGINES, Client, DeviceConfig, DiskStore, EngineSetup, Failure, Reply, Request

log = logging.getLogger(__name__)


@ENGINES.register("ray")
def create_ray_engine(
    clients: Sequence[Client],
    *,
    keep: bool = True,
    mode: str = "sequential",
    precision: str = "float32",
    workers: int | None = None,
    cpus: float = 1.0,
    gpus: float = 0.0,
) -> EngineSetup:
    """Clients in actors of so many `cpus` and `gpus` each: `workers` of them, or as many as the cluster holds."""
    if mode == "processes":
        raise TrustmixError('An actor of Ray is a process already; set engine.mode to "sequential" or "stacked".')
    engine = RayEngine(clients, keep=keep, workers=workers, cpus=cpus, gpus=gpus)
    try:
        plan, found = engine.settle(mode, precision)
    except BaseException:
        engine.close()
        raise
    hardware = DeviceConfig(best_device() if gpus else "cpu", plan.hardware.precision)
    settled = {"mode": plan.mode, "precision": plan.hardware.precision}
    return EngineSetup(engine, f"{engine}: {found}", settled, hardware)


class RayEngine:
    """Runs clients in actors; answers come in the order of the requests, each as soon as that order allows."""

    def __init__(
        self,
        clients: Sequence[Client],
        plan: ExecutionPlan | None = None,
        *,
        keep: bool = True,
        workers: int | None = None,
        cpus: float = 1.0,
        gpus: float = 0.0,
    ) -> None:
        self._ray = _imported()
        self.plan = plan or ExecutionPlan(hardware=DeviceConfig("cuda" if gpus else "cpu"))
        self.keep, self.cpus, self.gpus = keep, cpus, gpus
        self._clients = validate_ids(clients)
        self._actors: list[Any] = []
        self._started = _connect(self._ray)
        try:
            shares = assign_clients(clients, self._workers(workers))
            self._home = {client.id: index for index, share in enumerate(shares) for client in share}
            self._stores = [client.store.folder for client in clients if isinstance(client.store, DiskStore)]
            self._payloads = _share_objects(self._ray, shares)
        except BaseException:
            self.close()
            raise
        self._actors = [None] * len(shares)

    def __str__(self) -> str:
        each = f"{self.cpus:g} CPU" + (f" and {self.gpus:g} GPU" if self.gpus else "")
        return f"ray, {len(self._actors)} actors of {each}"

    @property
    def clients(self) -> Sequence[str]:
        """The clients' ids, in the order given."""
        return self._clients

    def _workers(self, wanted: int | None) -> int:
        """How many actors there will be."""
        alive = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        most = actors_that_fit(alive, self.cpus, self.gpus)
        if most < (wanted or 1):
            asked = f"{wanted or 1} actors of engine.cpus = {self.cpus:g} and engine.gpus = {self.gpus:g}"
            raise TrustmixError(f"The Ray cluster holds {most} of the {asked} that the recipe asks for.")
        return min(wanted or most, len(self._clients))

    def settle(self, mode: str, precision: str) -> tuple[ExecutionPlan, str]:
        """Choose how an actor runs its clients, where something is "auto" by trials on a node of the cluster."""
        trial = self._ray.remote(num_cpus=self.cpus, num_gpus=self.gpus)(_choose)
        wanted = {"mode": mode, "precision": precision, "device": self.plan.hardware.device}
        if "auto" in wanted.values():
            self.plan, found = self._ray.get(trial.remote(wanted, self.cpus, *self._payloads[0]))
        else:
            self.plan, found = select_plan([], **wanted, workers=1)
        return self.plan, found

    def exchange(self, requests: Mapping[str, Request]) -> Iterator[Reply | Failure]:
        """One step of each client asked; a request that goes to many is put into the object store once."""
        distinct = {id(request): request for request in requests.values()}
        stored = [self._ray.put(request) for request in distinct.values()]
        asked: dict[int, list[tuple[str, int]]] = {}
        for client, request in requests.items():
            asked.setdefault(self._home[client], []).append((client, list(distinct).index(id(request))))
        arriving = {
            index: self._actor(index).serve.options(num_returns="streaming").remote(share, *stored)
            for index, share in asked.items()
        }
        died: dict[int, str] = {}
        try:
            for client in requests:
                yield self._receive(client, arriving, died)
            arriving.clear()
        finally:
            for index in arriving:  # abandoned half way: what these actors still say concerns nobody
                self._end(index)

    def _receive(self, client: str, arriving: Mapping[int, Iterator[Any]], died: dict[int, str]) -> Reply | Failure:
        """The client's answer, which is the next one of its actor."""
        index, errors = self._home[client], self._ray.exceptions
        if index not in died:
            try:
                answer: Reply | Failure = self._ray.get(next(arriving[index]))
                return answer
            except errors.RayTaskError as error:
                raise error.cause from error
            except errors.RayError as error:
                log.debug("an actor died", exc_info=True)
                died[index] = f"its actor died: {str(error).splitlines()[-1]}"
                self._end(index)
        return Failure(client, died[index])

    def _actor(self, index: int) -> Any:
        """The actor, started if it is not there (any more)."""
        if self._actors[index] is None:
            for folder in self._stores:
                folder.mkdir(parents=True, exist_ok=True)
            build = self._ray.remote(num_cpus=self.cpus, num_gpus=self.gpus)(ClientActor)
            self._actors[index] = build.remote(self.plan, self.keep, self.cpus, *self._payloads[index])
        return self._actors[index]

    def _end(self, index: int) -> None:
        actor, self._actors[index] = self._actors[index], None
        if actor is not None:
            self._ray.kill(actor)

    def close(self) -> None:
        """End the actors, and Ray itself if it was started for this engine."""
        for index in range(len(self._actors)):
            self._end(index)
        if self._started:
            self._ray.shutdown()


class ClientActor:
    """What an actor is: clients, run by the local engine."""

    def __init__(
        self, plan: ExecutionPlan, keep: bool, cpus: float, own: list[Any], common: list[int], *things: Any
    ) -> None:
        self.members = {client.id: client for client in _rebuild_clients(own, common, things, cpus)}
        self.engine = LocalEngine(list(self.members.values()), plan, keep=keep)

    def serve(self, asked: Sequence[tuple[str, int]], *requests: Request) -> Iterator[Reply | Failure]:
        """The answers of the clients asked, each with the number of its request."""
        for client, _ in asked:
            store = self.members[client].store
            if isinstance(store, DiskStore) and not store.folder.is_dir():
                raise StorageError(
                    f"The node {platform.node()} of the Ray cluster does not see {store.folder}; --out must name a "
                    f"directory that all nodes share."
                )
        # no yield from: Ray sends into the generator, and the list iterators underneath take nothing
        for answer in self.engine.exchange({client: requests[number] for client, number in asked}):  # noqa: UP028
            yield answer


def actors_that_fit(nodes: Iterable[Mapping[str, float]], cpus: float, gpus: float) -> int:
    """How many actors the nodes can hold at once.

    >>> actors_that_fit([{"CPU": 4, "GPU": 1}, {"CPU": 3}], cpus=2, gpus=0)
    3
    >>> actors_that_fit([{"CPU": 4, "GPU": 1}, {"CPU": 3}], cpus=1, gpus=0.5)
    2
    """
    wanted = {"CPU": cpus, "GPU": gpus}
    room = [min(node.get(kind, 0) / each for kind, each in wanted.items() if each) for node in nodes]
    return sum(math.floor(actors + 1e-9) for actors in room)


def _imported() -> Any:
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # without it, Ray warns of its own future
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise TrustmixError('The engine "ray" needs Ray: pip install "trustmix[ray]".') from error


def _connect(ray: Any) -> bool:
    """Join the cluster at RAY_ADDRESS, or start a Ray here; false where that is somebody's business already."""
    if ray.is_initialized():
        return False
    address = os.environ.get("RAY_ADDRESS") or "local"
    try:
        ray.init(address, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # Ray raises plain ones too
        raise TrustmixError(f'Ray could not be reached or started ("{address}"): {error}') from error
    return True


def _share_objects(ray: Any, shares: Sequence[Sequence[Client]]) -> list[list[Any]]:
    """For each share what its actor unpacks: its own clients, and references to what they have in common with others.

    Tensors travel as arrays, which processes of one node read in the object store without a copy.
    """
    ray.util.register_serializer(torch.Tensor, serializer=_array, deserializer=_tensor)
    try:
        things = {id(thing): thing for share in shares for c in share for thing in (c.public, c.test)}
        stored = {key: ray.put(thing) for key, thing in things.items()}
        payloads = []
        for share in shares:
            own = [(client, id(client.public), id(client.test)) for client in map(copy.copy, share)]
            common = list(dict.fromkeys(key for _, *keys in own for key in keys))
            for client, *_ in own:
                vars(client).update(public=None, test=None, _live=None)
            payloads.append([ray.put(own), common, *(stored[key] for key in common)])
        return payloads
    finally:
        ray.util.deregister_serializer(torch.Tensor)


def _rebuild_clients(own: Sequence[Any], common: Sequence[int], things: Sequence[Any], cpus: float) -> list[Client]:
    """The clients of an actor, whole again, in a process that keeps to its processors."""
    torch.set_num_threads(max(1, int(cpus)))
    shared = dict(zip(common, things, strict=True))
    for client, public, test in own:
        vars(client).update(public=shared[public], test=shared[test])
    return [client for client, *_ in own]


def _choose(wanted: dict[str, str], cpus: float, own: Any, common: Any, *things: Any) -> tuple[ExecutionPlan, str]:
    return select_plan(_rebuild_clients(own, common, things, cpus), **wanted, workers=1)


def _array(tensor: torch.Tensor) -> tuple[Any, torch.dtype, torch.Size]:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy(), tensor.dtype, tensor.shape


def _tensor(stored: tuple[np.ndarray[Any, Any], torch.dtype, torch.Size]) -> torch.Tensor:
    array, dtype, shape = stored
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it cannot be written to is what it is for
        return torch.from_numpy(array).view(dtype).view(shape)
