"""Autotuning of the local engine: the fastest plan for given clients, found by timing a few training steps of each.

The choice is stored in the cache folder, for this machine and this kind of federation. Timings vary, and the same
recipe must give the same numbers, to the last bit, each time.
"""

import hashlib
import itertools
import logging
import math
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trustmix import paths, storage
from trustmix.engines.local import ExecutionPlan, LocalEngine, Mode, assign_clients, cores, make_plan, run_jobs
from trustmix.engines.process_pool import Worker
from trustmix.engines.vectorized import stack_key, train_stacked
from trustmix.errors import StorageError, TrustmixError
from trustmix.federation import ENGINES, Client, EngineSetup
from trustmix.learners import DeviceConfig, TrainingJob
from trustmix.learners.training import batches
from trustmix.models import ClassifierModel
from trustmix.seeds import torch_generator

log = logging.getLogger(__name__)

MAX_TRIAL_CLIENTS, MAX_TRIAL_STEPS = 32, 16
MAX_CONSIDERED = 256
"""Clients among which those of a trial are looked for."""
TRIAL_SECONDS = 0.25
"""A trial takes at most about this many seconds, unless one step takes longer."""
RETRY_FACTOR = 2.0
"""A plan that is this many times slower than the fastest has no second trial, nor has one that needs seconds a step."""
MODE_ORDER: tuple[Mode, ...] = ("processes", "stacked", "sequential")
MIN_SPEEDUP = 1.1
"""The selected plan is the first one in the order that is at most this many times slower than the fastest."""


def select_plan(
    clients: Sequence[Client],
    *,
    mode: str = "auto",
    precision: str = "auto",
    device: str = "auto",
    workers: int | None = None,
) -> tuple[ExecutionPlan, str]:
    """Return the fastest plan for clients on this machine; only settings that are "auto" are chosen by trials.

    Parameters
    ----------
    clients
        The clients; trials train fresh models of them, so that the clients themselves do not change.
    mode
        "sequential", "processes", "stacked" or "auto".
    precision
        "float32", "bfloat16" or "auto", which is float32: the load of a machine must not decide the numbers of a run.
    device
        A device of torch, or "auto".
    workers
        The number of processes; None is one per core.

    Returns
    -------
    ExecutionPlan
        The plan.
    str
        One line for the user: the plan and how it was found.

    Raises
    ------
    TrustmixError
        If the process of a trial died.

    Examples
    --------
    >>> select_plan([], mode="sequential", precision="float32", device="cpu")[1]
    'sequential, float32 (as set)'
    """
    plans = _candidates(len(clients), mode, precision, best_device() if device == "auto" else device, workers)
    if len(plans) == 1:
        return plans[0], f"{plans[0]} (as set)"
    clients = trained_by_steps(list(clients[:MAX_CONSIDERED]))[:MAX_TRIAL_CLIENTS]
    if not clients:
        return plans[0], f"{plans[0]} (classifiers are fitted as a whole)"
    if not can_stack(clients, plans[0].hardware):
        plans = [plan for plan in plans if plan.mode != "stacked"] or plans
    key = _cache_key(clients, plans)
    with _lock_cache():
        known = _read_cache().get(key)
        if known is not None:
            return plans[known["plan"]], f"{plans[known['plan']]} (found before: {known['timings']})"
        best, timings = _time_plans(clients, plans)
        _write_cache(key, {"plan": best, "timings": timings})
    return plans[best], f"{plans[best]} (timed: {timings})"


def trained_by_steps(clients: Sequence[Client]) -> list[Client]:
    """Return the clients that are trained in steps, which can be timed and stacked; classifiers are not.

    Parameters
    ----------
    clients
        The clients.

    Returns
    -------
    list of Client
        Those whose model is a network.
    """
    kinds = {client.architecture: client for client in clients}
    fitted = {kind for kind, client in kinds.items() if isinstance(client.build_model(), ClassifierModel)}
    return [client for client in clients if client.architecture not in fitted]


def _candidates(clients: int, mode: str, precision: str, device: str, workers: int | None) -> list[ExecutionPlan]:
    """All plans that the settings allow."""
    hardware = DeviceConfig(device, "float32" if precision == "auto" else precision)
    modes: Sequence[Any] = [mode]
    if mode == "auto":
        modes = MODE_ORDER if (workers or cores()) > 1 else [mode for mode in MODE_ORDER if mode != "processes"]
    return [make_plan(mode, workers=workers, hardware=hardware, clients=clients) for mode in modes]


@ENGINES.register("local")
def create_local_engine(
    clients: Sequence[Client],
    *,
    keep: bool = True,
    mode: str = "sequential",
    precision: str = "float32",
    device: str = "cpu",
    workers: int | None = None,
) -> EngineSetup:
    """Create the engine `local` of a recipe.

    Parameters
    ----------
    clients
        The clients.
    keep
        Whether models stay in memory between rounds.
    mode, precision, device, workers
        As in `select_plan`.

    Returns
    -------
    EngineSetup
        The engine, and the settings that were chosen where they were "auto".
    """
    plan, description = select_plan(clients, mode=mode, precision=precision, device=device, workers=workers)
    resolved = {"mode": plan.mode, "workers": plan.workers, **asdict(plan.hardware)}
    return EngineSetup(LocalEngine(clients, plan, keep=keep), description, resolved, plan.hardware)


def _time_plans(clients: Sequence[Client], plans: Sequence[ExecutionPlan]) -> tuple[int, str]:
    """The index of the fastest plan, and all timings in words.

    Each plan has two trials, in turns, and the faster one counts: disturbances only slow a trial down.
    """
    first = [measure_throughput(clients, plan) for plan in plans]
    retry = [rate > 1.0 and max(first) < RETRY_FACTOR * rate for rate in first]
    rates = [
        max(rate, measure_throughput(clients, plan)) if again else rate
        for plan, rate, again in zip(plans, first, retry, strict=True)
    ]
    best = next(index for index, rate in enumerate(rates) if rate * MIN_SPEEDUP >= max(rates))
    unit = rates[-1] or 1.0
    timings = ", ".join(f"{plan} {rate / unit:.1f}x" for plan, rate in zip(plans, rates, strict=True))
    return best, timings


def best_device() -> str:
    """Return "cuda" or "mps" if such a GPU is available, otherwise "cpu"."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def measure_throughput(clients: Sequence[Client], plan: ExecutionPlan) -> float:
    """Measure how fast a plan trains clients; the trial uses fresh models, so that no client changes.

    Parameters
    ----------
    clients
        The clients.
    plan
        The plan.

    Returns
    -------
    float
        Training steps per second, summed over clients; 0 if training fails.

    Raises
    ------
    TrustmixError
        If the process of a trial died.
    """
    if plan.workers == 1:
        steps, seconds = _run_trial(clients, plan)
        return steps / seconds
    workers: list[Worker] = []
    for share in assign_clients(clients, plan.workers):
        workers.append(Worker(lambda _, share=share: iter([_run_trial(share, plan)]), workers))  # type: ignore[misc]
    try:
        for worker in workers:
            worker.connection.send(None)
        results = [(worker.connection.recv(), worker.connection.recv())[0] for worker in workers]
    except (EOFError, OSError) as error:
        raise TrustmixError(f"A trial of engine.mode = {plan.mode} died; set engine.mode = sequential.") from error
    finally:
        for worker in workers:
            worker.close()
    return float(sum(steps for steps, _ in results) / max(seconds for _, seconds in results))


def _run_trial(clients: Sequence[Client], plan: ExecutionPlan) -> tuple[int, float]:
    """The number of training steps, summed over clients, and their seconds, after a warm-up step of two samples."""
    trained = clients if plan.mode == "stacked" else clients[:1]
    jobs = {client.id: _trial_job(client, plan.hardware) for client in trained}
    run_jobs({name: replace(job, order=[job.order[0][:2]]) for name, job in jobs.items()})

    def time_steps(steps: int) -> float:
        begin = time.perf_counter()
        errors = run_jobs({name: replace(job, order=job.order[:steps]) for name, job in jobs.items()})
        # a plan that fails is never the fastest; if all plans fail, the first round reports the clients' errors
        return math.inf if errors else time.perf_counter() - begin

    steps, seconds = 1, time_steps(1)
    if (more := min(MAX_TRIAL_STEPS, int(TRIAL_SECONDS / seconds))) > 1:
        steps, seconds = more, time_steps(more)
    return steps * len(jobs), seconds


def can_stack(clients: Sequence[Client], hardware: DeviceConfig) -> bool:
    """Return whether stacking can speed up the training of some clients; tried with two samples of each.

    Models with convolutions are not stacked on a CPU: grouped convolutions take up to three times as long there.

    Parameters
    ----------
    clients
        The clients.
    hardware
        The device and the precision.

    Returns
    -------
    bool
        True if two clients of the same architecture were trained as one.
    """
    for architecture in dict.fromkeys(client.architecture for client in clients):
        pair = [client for client in clients if client.architecture == architecture][:2]
        jobs = [replace(_trial_job(client, hardware), order=[torch.arange(2)]) for client in pair]
        if hardware.device == "cpu" and any(isinstance(part, nn.Conv2d) for part in jobs[0].model.modules()):
            continue
        if len(jobs) == 2 and stack_key(jobs[0]) == stack_key(jobs[1]):
            try:
                train_stacked(jobs)
            except Exception:  # a model that cannot be stacked may raise anything
                log.debug("the model %s cannot be stacked", architecture, exc_info=True)
            else:
                return True
    return False


def _trial_job(client: Client, hardware: DeviceConfig) -> TrainingJob:
    """A few steps of private training of a fresh model; texts are not sorted, so that all steps cost the same."""
    model = hardware.to_device(client.build_model())
    data = client.private.to(hardware.device)
    job = TrainingJob.of(
        model,
        client.training.make_optimizer(model.parameters()),
        data.inputs,
        data.labels,
        epochs=1,
        generator=torch_generator(client.seed, "trial", client.id),
        architecture=client.architecture,
        training=client.training,
        hardware=hardware,
        augment=client.training.augment,
        noise=client.dp_sgd_params,
    )
    steps = batches(len(data), client.training.batch, torch_generator(client.seed, "trial", client.id))
    return replace(job, order=list(itertools.islice(itertools.cycle(steps), MAX_TRIAL_STEPS)))


def _cache_key(clients: Sequence[Client], plans: Sequence[ExecutionPlan]) -> str:
    """A hash of what the choice depends on: the machine, the models, the number of clients of each, the plans."""
    machine = (platform.processor(), platform.machine(), cores(), torch.get_num_threads(), torch.__version__)
    architectures = [client.architecture for client in clients]
    models = []
    for one in dict.fromkeys(architectures):
        model = clients[architectures.index(one)].build_model()
        models.append((architectures.count(one), repr(model), [tuple(p.shape) for p in model.parameters()]))
    private = clients[0].dp_sgd_params is not None
    facts = (machine, models, clients[0].training, private, [str(plan) for plan in plans])
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:24]


def _cache_file() -> Path:
    return paths.cache_dir() / "engine.json"


@contextmanager
def _lock_cache() -> Iterator[None]:
    """Lock the cache: runs that start together do not disturb each other's trials, and all use the first choice."""
    with ExitStack() as stack:
        with suppress(StorageError):  # without a cache folder there is nothing to share
            stack.enter_context(storage.lock_directory(_cache_file().parent, wait=True))
        yield


def _read_cache() -> dict[str, Any]:
    """The stored choices; if the file cannot be read, the trials are repeated."""
    try:
        return dict(storage.read_json(_cache_file()))
    except (StorageError, TypeError, ValueError):
        return {}


def _write_cache(key: str, choice: dict[str, Any]) -> None:
    """Store a choice; if the file cannot be written, the next run repeats the trials."""
    try:
        storage.write_json(_cache_file(), {**_read_cache(), key: choice})
    except StorageError:
        return
