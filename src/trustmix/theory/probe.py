"""The probe: a round's uploads rebuilt from what clients stored, and the paper's quantities measured on them.

p* is a reference model trained on all private data together, which minimises F = mean_i F_i, or the public labels.
A few clients distil once more from the round's teacher; along their paths the constants of Proposition 1 are estimated.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import one_hot

from trustmix.data import Labelled, augment_batch
from trustmix.errors import TrustmixError
from trustmix.federation import DiskStore, Round
from trustmix.federation.client import calibration_generator
from trustmix.learners import DeviceConfig, Training
from trustmix.learners.base import model_tensors
from trustmix.learners.scoring import density_samples, score_inputs
from trustmix.learners.training import predict
from trustmix.models import ModelFactory
from trustmix.seeds import derive_seed
from trustmix.theory.analysis import Uploads
from trustmix.theory.bounds import pl_floor, stationarity_floor
from trustmix.theory.constants import gradient_noise, score_energy
from trustmix.theory.measurement import Measurement, Reference, append_measurement
from trustmix.theory.path import (
    PathPoint,
    estimate_constants,
    flatten_tensors,
    loss_and_gradient,
    threads_for,
    train_with_snapshots,
)
from trustmix.theory.teacher import teacher_error

MAX_PATHS = 4
"""Clients whose distillation is followed."""
GRADIENT_SAMPLES = 32
"""Public samples whose gradients are taken one by one."""


@dataclass
class TheoryProbe:
    """Measures the runs that share one split: the same data, models and training, whatever their rule.

    Parameters
    ----------
    public : Labelled
        The public samples; unknown labels are negative.
    shares : sequence of (Labelled, Labelled)
        The private and the calibration samples of each client.
    factories : sequence of ModelFactory
        What builds the model of each client.
    test : Labelled
        The test samples, on which runs of different splits can be compared.
    training : Training
        How clients train.
    rounds : int
        The number of rounds of the run; the reference model trains as long as a client in all of them.
    seed : int
        The seed of the run.
    density : str
        What scores public samples: a name in `DENSITIES`.
    standardise : bool
        Whether scores are standardised by those of the calibration samples.
    augment_calibration : bool
        Whether the density is fitted on augmented calibration images.
    device : str
        The device that computes.
    reference : "model" or "labels"
        What counts as p*.

    Raises
    ------
    TrustmixError
        If the reference is the labels and a public label is unknown.
    """

    public: Labelled
    shares: Sequence[tuple[Labelled, Labelled]]
    factories: Sequence[ModelFactory]
    test: Labelled
    training: Training
    rounds: int
    seed: int = 0
    density: str = "gaussians"
    standardise: bool = False
    augment_calibration: bool = False
    device: str = "cpu"
    reference: Reference = "model"

    def __post_init__(self) -> None:
        self.hardware = DeviceConfig(self.device)
        if self.training.public_epochs == "auto" or self.training.stages == "mixed":
            raise TrustmixError(
                "The theory is of a fixed number of steps on the teacher alone; set train.public_epochs to a number "
                "and train.stages to two."
            )
        if self.reference == "labels" and bool((self.public.labels < 0).any()):
            raise TrustmixError("The public labels are not all known; measure against the reference model instead.")

    @cached_property
    def pooled(self) -> tuple[Labelled, torch.Tensor]:
        """All private samples, and the weight (n,) of each in F: all clients count the same."""
        private = [share for share, _ in self.shares]
        samples = Labelled(torch.cat([p.inputs for p in private]), torch.cat([p.labels for p in private]))
        each = torch.cat([torch.full((len(p),), 1 / (len(p) * len(private))) for p in private])
        return samples.to(self.device), each.to(self.device)

    @cached_property
    def reference_model(self) -> nn.Module:
        """A model of the first client's kind, trained with labels for as many epochs as a client in the whole run."""
        samples, weight = self.pooled
        epochs = self.training.first_epochs + (self.rounds - 1) * self.training.epochs
        epochs += self.rounds * self.training.max_public_epochs(self.rounds)
        model = self.hardware.to_device(self.factories[0]())
        seed = derive_seed(self.seed, "theory", "reference")
        targets, weights = samples.labels, weight * len(weight)
        for _ in train_with_snapshots(
            model, samples.inputs, targets, weights, training=self.training, epochs=epochs, seed=seed
        ):
            pass
        return model

    def reference_predictions(self, samples: Labelled) -> torch.Tensor:
        """p* (N, C) of the samples, float64."""
        if self.reference == "labels":
            return one_hot(samples.labels.cpu(), self.factories[0].classes).double()
        return torch.softmax(self._predict(self.reference_model, samples.inputs).double(), 1)

    def uploads(self, folder: Path, line: Round, inputs: torch.Tensor | None = None) -> Uploads:
        """Rebuild the uploads of a round from the states that its participants stored.

        Parameters
        ----------
        folder : Path
            The run directory.
        line : Round
            The round.
        inputs : torch.Tensor (N, ...), optional
            The inputs that are predicted; the public set if not given.

        Returns
        -------
        Uploads
            The predictions and scores of all participants.

        Raises
        ------
        TrustmixError
            If the state of a participant is not there.
        """
        inputs = (self.public.inputs if inputs is None else inputs).to(self.device)
        predictions, scores = [], []
        for client in line.participants:
            calibration = density_samples(self.density, *self.shares[int(client)])
            if self.augment_calibration:
                generator = calibration_generator(self.seed, client, line.round)
                augmented = augment_batch(calibration.inputs, "crop-flip", generator)
                calibration = Labelled(augmented, calibration.labels)
            model, calibration = self._load_model(folder, client, line.round), calibration.to(self.device)
            scored = score_inputs(model, calibration, inputs, self.hardware, self.density, self.standardise)
            predictions.append(torch.softmax(scored.logits.double(), 1))
            scores.append(scored.scores)
        return Uploads(torch.stack(predictions), torch.stack(scores))

    def measure(self, folder: Path, line: Round, tau: float) -> Measurement:
        """Measure the theory on one round.

        Parameters
        ----------
        folder : Path
            The run directory, which still has the clients' states of that round.
        line : Round
            The round.
        tau : float
            The tau of the rule.

        Returns
        -------
        Measurement
            The quantities of the theory.

        Raises
        ------
        TrustmixError
            If the state of a participant is not there.
        """
        teacher = self.uploads(folder, line).teacher(tau)
        chi = float(teacher.concentration.mean())
        star = self.reference_predictions(self.public)
        error = teacher_error(teacher.probabilities, star)
        chosen = line.participants[:: max(1, len(line.participants) // MAX_PATHS)][:MAX_PATHS]
        models = {client: self._load_model(folder, client, line.round) for client in chosen}
        paths = [self._path(model, teacher.probabilities, star, client) for client, model in models.items()]
        found = estimate_constants(paths, error, self._least_loss)
        step = {"gamma": 1 / found.smoothness, "smoothness": found.smoothness, "noise": found.noise}
        return Measurement(
            round=line.round,
            method=line.method,
            reference=self.reference,
            clients=len(line.participants),
            concentration=chi,
            effective_clients=1 / chi,
            teacher_error=error,
            label_error=self._label_error(teacher.probabilities),
            score_energy=found.score_energy,
            c=found.alignment.c,
            b2=found.alignment.b2,
            alpha=found.oracle.alpha,
            m=found.oracle.m,
            zeta2=found.oracle.zeta2,
            noise=found.noise,
            smoothness=found.smoothness,
            pl=found.pl,
            floor=stationarity_floor(found.oracle),
            pl_floor=None if found.pl is None else pl_floor(found.oracle, pl=found.pl, **step),
            gradient=found.gradient,
            gap=found.gap,
            discrepancy=found.discrepancy,
        )

    def append(self, folder: Path, line: Round, tau: float) -> None:
        """Measure one round and add it to theory.jsonl; the parameters are those of `measure`."""
        append_measurement(folder, self.measure(folder, line, tau))

    @cached_property
    def _least_loss(self) -> float:
        """F*: that of the reference model; 0, the least possible cross-entropy, where there is none."""
        samples, weight = self.pooled
        if self.reference == "labels":
            return 0.0
        return loss_and_gradient(self.reference_model, samples.inputs, samples.labels, weight)[0]

    def _label_error(self, teacher: torch.Tensor) -> float | None:
        """The teacher error against the public labels that are known; None if there are none."""
        known = self.public.labels >= 0
        labels = one_hot(self.public.labels.clamp_min(0).cpu(), teacher.shape[1])
        return teacher_error(teacher[known], labels[known]) if known.any() else None

    def _load_model(self, folder: Path, client: str, round_: int) -> nn.Module:
        """The client's model as it was when it predicted the public set in that round."""
        state = DiskStore(folder / "checkpoint" / "clients" / client).load_before(round_ + 1)
        if state is None:
            raise TrustmixError(
                f"{folder} has no stored state of client {client}; the theory is measured on the run's checkpoint."
            )
        model = self.factories[int(client)]()
        model.load_state_dict(model_tensors(state[0]))
        return self.hardware.to_device(model)

    def _predict(self, model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        return predict(model, inputs.to(self.device), self.hardware).cpu()

    def _path(self, model: nn.Module, teacher: torch.Tensor, star: torch.Tensor, client: str) -> list[PathPoint]:
        """Points along one distillation from the teacher, by the clients' optimiser in its initial state."""
        inputs, p, best = (tensor.to(self.device) for tensor in (self.public.inputs, teacher.float(), star.float()))
        samples, weight = self.pooled
        even = torch.full((len(inputs),), 1 / len(inputs), device=self.device)
        ones, epochs = torch.ones_like(even), self.training.max_public_epochs(self.rounds)
        seed = derive_seed(self.seed, "theory", f"probe {client}")
        points = []
        for now in train_with_snapshots(model, inputs, p, ones, training=self.training, epochs=epochs, seed=seed):
            with threads_for(now):
                loss, gradient = loss_and_gradient(now, samples.inputs, samples.labels, weight)
                points.append(
                    PathPoint(
                        parameters=flatten_tensors([q.detach() for q in now.parameters() if q.requires_grad]),
                        loss=loss,
                        gradient=gradient,
                        ideal=loss_and_gradient(now, inputs, best, even)[1],
                        distilled=loss_and_gradient(now, inputs, p, even)[1],
                        score_energy=score_energy(now, inputs[:GRADIENT_SAMPLES]),
                        noise=gradient_noise(now, inputs[:GRADIENT_SAMPLES], p[:GRADIENT_SAMPLES], self.training.batch),
                    )
                )
        return points
