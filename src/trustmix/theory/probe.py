"""The meter: a round's uploads rebuilt from what clients stored, and the paper's quantities measured on them.

p* is a reference model trained on all private data together, which minimises F = mean_i F_i, or the public labels.
A few clients distil once more from the round's teacher; along their paths the constants of Proposition 1 are estimated.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean

import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

from trustmix import storage, theory
from trustmix.aggregation import Teacher, mix
from trustmix.data import Labelled, augment_batch
from trustmix.errors import TrustmixError
from trustmix.experiment.recipe import Recipe
from trustmix.federation import DeviceConfig, DiskStore, Round, Training
from trustmix.federation.client import calibration_generator
from trustmix.federation.scoring import score_inputs
from trustmix.federation.training import predict
from trustmix.models import ModelFactory
from trustmix.seeds import derive_seed

PROBES = 4
"""Clients whose distillation is followed."""
POINTS = 5
"""Points along it, its begin and its end included, at which constants are measured."""
SAMPLES = 32
"""Public samples whose gradients are taken one by one."""
SMALL = 2**20
"""A model of fewer parameters is small."""
MEASUREMENT_FORMAT = 1
"""The version of a line of theory.jsonl."""


@dataclass(frozen=True)
class Uploads:
    """What the clients of one round say of the same inputs."""

    predictions: torch.Tensor
    """(M, N, C)."""
    scores: torch.Tensor
    """(M, N)."""

    def teacher(self, tau: float) -> Teacher[torch.Tensor]:
        """Their weighted average of that temperature."""
        return mix(self.predictions, self.scores, tau=tau)


@dataclass(frozen=True)
class Measurement:
    """One line of theory.jsonl: the theory on one round. Squares are squares: b2 is b^2, noise is nu^2."""

    round: int
    method: str
    reference: str
    """What counts as p*: "model" or "labels"."""
    clients: int
    concentration: float
    effective_clients: float
    teacher_error: float
    """eps_teach against the reference."""
    label_error: float | None
    """The same against the public labels, where they are known."""
    score_energy: float
    """G_sc^2, the largest met."""
    c: float
    b2: float
    alpha: float
    m: float
    zeta2: float
    noise: float
    """nu^2, the largest met."""
    smoothness: float
    """L_F between the points met."""
    pl: float | None
    """mu_F of the points met."""
    floor: float
    """zeta^2/(1 - m), the floor of ||grad F||^2."""
    pl_floor: float | None
    """The floor of F - F* at the step size 1/L_F."""
    gradient: float
    """||grad F||^2, the mean over the stage: where the run stands against `floor`."""
    gap: float
    """F - F* at the end of the stage: where it stands against `pl_floor`."""
    discrepancy: float
    """||grad J_agg - grad J*||^2, the largest met, which the theory bounds by G_sc^2 eps_teach."""

    def to_json(self) -> str:
        """Format the measurement as one line of JSON; an infinite alpha, of a perfect teacher, is written as null."""
        values = {name: None if value == float("inf") else value for name, value in asdict(self).items()}
        return json.dumps({"format": MEASUREMENT_FORMAT, **values})

    @classmethod
    def from_json(cls, line: str, source: str = "theory.jsonl") -> "Measurement":
        """Parse a line that `to_json` wrote.

        Parameters
        ----------
        line
            One line of theory.jsonl; fields that this version of trustmix does not know are ignored.
        source
            The name of the line in an error message.

        Returns
        -------
        Measurement
            The measurement.

        Raises
        ------
        StorageError
            If the line is anything else or is of a newer format.
        """
        found = storage.parse_record(cls, storage.parse_json(line, source), MEASUREMENT_FORMAT, source)
        return found if found.alpha is not None else replace(found, alpha=float("inf"))


@dataclass(frozen=True)
class _Point:
    """What is measured at one moment of one client's distillation."""

    parameters: torch.Tensor
    loss: float
    gradient: torch.Tensor
    ideal: torch.Tensor
    distilled: torch.Tensor
    score_energy: float
    noise: float


@dataclass
class TheoryProbe:
    """Measures the runs that share one split: the same data, models and training, whatever their rule."""

    recipe: Recipe
    public: Labelled
    shares: Sequence[tuple[Labelled, Labelled]]
    """Each client's private and calibration samples."""
    factories: Sequence[ModelFactory]
    test: Labelled
    against: str = "model"
    """"model" or "labels"."""

    def __post_init__(self) -> None:
        device = self.recipe.engine.device
        self.hardware = DeviceConfig("cpu" if device == "auto" else device)
        self.training = Training(**self.recipe.train.model_dump())
        if self.against == "labels" and bool((self.public.labels < 0).any()):
            raise TrustmixError("The public labels are not all known; measure against the reference model instead.")

    @cached_property
    def pooled(self) -> tuple[Labelled, torch.Tensor]:
        """All private samples, and the weight of each in F: every client counts alike."""
        private = [share for share, _ in self.shares]
        samples = Labelled(torch.cat([p.inputs for p in private]), torch.cat([p.labels for p in private]))
        each = torch.cat([torch.full((len(p),), 1 / (len(p) * len(private))) for p in private])
        return samples.to(self.hardware.device), each.to(self.hardware.device)

    @cached_property
    def reference_model(self) -> nn.Module:
        """One model of the first client's kind, trained with labels for as many epochs as a client in the whole run."""
        recipe, (samples, weight) = self.recipe, self.pooled
        epochs = recipe.train.first_epochs + (recipe.rounds - 1) * recipe.train.epochs
        epochs += recipe.rounds * recipe.train.public_epochs
        model = self.hardware.place(self.factories[0]())
        for _ in self._descend(model, samples.inputs, samples.labels, epochs, weight * len(weight), "reference"):
            pass
        return model

    def reference(self, samples: Labelled) -> torch.Tensor:
        """p* (N, C)."""
        classes = self.factories[0].classes
        if self.against == "labels":
            return one_hot(samples.labels.cpu(), classes).double()
        return torch.softmax(self._predict(self.reference_model, samples.inputs).double(), 1)

    def uploads(self, folder: Path, line: Round, inputs: torch.Tensor | None = None) -> Uploads:
        """What the participants of a round say of the public set, or of other inputs, from the states they stored."""
        inputs = self.public.inputs if inputs is None else inputs
        wanted, device = self.recipe.density, self.hardware.device
        predictions, scores = [], []
        for client in line.participants:
            known = self.shares[int(client)][1]
            if wanted.calibration == "augmented":
                draws = calibration_generator(self.recipe.seed, client, line.round)
                known = Labelled(augment_batch(known.inputs, "crop-flip", draws), known.labels)
            model, samples = self._model(folder, client, line.round), inputs.to(device)
            said = score_inputs(model, known.to(device), samples, self.hardware, wanted.kind, wanted.standardise)
            predictions.append(torch.softmax(said.logits.double(), 1))
            scores.append(said.scores)
        return Uploads(torch.stack(predictions), torch.stack(scores))

    def measure(self, folder: Path, line: Round, tau: float) -> Measurement:
        """The theory on one round of a run, whose clients' states of that round are still there."""
        uploads = self.uploads(folder, line)
        teacher = uploads.teacher(tau)
        chi = float(teacher.concentration.mean())
        star = self.reference(self.public)
        error = theory.teacher_error(teacher.probabilities, star)
        chosen = line.participants[:: max(1, len(line.participants) // PROBES)][:PROBES]
        models = {client: self._model(folder, client, line.round) for client in chosen}
        paths = [self._path(model, teacher.probabilities, star, client) for client, model in models.items()]
        points = [point for path in paths for point in path]
        energy, noise = max(p.score_energy for p in points), max(p.noise for p in points)
        norms = [_square(p.gradient) for p in points]
        apart = [_square(p.gradient - p.ideal) for p in points]
        alignment = theory.fit_alignment(norms, apart, energy * error)
        oracle = theory.oracle(alignment, energy, error)
        least = self._least_loss
        smoothness = max(theory.smoothness([p.gradient for p in path], [p.parameters for p in path]) for path in paths)
        above = [(norm, p.loss - least) for norm, p in zip(norms, points, strict=True) if p.loss > least]
        pl = min(smoothness, theory.pl_constant(*zip(*above, strict=True))) if above else None
        step = {"gamma": 1 / smoothness, "smoothness": smoothness, "noise": noise}
        known = self.public.labels >= 0
        labels = one_hot(self.public.labels.clamp_min(0).cpu(), star.shape[1])
        return Measurement(
            round=line.round,
            method=line.method,
            reference=self.against,
            clients=len(line.participants),
            concentration=chi,
            effective_clients=1 / chi,
            teacher_error=error,
            label_error=theory.teacher_error(teacher.probabilities[known], labels[known]) if known.any() else None,
            score_energy=energy,
            c=alignment.c,
            b2=alignment.b2,
            alpha=oracle.alpha,
            m=oracle.m,
            zeta2=oracle.zeta2,
            noise=noise,
            smoothness=smoothness,
            pl=pl,
            floor=theory.stationarity_floor(oracle),
            pl_floor=None if pl is None else theory.pl_floor(oracle, pl=pl, **step),
            gradient=fmean(norms),
            gap=fmean(path[-1].loss for path in paths) - least,
            discrepancy=max(_square(p.distilled - p.ideal) for p in points),
        )

    def note(self, folder: Path, line: Round, tau: float) -> None:
        """Measure a round and write it into theory.jsonl; a round that is told again after a crash replaces itself."""
        kept = [found for found in read_measurements(folder) if found.round < line.round]
        lines = [found.to_json() + "\n" for found in [*kept, self.measure(folder, line, tau)]]
        storage.write_bytes(folder / "theory.jsonl", "".join(lines).encode())

    @cached_property
    def _least_loss(self) -> float:
        """F*: that of the reference model; 0, which no cross-entropy is below, where there is none."""
        samples, weight = self.pooled
        if self.against == "labels":
            return 0.0
        return _loss_and_gradient(self.reference_model, samples.inputs, samples.labels, weight)[0]

    def _model(self, folder: Path, client: str, round_: int) -> nn.Module:
        """The client's model as it was when it predicted the public set in that round."""
        state = DiskStore(folder / "checkpoint" / "clients" / client).before(round_ + 1)
        if state is None:
            raise TrustmixError(f"{folder} has no stored state of client {client}; the meter needs its checkpoint.")
        model = self.factories[int(client)]()
        model.load_state_dict({name[6:]: tensor for name, tensor in state[0].items() if name.startswith("model.")})
        return self.hardware.place(model)

    def _predict(self, model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        return predict(model, inputs.to(self.hardware.device), self.hardware).cpu()

    def _path(self, model: nn.Module, teacher: torch.Tensor, star: torch.Tensor, client: str) -> list[_Point]:
        """Points along one distillation from the teacher, with the recipe's optimiser, its state fresh."""
        device = self.hardware.device
        inputs, p, best = (tensor.to(device) for tensor in (self.public.inputs, teacher.float(), star.float()))
        samples, weight = self.pooled
        alike = torch.full((len(inputs),), 1 / len(inputs), device=device)
        points = []
        epochs = self.training.public_epochs
        for now in self._descend(model, inputs, p, epochs, torch.ones_like(alike), f"probe {client}"):
            with _threads_for(now):
                loss, gradient = _loss_and_gradient(now, samples.inputs, samples.labels, weight)
                points.append(
                    _Point(
                        parameters=_flat([q.detach() for q in now.parameters() if q.requires_grad]),
                        loss=loss,
                        gradient=gradient,
                        ideal=_loss_and_gradient(now, inputs, best, alike)[1],
                        distilled=_loss_and_gradient(now, inputs, p, alike)[1],
                        score_energy=theory.score_energy(now, inputs[:SAMPLES]),
                        noise=theory.gradient_noise(now, inputs[:SAMPLES], p[:SAMPLES], self.training.batch),
                    )
                )
        return points

    def _descend(
        self,
        model: nn.Module,
        inputs: torch.Tensor,
        targets: torch.Tensor,
        epochs: int,
        weight: torch.Tensor,
        name: str,
    ) -> Iterator[nn.Module]:
        """Train the model, and yield copies of it at `POINTS` moments, the first before and the last after training."""
        optimizer = self.training.make_optimizer(model.parameters())
        seed = derive_seed(self.recipe.seed, "theory", name)
        generator = torch.Generator().manual_seed(seed)
        each = [
            torch.split(torch.randperm(len(inputs), generator=generator), self.training.batch) for _ in range(epochs)
        ]
        order = [batch.to(inputs.device) for batches in each for batch in batches if len(batch) > 1]
        stops = torch.linspace(0, len(order), POINTS).round().int().tolist()
        for begin, end in zip([0, *stops], stops, strict=False):
            with torch.random.fork_rng(devices=[]), _threads_for(model):
                torch.manual_seed(seed + begin)  # dropout
                model.train()
                for batch in order[begin:end]:
                    optimizer.zero_grad(set_to_none=True)
                    losses = cross_entropy(model(inputs[batch]), targets[batch], reduction="none")
                    (losses * weight[batch]).mean().backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
            yield deepcopy(model).eval()


@contextmanager
def _threads_for(model: nn.Module) -> Iterator[None]:
    """One thread for a small model: several would wait for each other longer than they work."""
    before = torch.get_num_threads()
    if sum(parameter.numel() for parameter in model.parameters()) < SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def read_measurements(folder: Path) -> list[Measurement]:
    """The measurements that a run with `theory.every` wrote down."""
    file = folder / "theory.jsonl"
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    return [Measurement.from_json(line, f"{file}, line {number}") for number, line in enumerate(lines, 1)]


def _loss_and_gradient(
    model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, weight: torch.Tensor
) -> tuple[float, torch.Tensor]:
    """The weighted cross-entropy on hard or soft targets, and its gradient as one vector."""
    model.eval().zero_grad(set_to_none=True)
    total = 0.0
    for x, y, w in zip(*(torch.split(tensor, 512) for tensor in (inputs, targets, weight)), strict=True):
        loss = (cross_entropy(model(x), y, reduction="none") * w).sum()
        loss.backward()
        total += float(loss.detach())
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return total, _flat([torch.zeros_like(p) if p.grad is None else p.grad for p in trained])


def _flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors]).cpu().double()


def _square(vector: torch.Tensor) -> float:
    return float(vector.square().sum())
