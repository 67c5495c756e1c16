"""The fastest way to run these clients on this machine, found by timing a few real training steps of each candidate.

A choice is remembered in the cache folder, for this machine and this kind of federation: timings vary, and the same
recipe shall give the same numbers, to the last bit, each time.
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
from trustmix.federation import ENGINES, Client, DeviceConfig, EngineSetup, TrainingJob
from trustmix.federation.training import batches
from trustmix.seeds import torch_generator

log = logging.getLogger(__name__)

CLIENTS, STEPS = 32, 16
"""Size of a trial at most."""
ENOUGH = 0.25
"""Seconds of training that are enough for a trial."""
CLOSE = 2.0
"""A candidate this many times slower than the best is not tried again, nor is one that needs seconds for a step."""
ORDER: tuple[Mode, ...] = ("processes", "stacked", "sequential")
MARGIN = 1.1
"""A candidate must be this much faster than those before it in the order."""


def select_plan(
    clients: Sequence[Client],
    *,
    mode: str = "auto",
    precision: str = "auto",
    device: str = "auto",
    workers: int | None = None,
) -> tuple[ExecutionPlan, str]:
    """The plan for these clients, and in a line for the user how it was found.

    >>> select_plan([], mode="sequential", precision="float32", device="cpu")[1]
    'sequential, float32 (as set)'
    """
    device = best_device() if device == "auto" else device
    precisions = usable_precisions(device) if precision == "auto" else [precision]
    modes: Sequence[Any] = [mode]
    if mode == "auto":
        modes = ORDER if (workers or cores()) > 1 else [mode for mode in ORDER if mode != "processes"]
    plans = [
        make_plan(mode, workers=workers, hardware=DeviceConfig(device, precision), clients=len(clients))
        for precision in precisions
        for mode in modes
    ]
    if len(plans) == 1:
        return plans[0], f"{plans[0]} (as set)"
    clients = clients[:CLIENTS]
    if not can_stack(clients, plans[0].hardware):
        plans = [plan for plan in plans if plan.mode != "stacked"] or plans
    key = _key(clients, plans)
    with _one_at_a_time():
        known = _recall().get(key)
        if known is not None:
            return plans[known["plan"]], f"{plans[known['plan']]} (found before: {known['timings']})"
        best, timings = _fastest(clients, plans)
        _remember(key, {"plan": best, "timings": timings})
    return plans[best], f"{plans[best]} (timed: {timings})"


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
    """Clients on this machine: as set, and in the fastest way where something is "auto"."""
    plan, found = select_plan(clients, mode=mode, precision=precision, device=device, workers=workers)
    settled = {"mode": plan.mode, "workers": plan.workers, **asdict(plan.hardware)}
    return EngineSetup(LocalEngine(clients, plan, keep=keep), found, settled, plan.hardware)


def _fastest(clients: Sequence[Client], plans: Sequence[ExecutionPlan]) -> tuple[int, str]:
    """The index of the fastest plan, and all timings in words.

    Each is tried twice, in turns, and the better trial counts: what disturbs a trial only ever slows it down.
    """
    first = [measure_throughput(clients, plan) for plan in plans]
    again = [rate > 1.0 and max(first) < CLOSE * rate for rate in first]
    rates = [
        max(rate, measure_throughput(clients, plan)) if twice else rate
        for plan, rate, twice in zip(plans, first, again, strict=True)
    ]
    best = next(index for index, rate in enumerate(rates) if rate * MARGIN >= max(rates))
    unit = rates[-1] or 1.0
    timings = ", ".join(f"{plan} {rate / unit:.1f}x" for plan, rate in zip(plans, rates, strict=True))
    return best, timings


def best_device() -> str:
    """A GPU where there is one."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def usable_precisions(device: str) -> list[str]:
    """float32, and bfloat16 where the hardware has instructions for it."""
    if device == "cuda":
        has_bfloat16 = torch.cuda.is_bf16_supported()
    else:
        facts = Path("/proc/cpuinfo")
        flags = facts.read_text() if device == "cpu" and facts.exists() else ""
        has_bfloat16 = "avx512_bf16" in flags or "amx_bf16" in flags
    return ["float32", "bfloat16"] if has_bfloat16 else ["float32"]


def measure_throughput(clients: Sequence[Client], plan: ExecutionPlan) -> float:
    """Training steps of all clients together, a second, by this plan; on fresh models, so that nothing is changed."""
    if plan.workers == 1:
        steps, seconds = _trial(clients, plan)
        return steps / seconds
    workers: list[Worker] = []
    for share in assign_clients(clients, plan.workers):
        workers.append(Worker(lambda _, share=share: iter([_trial(share, plan)]), workers))  # type: ignore[misc]
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


def _trial(clients: Sequence[Client], plan: ExecutionPlan) -> tuple[int, float]:
    """How many client-steps were done in how many seconds, after a step of two samples to warm up."""
    together = clients if plan.mode == "stacked" else clients[:1]
    jobs = {client.id: _job(client, plan.hardware) for client in together}
    run_jobs({name: replace(job, order=[job.order[0][:2]]) for name, job in jobs.items()})

    def take(steps: int) -> float:
        begin = time.perf_counter()
        errors = run_jobs({name: replace(job, order=job.order[:steps]) for name, job in jobs.items()})
        # who fails is never the fastest; if all plans fail, the clients themselves will say why
        return math.inf if errors else time.perf_counter() - begin

    steps, seconds = 1, take(1)
    if (more := min(STEPS, int(ENOUGH / seconds))) > 1:
        steps, seconds = more, take(more)
    return steps * len(jobs), seconds


def can_stack(clients: Sequence[Client], hardware: DeviceConfig) -> bool:
    """Whether some of the clients can be trained as one with a gain, tried with two samples each.

    Convolutions are not tried on a CPU: stacked they become grouped ones, which take up to three times as long there.
    """
    for kind in dict.fromkeys(client.architecture for client in clients):
        alike = [client for client in clients if client.architecture == kind][:2]
        jobs = [replace(_job(client, hardware), order=[torch.arange(2)]) for client in alike]
        if hardware.device == "cpu" and any(isinstance(part, nn.Conv2d) for part in jobs[0].model.modules()):
            continue
        if len(jobs) == 2 and stack_key(jobs[0]) == stack_key(jobs[1]):
            try:
                train_stacked(jobs)
            except Exception:  # whatever a model does that cannot be stacked
                log.debug("the model %s cannot be stacked", kind, exc_info=True)
            else:
                return True
    return False


def _job(client: Client, hardware: DeviceConfig) -> TrainingJob:
    """A few steps of the client's private training, on a fresh model; texts not sorted, so that steps are alike."""
    model = hardware.to_device(client.model())
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
    return replace(job, order=list(itertools.islice(itertools.cycle(steps), STEPS)))


def _key(clients: Sequence[Client], plans: Sequence[ExecutionPlan]) -> str:
    """What the choice depends on: the machine, the models and how many there are of each, the candidates."""
    machine = (platform.processor(), platform.machine(), cores(), torch.get_num_threads(), torch.__version__)
    kinds = [client.architecture for client in clients]
    models = []
    for kind in dict.fromkeys(kinds):
        model = clients[kinds.index(kind)].model()
        models.append((kinds.count(kind), repr(model), [tuple(p.shape) for p in model.parameters()]))
    private = clients[0].dp_sgd_params is not None
    facts = (machine, models, clients[0].training, private, [str(plan) for plan in plans])
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:24]


def _cache_file() -> Path:
    return paths.cache_dir() / "engine.json"


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Runs that start together take turns, so that none disturbs a trial and all find the first one's choice."""
    with ExitStack() as held:
        with suppress(StorageError):  # without a cache folder there is nothing to share
            held.enter_context(storage.lock_directory(_cache_file().parent, wait=True))
        yield


def _recall() -> dict[str, Any]:
    """Choices made before; an unreadable file only means that the timing is repeated."""
    try:
        return dict(storage.read_json(_cache_file()))
    except (StorageError, TypeError, ValueError):
        return {}


def _remember(key: str, choice: dict[str, Any]) -> None:
    """Keep a choice; where the cache cannot be written, the next run times again."""
    try:
        storage.write_json(_cache_file(), {**_recall(), key: choice})
    except StorageError:
        return
