"""What a run will cost, before it is run: bytes for every codec, memory, and time from a few timed steps.

Time is steps divided by the steps a second of a trial, plus everything that is predicted at the rate of a trial; so it
is right for this machine, as busy as it is now. Bytes are those of a real message about some public samples, scaled
up; as the model is still untrained, later messages will compress better or worse.
"""

import math
import time
from dataclasses import dataclass

import torch

from trustmix.density import PrecomputedScores
from trustmix.engines import ExecutionPlan, select_plan
from trustmix.engines.autotune import MAX_TRIAL_CLIENTS, measure_throughput
from trustmix.errors import TrustmixError
from trustmix.experiment.build import build_federation
from trustmix.experiment.recipe import Recipe
from trustmix.experiment.resources import memory_needed
from trustmix.federation import Client, DeviceConfig
from trustmix.federation.scoring import score_inputs
from trustmix.federation.training import predict
from trustmix.wire import CODECS, UPLOAD_ENCODERS, MessageHeader, encode_teacher, fedavg_bytes, scaffold_bytes

SOME = 256
"""Public samples that are predicted for the forecast."""


@dataclass(frozen=True)
class CostEstimate:
    """What a run will cost."""

    clients: int
    rounds: int
    parameters: tuple[int, ...]
    """Of each model of the recipe."""
    engine: str
    """How clients would be run, and how that was found."""
    training_seconds: float
    predicting_seconds: float
    memory: float
    """Bytes, estimated from above."""
    messages: dict[str, tuple[int, int]]
    """By codec: bytes that one client sends and receives in the whole run."""
    weights: dict[str, tuple[int, int]]
    """The same for methods that share weights, where all clients have the same model."""
    epsilon: tuple[float, float, float] | None = None
    """What the client that spends most spends of its privacy in the first round, a later one, and all together."""

    @property
    def seconds(self) -> float:
        """The whole run."""
        return self.training_seconds + self.predicting_seconds


def estimate_cost(recipe: Recipe) -> CostEstimate:
    """What a run of the recipe will cost on this machine.

    >>> cost = estimate_cost(Recipe.load("demo", ["engine.mode=sequential"]))
    >>> cost.messages["float32"][0] > 10 * cost.messages["argmax"][0]
    True
    """
    quiet = ["engine.name=local", "engine.mode=sequential", "engine.store=memory", "faults.crash=0", "faults.late=0"]
    with build_federation(Recipe.load(recipe, quiet)) as experiment:
        clients = list(experiment.clients)
    wanted = recipe.engine
    plan, found = select_plan(
        clients, mode=wanted.mode, precision=wanted.precision, device=wanted.device, workers=wanted.workers
    )
    rate = measure_throughput(clients[:MAX_TRIAL_CLIENTS], plan)
    if rate == 0:
        raise TrustmixError("A trial of some training steps failed; `trustmix run` says which client fails and why.")
    exchanges = recipe.method.exchanges == "predictions"
    kinds = list({client.architecture: client for client in clients}.values())
    parameters = tuple(sum(p.numel() for p in client.model().parameters()) for client in kinds)
    asked = recipe.participation.fraction
    return CostEstimate(
        len(clients),
        recipe.rounds,
        parameters,
        found,
        asked * _steps(clients, recipe, exchanges) / rate,
        asked * _predicting_seconds(clients, kinds, recipe.rounds, plan, exchanges),
        memory_needed(recipe),
        _messages(clients[0], recipe.rounds) if exchanges else {},
        _weights(parameters[0], recipe.rounds) if len(kinds) == 1 else {},
        _epsilon(clients, recipe.rounds),
    )


def _steps(clients: list[Client], recipe: Recipe, exchanges: bool) -> int:
    """Training steps of all clients in all rounds."""
    train, rounds = recipe.train, recipe.rounds
    private = sum(math.ceil(len(c.private) / train.batch) for c in clients) * (
        train.first_epochs + (rounds - 1) * train.epochs
    )
    public = len(clients) * math.ceil(len(clients[0].public.inputs) / train.batch) * rounds * train.public_epochs
    return private + (public if exchanges else 0)


def _epsilon(clients: list[Client], rounds: int) -> tuple[float, float, float] | None:
    """What rounds cost of the promised privacy; a client that is not asked in every round spends less."""
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
    """The public and the calibration set once a round, the test set once, and the client's own classes in it."""
    each = []
    for client in kinds:
        model = plan.hardware.to_device(client.model())
        inputs = client.public.inputs[:SOME].to(plan.hardware.device)
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
    """What one client sends and receives in all rounds, from messages about some of the public samples."""
    known, public = client.calibration[torch.arange(min(SOME, len(client.calibration)))].to("cpu"), client.public
    said = score_inputs(
        client.model(), known, public.inputs[:SOME].cpu(), DeviceConfig(), client.density, client.standardise
    )
    logits, density = said.logits, PrecomputedScores(said.scores)
    envelope = MessageHeader("0", 1, public.fingerprint, len(logits), public.classes)
    scale = rounds * len(public.inputs) / len(logits)
    found = {}
    for codec in CODECS.names():
        if codec.startswith("top-") and int(codec[4:]) >= public.classes:
            continue
        up = UPLOAD_ENCODERS["scores"](logits, density, envelope, codec)
        down = encode_teacher(torch.softmax(logits, 1), envelope, codec)
        found[codec] = round(scale * len(up)), round(scale * len(down))
    return dict(sorted(found.items(), key=lambda entry: -entry[1][0]))


def _weights(parameters: int, rounds: int) -> dict[str, tuple[int, int]]:
    """What methods that share weights send and receive."""
    each = {"FedAvg": fedavg_bytes(parameters, rounds), "SCAFFOLD": scaffold_bytes(parameters, rounds)}
    return {name: (count, count) for name, count in each.items()}
