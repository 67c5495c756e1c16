"""The Ray engine: clients in actors of a Ray cluster, or of a Ray started for the run (the extra `ray`).

Each actor runs the local engine with the same clients for the whole run. Data that clients share is stored once in the
object store of each node, and all actors of the node read it there. An actor that dies costs its clients one round: it
is started again, and its clients continue from their stores.
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
from trustmix.federation import ENGINES, Client, DiskStore, EngineSetup, Failure, Reply, Request
from trustmix.federation.folding import MakeFolder, PartialRound, UploadFolder
from trustmix.learners import DeviceConfig

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
    """Create the engine `ray` of a recipe.

    Parameters
    ----------
    clients
        The clients.
    keep
        Whether models stay in memory between rounds.
    mode
        "sequential", "stacked" or "auto".
    precision
        "float32", "bfloat16" or "auto".
    workers
        The number of actors; None is as many as the cluster holds.
    cpus, gpus
        The resources of each actor.

    Returns
    -------
    EngineSetup
        The engine, and the settings that were chosen where they were "auto".

    Raises
    ------
    TrustmixError
        If the mode is "processes", Ray is missing, or the cluster is too small.
    """
    if mode == "processes":
        raise TrustmixError('An actor of Ray is a process already; set engine.mode to "sequential" or "stacked".')
    engine = RayEngine(clients, keep=keep, workers=workers, cpus=cpus, gpus=gpus)
    try:
        plan, description = engine.select_plan(mode, precision)
    except BaseException:
        engine.close()
        raise
    hardware = DeviceConfig(best_device() if gpus else "cpu", plan.hardware.precision)
    resolved = {"mode": plan.mode, "precision": plan.hardware.precision}
    return EngineSetup(engine, f"{engine}: {description}", resolved, hardware)


class RayEngine:
    """Runs clients in actors of Ray; answers come in the order of the requests.

    Parameters
    ----------
    clients
        The clients, each with an id of its own.
    plan
        How an actor runs its clients; one after another if None.
    keep
        Whether models stay in memory between rounds.
    workers
        The number of actors; None is as many as the cluster holds.
    cpus, gpus
        The resources of each actor.

    Raises
    ------
    TrustmixError
        If Ray is missing or cannot be reached, the cluster is too small, or two clients have the same id.
    """

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
        self._ray = _import_ray()
        self.plan = plan or ExecutionPlan(hardware=DeviceConfig("cuda" if gpus else "cpu"))
        self.keep, self.cpus, self.gpus = keep, cpus, gpus
        self._clients = validate_ids(clients)
        self._actors: list[Any] = []
        self.received_bytes = 0
        """Bytes that the actors have sent in the last exchange in which they folded uploads."""
        self._started = _connect(self._ray)
        try:
            shares = assign_clients(clients, self._count_actors(workers))
            self._actor_of = {client.id: index for index, share in enumerate(shares) for client in share}
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
        """The client ids, in the order of the clients."""
        return self._clients

    def _count_actors(self, wanted: int | None) -> int:
        """The number of actors; raises if the cluster holds fewer than wanted."""
        alive = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        available = actors_that_fit(alive, self.cpus, self.gpus)
        if available < (wanted or 1):
            asked = f"{wanted or 1} actors of engine.cpus = {self.cpus:g} and engine.gpus = {self.gpus:g}"
            raise TrustmixError(f"The Ray cluster holds {available} of the {asked} that the recipe asks for.")
        return min(wanted or available, len(self._clients))

    def select_plan(self, mode: str, precision: str) -> tuple[ExecutionPlan, str]:
        """Choose how an actor runs its clients; settings that are "auto" are chosen by trials on a node.

        Parameters
        ----------
        mode
            "sequential", "stacked" or "auto".
        precision
            "float32", "bfloat16" or "auto".

        Returns
        -------
        ExecutionPlan
            The plan, which actors that start from now on use.
        str
            One line for the user: the plan and how it was found.
        """
        trial = self._ray.remote(num_cpus=self.cpus, num_gpus=self.gpus)(_select_plan_in_actor)
        settings = {"mode": mode, "precision": precision, "device": self.plan.hardware.device}
        if "auto" in settings.values():
            self.plan, description = self._ray.get(trial.remote(settings, self.cpus, *self._payloads[0]))
        else:
            self.plan, description = select_plan([], **settings, workers=1)
        return self.plan, description

    def exchange(self, requests: Mapping[str, Request]) -> Iterator[Reply | Failure]:
        """Run one step of each client that has a request.

        A request object that several clients share is put into the object store once.

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
        stored, asked = self._deal(requests)
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
            for index in arriving:  # an abandoned exchange: later answers must not reach the next exchange
                self._stop(index)

    def _deal(self, requests: Mapping[str, Request]) -> tuple[list[Any], dict[int, list[tuple[str, int]]]]:
        """The distinct requests in the object store, and by actor its clients, each with the index of its request."""
        distinct = {id(request): request for request in requests.values()}
        places = {key: place for place, key in enumerate(distinct)}
        asked: dict[int, list[tuple[str, int]]] = {}
        for client, request in requests.items():
            asked.setdefault(self._actor_of[client], []).append((client, places[id(request)]))
        return [self._ray.put(request) for request in distinct.values()], asked

    def exchange_folded(
        self, requests: Mapping[str, Request], make_folder: MakeFolder
    ) -> Iterator[Reply | Failure | PartialRound]:
        """Run one step of each client that has a request; each actor folds the uploads of its clients.

        What an actor sends grows by the figures of a client, not by its upload. Of an actor that dies nothing is used.

        Parameters
        ----------
        requests
            The request of each client, by client id.
        make_folder
            Makes what an actor folds with.

        Yields
        ------
        Reply, Failure or PartialRound
            One answer for each request, in the order of the requests, and before the first answer of an actor what it
            has folded.

        Raises
        ------
        StorageError
            If a client's state cannot be read or written.
        """
        stored, asked = self._deal(requests)
        running = {
            index: self._actor(index).serve_folded.remote(make_folder([client for client, _ in share]), share, *stored)
            for index, share in asked.items()
        }
        answers: dict[str, Reply | Failure] = {}
        self.received_bytes = 0
        try:
            for client in requests:
                if client not in answers:
                    index = self._actor_of[client]
                    part, found = self._receive_folded(index, running.pop(index), asked[index])
                    answers |= found
                    if part is not None:
                        yield part
                yield answers[client]
        finally:
            for index in running:  # an abandoned exchange
                self._stop(index)

    def _receive_folded(
        self, index: int, running: Any, share: Sequence[tuple[str, int]]
    ) -> tuple[PartialRound | None, dict[str, Reply | Failure]]:
        """What an actor has folded, and the answers of its clients; failures if it has died."""
        errors = self._ray.exceptions
        try:
            packed = self._ray.get(running)
        except errors.RayTaskError as error:
            raise error.cause from error
        except errors.RayError as error:
            log.debug("an actor died", exc_info=True)
            self._stop(index)
            reason = f"its actor died: {str(error).splitlines()[-1]}"
            return None, {client: Failure(client, reason) for client, _ in share}
        self.received_bytes += len(packed)
        part, answers = self._ray.cloudpickle.loads(packed)
        return part, {answer.client: answer for answer in answers}

    def _receive(self, client: str, arriving: Mapping[int, Iterator[Any]], died: dict[int, str]) -> Reply | Failure:
        """The answer of the client, which is the next answer of its actor."""
        index, errors = self._actor_of[client], self._ray.exceptions
        if index not in died:
            try:
                answer: Reply | Failure = self._ray.get(next(arriving[index]))
                return answer
            except errors.RayTaskError as error:
                raise error.cause from error
            except errors.RayError as error:
                log.debug("an actor died", exc_info=True)
                died[index] = f"its actor died: {str(error).splitlines()[-1]}"
                self._stop(index)
        return Failure(client, died[index])

    def _actor(self, index: int) -> Any:
        """The actor, started if it does not run."""
        if self._actors[index] is None:
            for folder in self._stores:
                folder.mkdir(parents=True, exist_ok=True)
            build = self._ray.remote(num_cpus=self.cpus, num_gpus=self.gpus)(ClientActor)
            self._actors[index] = build.remote(self.plan, self.keep, self.cpus, *self._payloads[index])
        return self._actors[index]

    def _stop(self, index: int) -> None:
        actor, self._actors[index] = self._actors[index], None
        if actor is not None:
            self._ray.kill(actor)

    def close(self) -> None:
        """End the actors, and Ray itself if it was started for this engine."""
        for index in range(len(self._actors)):
            self._stop(index)
        if self._started:
            self._ray.shutdown()


class ClientActor:
    """The code of an actor: a local engine with the actor's clients.

    Parameters
    ----------
    plan, keep
        As in `LocalEngine`.
    cpus
        The number of threads of the process, rounded down.
    own, common, *shared
        The clients as `_share_objects` packs them.
    """

    def __init__(
        self, plan: ExecutionPlan, keep: bool, cpus: float, own: list[Any], common: list[int], *shared: Any
    ) -> None:
        self.clients = {client.id: client for client in _rebuild_clients(own, common, shared, cpus)}
        self.engine = LocalEngine(list(self.clients.values()), plan, keep=keep)

    def serve(self, asked: Sequence[tuple[str, int]], *requests: Request) -> Iterator[Reply | Failure]:
        """Run one step of each client that has a request.

        Parameters
        ----------
        asked
            The ids of the clients, each with the index of its request.
        *requests
            The distinct requests.

        Yields
        ------
        Reply or Failure
            One answer for each client.

        Raises
        ------
        StorageError
            If the node does not see the run directory.
        """
        self._check_stores(asked)
        # not `yield from`: Ray calls `send` on the generator, and list iterators have no such method
        for answer in self.engine.exchange({client: requests[number] for client, number in asked}):  # noqa: UP028
            yield answer

    def serve_folded(self, folder: UploadFolder, asked: Sequence[tuple[str, int]], *requests: Request) -> bytes:
        """Run one step of each client that has a request, and fold the uploads.

        Parameters
        ----------
        folder
            What to fold with.
        asked, *requests
            As in `serve`.

        Returns
        -------
        bytes
            What was folded, a `PartialRound`, and the answers without the uploads in it, pickled.

        Raises
        ------
        StorageError
            If the node does not see the run directory.
        """
        self._check_stores(asked)
        given = {client: requests[number] for client, number in asked}
        answers = [
            folder.fold_here(answer, given[answer.client]) if isinstance(answer, Reply) else answer
            for answer in self.engine.exchange(given)
        ]
        packed: bytes = _import_ray().cloudpickle.dumps((folder.result(), answers))
        return packed

    def _check_stores(self, asked: Sequence[tuple[str, int]]) -> None:
        for client, _ in asked:
            store = self.clients[client].store
            if isinstance(store, DiskStore) and not store.folder.is_dir():
                raise StorageError(
                    f"The node {platform.node()} of the Ray cluster does not see {store.folder}; --out must name a "
                    f"directory that all nodes share."
                )


def actors_that_fit(nodes: Iterable[Mapping[str, float]], cpus: float, gpus: float) -> int:
    """Return the number of actors that the nodes of a cluster hold.

    Parameters
    ----------
    nodes
        The resources of each node: the numbers of "CPU" and "GPU".
    cpus, gpus
        The resources of each actor.

    Returns
    -------
    int
        The sum over nodes.

    Examples
    --------
    >>> actors_that_fit([{"CPU": 4, "GPU": 1}, {"CPU": 3}], cpus=2, gpus=0)
    3
    >>> actors_that_fit([{"CPU": 4, "GPU": 1}, {"CPU": 3}], cpus=1, gpus=0.5)
    2
    """
    needed = {"CPU": cpus, "GPU": gpus}
    capacity = [min(node.get(kind, 0) / each for kind, each in needed.items() if each) for node in nodes]
    return sum(math.floor(actors + 1e-9) for actors in capacity)


def _import_ray() -> Any:
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # otherwise Ray prints a FutureWarning
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise TrustmixError('The engine "ray" needs Ray: pip install "trustmix[ray]".') from error


def _connect(ray: Any) -> bool:
    """Join the cluster at RAY_ADDRESS or start Ray on this machine; false if Ray is initialized already."""
    if ray.is_initialized():
        return False
    address = os.environ.get("RAY_ADDRESS") or "local"
    try:
        ray.init(address, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # Ray raises exceptions of many types
        raise TrustmixError(f'Ray could not be reached or started ("{address}"): {error}') from error
    return True


def _share_objects(ray: Any, shares: Sequence[Sequence[Client]]) -> list[list[Any]]:
    """For each actor the arguments of `_rebuild_clients`: its clients, and references to data that clients share.

    Tensors are sent as arrays, which the processes of a node read in the object store without a copy.
    """
    ray.util.register_serializer(torch.Tensor, serializer=_to_array, deserializer=_to_tensor)
    try:
        shared = {id(data): data for share in shares for c in share for data in (c.public, c.test)}
        stored = {key: ray.put(data) for key, data in shared.items()}
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


def _rebuild_clients(own: Sequence[Any], common: Sequence[int], shared: Sequence[Any], cpus: float) -> list[Client]:
    """The clients of an actor with their shared data, in a process with as many threads as the actor has CPUs."""
    torch.set_num_threads(max(1, int(cpus)))
    by_key = dict(zip(common, shared, strict=True))
    for client, public, test in own:
        vars(client).update(public=by_key[public], test=by_key[test])
    return [client for client, *_ in own]


def _select_plan_in_actor(
    settings: dict[str, str], cpus: float, own: Any, common: Any, *shared: Any
) -> tuple[ExecutionPlan, str]:
    return select_plan(_rebuild_clients(own, common, shared, cpus), **settings, workers=1)


def _to_array(tensor: torch.Tensor) -> tuple[Any, torch.dtype, torch.Size]:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy(), tensor.dtype, tensor.shape


def _to_tensor(stored: tuple[np.ndarray[Any, Any], torch.dtype, torch.Size]) -> torch.Tensor:
    array, dtype, shape = stored
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the array is read-only, as it must be in the object store
        return torch.from_numpy(array).view(dtype).view(shape)
