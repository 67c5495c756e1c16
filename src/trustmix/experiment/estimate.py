"""Estimate the cost of a run before it starts: bytes for every codec, memory, and time.

Time is the number of training steps and of predictions, divided by their rates in a short trial on this machine under
its current load. The trial's texts are unsorted, so that all its steps cost the same; a run sorts them by length, and
its steps are counted by the tokens that they are padded to. Bytes are those of a real message about some public
samples, scaled up; the model is still untrained, so later messages compress better or worse.

Where clients are many and made on demand, time and memory are those of short trial runs, scaled up (see `trial_run`).
"""

import math
import time
from collections.abc import Hashable
from dataclasses import dataclass

import torch

from trustmix.data import Labelled, stratified_holdout
from trustmix.density import DISCRIMINATOR, PrecomputedScores
from trustmix.engines import ExecutionPlan, select_plan
from trustmix.engines.autotune import MAX_TRIAL_CLIENTS, measure_throughput, trained_by_steps
from trustmix.errors import TrustmixError
from trustmix.experiment.build import build_client, build_federation, client_model_factory
from trustmix.experiment.data import load_data, load_public
from trustmix.experiment.resources import memory_needed
from trustmix.experiment.trial_run import estimate_run
from trustmix.federation import Client, Public
from trustmix.lazy import MANY
from trustmix.learners import DeviceConfig, make_learner
from trustmix.learners.discriminator import count_steps
from trustmix.learners.scoring import score_inputs
from trustmix.learners.training import batches, predict, token_lengths
from trustmix.seeds import torch_generator
from trustmix.settings.config import EngineConfig
from trustmix.settings.recipe import Recipe
from trustmix.wire import CODECS, UPLOAD_ENCODERS, MessageHeader, encode_teacher, fedavg_bytes, scaffold_bytes

PUBLIC_ONLY = "shared"
"""The data set of a server that has the public set alone."""
TRIAL_SAMPLES = 256
"""Samples at most that are predicted for the estimate."""
TRIAL_CLIENTS = 100
"""Clients at most that are made for the estimate where clients are made on demand."""


@dataclass(frozen=True)
class CostEstimate:
    """The estimated cost of a run.

    Parameters
    ----------
    clients, rounds : int
        The size of the run.
    parameters : tuple of int
        The number of parameters of each model of the recipe.
    engine : str
        How the clients would be run, and how that was chosen.
    training_seconds, predicting_seconds : float
        The time of training and of prediction in the whole run; with train.public_epochs = "auto" the longest.
    memory : float
        Bytes, estimated from above.
    messages : dict of str to pair of int
        By codec: bytes that one client sends and receives in the whole run.
    weights : dict of str to pair of int
        The same by method, for methods that share weights; empty if clients have different models.
    epsilon : tuple of three floats, optional
        The privacy cost of the first round, of a later round, and of all rounds; the largest of all clients.
    cpu_seconds : float, optional
        The CPU time of all processes, where it was estimated from trial runs.
    node_samples : int, optional
        Set for a recipe that is served to nodes, whose data are not here: the time is that of one node with so many
        private samples and a machine like this one, the memory that of the server.
    """

    clients: int
    rounds: int
    parameters: tuple[int, ...]
    engine: str
    training_seconds: float
    predicting_seconds: float
    memory: float
    messages: dict[str, tuple[int, int]]
    weights: dict[str, tuple[int, int]]
    epsilon: tuple[float, float, float] | None = None
    cpu_seconds: float | None = None
    node_samples: int | None = None

    @property
    def seconds(self) -> float:
        """The time of the whole run."""
        return self.training_seconds + self.predicting_seconds


def estimate_cost(recipe: Recipe) -> CostEstimate:
    """Estimate the cost of a run on this machine.

    Parameters
    ----------
    recipe : Recipe
        The recipe; its data are loaded and its clients are built.

    Returns
    -------
    CostEstimate
        Bytes, memory and time.

    Raises
    ------
    TrustmixError
        If the recipe cannot be built, or a training step fails.

    Examples
    --------
    >>> cost = estimate_cost(Recipe.load("demo", ["engine.mode=sequential"]))
    >>> cost.messages["float32"][0] > 10 * cost.messages["argmax"][0]
    True
    """
    served = recipe.data.name == PUBLIC_ONLY
    on_demand = not served and recipe.engine.store == "disk" and recipe.clients > MANY
    clients = [_stand_in(recipe)] if served else _trial_clients(recipe, on_demand)
    config = recipe.engine
    if served:  # as a node computes, whatever the server's recipe has
        config = EngineConfig(mode="sequential", precision="float32", device="cpu")
    plan, description = select_plan(
        clients, mode=config.mode, precision=config.precision, device=config.device, workers=config.workers
    )
    stepping = trained_by_steps(clients)
    rate = measure_throughput(stepping[:MAX_TRIAL_CLIENTS], plan) if stepping else math.inf
    if rate == 0:
        raise TrustmixError("A trial of some training steps failed; `trustmix run` shows which client fails and why.")
    exchanges = recipe.method.exchanges == "predictions"
    kinds = list({client.architecture: client for client in clients}.values())
    parameters = tuple(sum(p.numel() for p in client.build_model().parameters()) for client in kinds)
    asked = recipe.participation.fraction * (1 if served else recipe.clients / len(clients))
    tried = estimate_run(recipe) if on_demand else None
    fitting = _fitting_seconds(clients, stepping, recipe.rounds, exchanges)
    return CostEstimate(
        recipe.clients,
        recipe.rounds,
        parameters,
        f"flower; each node: {description}" if served else description,
        asked * (_padded_share(clients[0]) * _steps(stepping, recipe, exchanges) / rate + fitting / plan.workers),
        asked * _predicting_seconds(clients, kinds, recipe.rounds, plan, exchanges),
        memory_needed(recipe.model_copy(update={"clients": 1}) if served else recipe)
        if tried is None
        else tried.memory,
        _messages(clients[0], recipe.rounds) if exchanges else {},
        _weights(parameters[0], recipe.rounds) if len(kinds) == 1 else {},
        _epsilon(clients, recipe.rounds),
        None if tried is None else tried.cpu_seconds,
        recipe.split.samples_per_client if served else None,
    )


def _trial_clients(recipe: Recipe, on_demand: bool) -> list[Client]:
    """The clients of a federation without faults; the first ones where they are made on demand."""
    changes = ["engine.name=local", "engine.mode=sequential", "faults.crash=0", "faults.late=0", "faults.slow=0"]
    changes.append(f"engine.store={'disk' if on_demand else 'memory'}")  # another name starts the section anew
    with build_federation(Recipe.load(recipe, changes)) as experiment:
        return list(experiment.clients[:TRIAL_CLIENTS] if on_demand else experiment.clients)


def _stand_in(recipe: Recipe) -> Client:
    """A client in the place of a node whose data are elsewhere: public inputs, and each class as often as another."""
    data = load_data(recipe)
    samples, count = load_public(recipe, data), recipe.split.samples_per_client
    inputs = samples.inputs[torch.arange(count) % len(samples)]
    own = Labelled(inputs, torch.arange(count) % data.classes)
    share = (own, own)
    if recipe.holds_out:
        kept, held_out = stratified_holdout(own.labels, recipe.density.holdout, recipe.seed, "node")
        share = (own[kept], own[held_out])
    model = client_model_factory(recipe, data, recipe.models[0], "node")
    return build_client(recipe, "node", model, share, Public(samples.inputs, data.classes), None, None)


def _steps(clients: list[Client], recipe: Recipe, exchanges: bool) -> int:
    """The training steps of all clients in all rounds, at most."""
    train, rounds = recipe.train, recipe.rounds
    if not clients:
        return 0
    private = sum(math.ceil(len(c.private) / train.batch) for c in clients)
    public = len(clients) * math.ceil(len(clients[0].public.inputs) / train.batch)
    first, later = (clients[0].training.max_public_epochs(stages) for stages in (1, 2))
    distilled = first + (rounds - 1) * later if exchanges else 0
    scored = 0
    if recipe.density.kind == DISCRIMINATOR and exchanges:
        scored = sum(count_steps(len(c.private), len(c.public.inputs), train.batch) for c in clients)
    if exchanges and train.stages == "mixed":
        return private * train.first_epochs + (private + public) * distilled + scored
    return private * (train.first_epochs + (rounds - 1) * train.epochs) + public * distilled + scored


def _fitting_seconds(clients: list[Client], stepping: list[Client], rounds: int, exchanges: bool) -> float:
    """Seconds of the fits of all classifiers in all rounds, by the first fit of one of each kind."""
    each: dict[Hashable, float] = {}
    total = 0.0
    for client in (client for client in clients if client not in stepping):
        if client.architecture not in each:
            learner = make_learner(client.build_model(), client.training, client.hardware)
            job = learner.fit(client.private, epochs=1, generator=torch.Generator())
            job.run()
            each[client.architecture] = job.seconds / len(client.private)
        own = len(client.private)
        samples = 2 * own + len(client.public.inputs) if exchanges else own
        total += rounds * samples * each[client.architecture]
    return total


def _padded_share(client: Client) -> float:
    """Of texts: the mean padded length of a run's batches, as a part of that of the trial's unsorted ones; else 1."""
    sizes = token_lengths(client.private.inputs)
    if sizes is None:
        return 1.0
    lengths = []
    for order in (sizes, None):
        generator = torch_generator(client.seed, "trial", client.id)
        found = [int(sizes[batch].max()) for batch in batches(len(sizes), client.training.batch, generator, order)]
        lengths.append(sum(found) / len(found))
    return lengths[0] / lengths[1]


def _epsilon(clients: list[Client], rounds: int) -> tuple[float, float, float] | None:
    """The privacy cost of rounds; a client that is not asked in every round spends less."""
    if clients[0].privacy is None:
        return None
    first, later, total = (
        max(client.privacy_spent(stages)[key] for client in clients)
        for stages, key in ((1, "epsilon"), (max(2, rounds), "epsilon_round"), (rounds, "epsilon"))
    )
    return first, later, total


def _predicting_seconds(
    clients: list[Client], kinds: list[Client], rounds: int, plan: ExecutionPlan, exchanges: bool
) -> float:
    """Seconds of prediction in the whole run.

    In each round a client predicts the public, the calibration and the test set, and its own classes of the test set.
    """
    each = []
    for client in kinds:
        model = plan.hardware.to_device(client.build_model())
        inputs = client.public.inputs[:TRIAL_SAMPLES].to(plan.hardware.device)
        predict(model, inputs[:2], plan.hardware)
        begin = time.perf_counter()
        predict(model, inputs, plan.hardware)
        each.append((time.perf_counter() - begin) / len(inputs))
    test = len(clients[0].test) if clients[0].test is not None else 0
    held = sum(len(torch.unique(c.private.labels)) for c in clients) / len(clients) / clients[0].public.classes
    samples = (1 + held) * test
    if exchanges:
        samples += len(clients[0].public.inputs) + sum(len(c.calibration) for c in clients) / len(clients)
    return len(clients) * rounds * samples * sum(each) / len(each) / plan.workers


def _messages(client: Client, rounds: int) -> dict[str, tuple[int, int]]:
    """Bytes that one client sends and receives in all rounds, from messages about some of the public samples."""
    public, calibration = client.public, client.calibration
    calibration = calibration[torch.arange(min(TRIAL_SAMPLES, len(calibration)))].to("cpu")
    inputs = public.inputs[:TRIAL_SAMPLES].cpu()
    kind = "gaussians" if client.density == DISCRIMINATOR else client.density  # any scores take as many bytes
    scored = score_inputs(client.build_model(), calibration, inputs, DeviceConfig(), kind, client.standardise)
    logits, density = scored.logits, PrecomputedScores(scored.scores)
    header = MessageHeader("0", 1, public.fingerprint, len(logits), public.classes)
    scale = rounds * len(public.inputs) / len(logits)
    found = {}
    for codec in CODECS.names():
        if codec.startswith("top-") and int(codec[4:]) >= public.classes:
            continue
        up = UPLOAD_ENCODERS["scores"](logits, density, header, codec)
        down = encode_teacher(torch.softmax(logits, 1), header, codec)
        found[codec] = round(scale * len(up)), round(scale * len(down))
    return dict(sorted(found.items(), key=lambda entry: -entry[1][0]))


def _weights(parameters: int, rounds: int) -> dict[str, tuple[int, int]]:
    """Bytes that one client sends and receives in all rounds, for methods that share weights."""
    each = {"FedAvg": fedavg_bytes(parameters, rounds), "SCAFFOLD": scaffold_bytes(parameters, rounds)}
    return {name: (count, count) for name, count in each.items()}
