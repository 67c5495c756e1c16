"""One client of Algorithm 1: `step(request) -> reply`, pure but for the client's own store.

In one exchange it distils from the last teacher, evaluates, trains on its private data, predicts the public set, fits
its density on calibration data and answers. If the step fails, the client is as it was before.
"""

import logging
import time
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

import torch
from torch import nn

from trustmix.arrays import ArrayLike
from trustmix.data import Labelled, augment_batch, stratified_holdout
from trustmix.density import DISCRIMINATOR, RATIO, PrecomputedScores, standardize_scores
from trustmix.errors import StorageError, TrustmixError
from trustmix.federation.messages import Reply, Request
from trustmix.federation.public_set import Public, fingerprint_samples
from trustmix.federation.state import MemoryStore, State, Store
from trustmix.learners.base import Learner, Lesson
from trustmix.learners.discriminator import train_discriminators
from trustmix.learners.factory import make_learner
from trustmix.learners.scoring import KeptScores, Refresh, density_samples, predict_features, score_inputs
from trustmix.learners.training import (
    MIN_RISE,
    PATIENCE,
    DeviceConfig,
    Job,
    Training,
    accuracy,
    agreement_samples,
    evaluate,
    predict,
)
from trustmix.metrics import fit_temperature
from trustmix.models import as_model
from trustmix.privacy import (
    DPSGDParams,
    PrivacyBudget,
    PrivacyLedger,
    Release,
    compute_total_epsilon,
    release_log_ratio,
    select_confident_samples,
)
from trustmix.seeds import torch_generator
from trustmix.wire import UPLOAD_ENCODERS, MessageHeader

log = logging.getLogger(__name__)

T = TypeVar("T")

LabelSharing: TypeAlias = Literal["none", "inferred", "set", "counts"]


@dataclass
class ModelState:
    """What a client has learned, while it is in memory."""

    learner: Learner
    stages: int = 0
    """How many private stages the model has behind it."""
    kept: KeptScores | None = None
    """The last scores, where the client keeps them over rounds."""
    temperature: float = 1.0
    """What its logits are divided by where it is evaluated and used, as fitted after the last distillation."""

    @property
    def model(self) -> nn.Module:
        """What predicts."""
        return self.learner.model


@dataclass
class Client:
    """A client: its identity, its data, its model, how it learns, and where it keeps its state.

    Parameters
    ----------
    id
        The client's own name, which never changes.
    model
        Builds the initial model: a torch module, or a classifier with `predict_proba` such as those of scikit-learn.
    private, calibration
        Samples to train on, and samples to fit the density on.
    public
        The shared unlabelled set.
    test
        Optional samples to measure accuracy on.
    training
        How the client learns.
    form, codec
        What an upload consists of, and how predictions are encoded.

    >>> public = Public(torch.rand(8, 4), classes=2)
    >>> inputs, labels = torch.rand(20, 4), torch.arange(20) % 2
    >>> client = Client.from_arrays("north", lambda: nn.Linear(4, 2), inputs, labels, public=public)
    >>> client.step(Request(1)).payload is not None
    True
    """

    needs_features: ClassVar[bool] = False
    """Whether uploads are made of the model's features, so that it must have some."""

    id: str
    model: Callable[[], Any]
    private: Labelled
    calibration: Labelled
    public: Public
    test: Labelled | None = None
    training: Training = field(default_factory=Training)
    form: str = "scores"
    codec: str = "float32"
    delta: bool = False
    """Upload the difference to the last teacher where that is shorter."""
    labels: LabelSharing = "none"
    """What is shared of the label set: nothing, the classes, or how many samples of each."""
    seed: int = 0
    store: Store = field(default_factory=MemoryStore)
    hardware: DeviceConfig = field(default_factory=DeviceConfig)
    density: str = RATIO
    """What scores public samples: a name in `DENSITIES`, or `DISCRIMINATOR`."""
    refresh: Refresh = "every"
    """When scores are made anew: in every round, once, or after so many rounds. In between the last ones are sent."""
    standardise: bool = False
    """Upload scores in standard deviations of the calibration samples' scores, from their mean."""
    augment_calibration: bool = False
    """Fit the density on randomly cropped and mirrored calibration images, drawn anew each round."""
    privacy: PrivacyBudget | None = None
    """The differential privacy of the uploads, if there is any."""
    ledger: PrivacyLedger | None = None
    """What was spent of the privacy of these data; by default one in memory, and none where noise is simulated."""
    share_figures: bool = True
    """Send accuracy, NLL and ECE on the test set; otherwise they are logged, as where a promise covers that set too."""
    first_stage: Store | None = None
    """Where runs that begin alike share the state after the first private stage: taken from here, or kept here."""
    keep: bool = True
    """Keep the model in memory between rounds; otherwise it lives in the store alone."""
    _live: ModelState | None = field(default=None, init=False, repr=False)
    _round: int = field(default=0, init=False, repr=False)
    _own_test: Labelled | None = field(default=None, init=False, repr=False)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}: {len(self.private)} private samples, round {self._round}>"

    def __post_init__(self) -> None:
        if self.ledger is None and self.privacy is not None and not self.privacy.simulated:
            self.ledger = PrivacyLedger(self.privacy.epsilon, self.privacy.delta)

    @classmethod
    def from_arrays(
        cls,
        id: str,  # noqa: A002
        model: Callable[[], Any],
        inputs: ArrayLike,
        labels: ArrayLike,
        *,
        public: Public,
        test: Labelled | tuple[ArrayLike, ArrayLike] | None = None,
        holdout: float = 0.2,
        seed: int = 0,
        **settings: Any,
    ) -> "Client":
        """A client from arrays or DataFrames.

        Parameters
        ----------
        id, model, public
            As in `Client`.
        inputs, labels
            (n, ...) and (n,): the client's samples.
        test
            Optional samples to measure accuracy on, or their inputs and labels.
        holdout
            The part of each class that is held out to fit the density on.
        seed
            Of the holdout, and of everything random in the client.
        settings
            Further parameters of `Client`.

        Returns
        -------
        Client
            Of this class.
        """
        data = Labelled.from_arrays(inputs, labels)
        settings["test"] = Labelled.from_arrays(*test) if isinstance(test, tuple) else test
        train_part, held_out = stratified_holdout(data.labels, holdout, seed, id)
        return cls(id, model, data[train_part], data[held_out], public, seed=seed, **settings)

    @property
    def architecture(self) -> Hashable:
        """Models of equal architecture differ in their parameters only: the same function built them."""
        found: Hashable = getattr(self.model, "architecture", self.model)
        return found

    def build_model(self) -> nn.Module:
        """The initial model, a classifier as a module."""
        return as_model(self.model(), self.public.classes)

    @cached_property
    def data_fingerprint(self) -> str:
        """A hash of the private and the calibration samples."""
        return fingerprint_samples(self.private, self.calibration)

    @property
    def own_samples(self) -> Labelled:
        """All samples of the client: those it trains on and those held out to fit the density on."""
        return density_samples(RATIO, self.private, self.calibration)

    @property
    def dp_sgd_params(self) -> DPSGDParams | None:
        """The noise of private training, if it is differentially private."""
        return self.privacy.dp_sgd_params(len(self.private), self.training) if self.privacy else None

    def to_device(self, hardware: DeviceConfig, *, keep: bool) -> None:
        """Move to where the engine computes, before the first step."""
        self.hardware, self.keep = hardware, keep
        device = hardware.device
        self.private, self.calibration = self.private.to(device), self.calibration.to(device)
        self.public.inputs = self.public.inputs.to(device)
        self.test = None if self.test is None else self.test.to(device)

    def step(self, request: Request) -> Reply:
        """Answer one request, training on the spot."""
        return _run_jobs(self.step_jobs(request))

    def step_jobs(self, request: Request) -> Generator[Job, None, Reply]:
        """Answer one request as a generator that yields its training jobs.

        The caller does each job before it goes on. That is all an engine needs to train many clients at once. A round
        that a privacy ledger has an answer of is answered with that.

        Parameters
        ----------
        request
            The server's request.

        Yields
        ------
        Job
            What is to be learned next.

        Returns
        -------
        Reply
            The client's answer.
        """
        answer = self.ledger.find_answer(request.round) if self.ledger and request.train else None
        if answer is not None:
            epsilon, alone = (answer.figures.get(name) for name in ("epsilon", "epsilon_round"))
            return Reply(self.id, request.round, answer.payload, epsilon=epsilon, epsilon_round=alone)
        try:
            reply = yield from self._step_jobs(request)
        except BaseException:
            self._live = None  # half a step is no step: go on from the stored state next time
            raise
        self._round = request.round
        if not self.keep:
            self._live = None
        return reply

    def _step_jobs(self, request: Request) -> Generator[Job, None, Reply]:
        state = self._resume(request.round)
        seconds: dict[str, float] = {}
        tested: dict[str, Any] = {}
        local_accuracy = payload = agreement = public_epochs = None
        mixed = False
        releases: list[Release] = []
        if request.teacher is not None:
            lesson = self.apply_server_message(state, request.round, request.teacher)
            if lesson is not None:
                mixed = self.training.stages == "mixed"
                job = self.public_job(state, request.round, lesson)
                public_epochs, agreement = yield from self._distil(job, lesson, state.model, seconds)
        if request.round > 1:
            with _timed(seconds, "evaluate"):
                tested = self._evaluate(state)
        if request.train:
            if mixed:
                self._count_stage(state)
            elif not self._take_first_stage(state, request.round):
                job = self.private_job(state, request.round)
                releases = self._stage_releases(state, request)
                yield job
                seconds["train"] = job.seconds
                if self.first_stage is not None and request.round == 1:
                    self.first_stage.save(1, self._to_stored(state))
            if self.test is not None:
                with _timed(seconds, "evaluate"):
                    own = self._own_class_test(self.test)
                    if len(own):
                        local_accuracy = accuracy(state.model, own.inputs, own.labels, self.hardware)
            if request.upload:
                if self.density == DISCRIMINATOR and state.kept is None:
                    state.kept = yield from self._discriminate(request.round, seconds)
                with _timed(seconds, "predict"):
                    payload = self.make_upload(state, request)
        spent = self._spend(state, request.round, releases, payload) if request.train else {}
        with _timed(seconds, "save"):
            self.store.save(request.round, self._to_stored(state))
        if not self.share_figures:
            _log_figures(request.round, tested.get("accuracy"), local_accuracy)
            tested, local_accuracy = {}, None
        known: dict[str, Any] = {"local_accuracy": local_accuracy, "agreement": agreement, **tested, **spent}
        return Reply(self.id, request.round, payload, seconds=seconds, public_epochs=public_epochs, **known)

    def _evaluate(self, state: ModelState) -> dict[str, Any]:
        """Fit the temperature, where that is wanted, and measure the predictions on all classes of the test set."""
        if self.training.calibrate:
            logits = predict(state.model, self.calibration.inputs, self.hardware)
            state.temperature = fit_temperature(logits, self.calibration.labels)
        if self.test is None:
            return {}
        return asdict(evaluate(state.model, self.test.inputs, self.test.labels, self.hardware, state.temperature))

    def _stage_releases(self, state: ModelState, request: Request) -> list[Release]:
        """What the private stage that begins releases, where a ledger counts it; refused beyond the promise."""
        if self.privacy is None or self.ledger is None:
            return []
        counted, stages = self.ledger.count_rounds(), state.stages
        if stages - 1 > counted:
            raise TrustmixError(
                f"{self.ledger.name} counts {counted} rounds of the run, and the state {stages - 1}; restore the ledger"
            )
        releases = [self.privacy.release(stages, len(self.private), self.training, before=stages - 1)]
        ratio = self.privacy.ratio_release
        if ratio is not None and request.upload and state.kept is None:
            releases.append(ratio)
        self.ledger.validate_releases(releases)
        return releases

    def _spend(
        self, state: ModelState, round_: int, releases: Sequence[Release], payload: bytes | None
    ) -> dict[str, float]:
        """What the client has spent so far and in this round; a ledger records it before the state is saved."""
        if self.ledger is None:
            return self.privacy_spent(state.stages)
        alone = compute_total_epsilon(releases, self.ledger.delta)
        spent = {"epsilon": self.ledger.epsilon_spent(*releases), "epsilon_round": alone}
        self.ledger.record(round_, releases, payload, spent)
        return spent

    def privacy_spent(self, stages: int) -> dict[str, float]:
        """What so many private stages as planned, and the last alone, cost of the promised privacy, if there is any."""
        if self.privacy is None:
            return {}
        spent = partial(self.privacy.epsilon_spent, stages, len(self.private), self.training)
        return {"epsilon": spent(), "epsilon_round": spent(before=stages - 1)}

    def predict_on(self, round_: int, public: Public) -> bytes:
        """The upload that the model of that round makes about another public set; nothing is trained or kept."""
        own, self.public = self.public, public
        try:
            fresh = replace(self._resume(round_ + 1), kept=None)  # kept scores are of the client's own public set
            if self.density == DISCRIMINATOR:
                fresh.kept = _run_jobs(self._discriminate(round_, {}))
            return self.make_upload(fresh, Request(round_))
        finally:
            self.public = own

    def _resume(self, round_: int) -> ModelState:
        """The state model if it is the newest state older than the round, else that state from the store."""
        if self._live is None or self._round >= round_:
            self._live = ModelState(make_learner(self.build_model(), self.training, self.hardware, self.architecture))
            stored = self.store.load_before(round_)
            if stored is not None:
                self._validate_owner(stored[1])
                _restore(self._live, stored)
        return self._live

    def _take_first_stage(self, state: ModelState, round_: int) -> bool:
        """Go on from the shared state after the first private stage, if this is that stage and the state is there."""
        stored = self.first_stage.load_before(2) if self.first_stage is not None and round_ == 1 else None
        if stored is not None:
            self._validate_owner(stored[1])
            _restore(state, stored)
        return stored is not None

    def _to_stored(self, state: ModelState) -> State:
        """The state with its owner."""
        tensors, facts = _to_stored(state)
        return tensors, {**facts, "client": self.id, "data": self.data_fingerprint}

    def _validate_owner(self, facts: Mapping[str, object]) -> None:
        """Raise if a state is of another client, or of a model that was trained on other data."""
        if facts.get("client", self.id) != self.id:
            raise StorageError(f"Client {self.id} has the state of client {facts['client']}; restore its own.")
        if facts.get("data", self.data_fingerprint) != self.data_fingerprint:
            raise StorageError(
                f"The state of client {self.id} is of a model that was trained on other data; restore the data, or "
                "remove the state to begin anew."
            )

    def apply_server_message(self, state: ModelState, round_: int, message: bytes) -> Lesson | None:  # noqa: ARG002
        """Take in what the server sent: what there is to distil, or None where there is nothing."""
        return Lesson(self.public.inputs, self.public.teacher(message, round_ - 1).to(self.hardware.device))

    def public_job(self, state: ModelState, round_: int, lesson: Lesson) -> Job:
        """The job of distilling a lesson."""
        stage = "mixed" if self.training.stages == "mixed" else "public"
        if stage == "mixed" and self.dp_sgd_params is not None:
            raise TrustmixError("mixed batches cannot be trained with DP-SGD; train in two stages")
        epochs = self.training.max_public_epochs(state.stages)
        generator = torch_generator(self.seed, "order", stage, self.id, round_)
        return state.learner.distil(lesson, self.private, epochs=epochs, generator=generator)

    def _distil(
        self, job: Job, lesson: Lesson, model: nn.Module, seconds: dict[str, float]
    ) -> Generator[Job, None, tuple[int | None, float | None]]:
        """Do the job of a lesson: the epochs that it took, and the agreement with the teacher.

        Both are None where predictions are a secret.
        With public_epochs = "auto" every epoch is a job of its own, until `PATIENCE` of them have added little.
        """
        chosen = agreement_samples(len(lesson.inputs), torch_generator(self.seed, "agreement"))
        chosen = chosen.to(lesson.inputs.device)
        inputs, classes = lesson.inputs[chosen], lesson.targets[chosen].argmax(1)
        agreement, highest, epochs, idle = 0.0, -1.0, 0, 0
        seconds["distil"] = 0.0
        for part in job.split_epochs() if self.training.public_epochs == "auto" else [job]:
            yield part
            seconds["distil"] += part.seconds
            epochs += part.epochs
            with _timed(seconds, "evaluate"):
                agreement = accuracy(model, inputs, classes, self.hardware)
            idle = idle + 1 if agreement < highest + MIN_RISE else 0
            highest = max(highest, agreement)
            if idle == PATIENCE:
                break
        secret = self.privacy is not None and self.privacy.mechanism == "uploads"
        return (None, None) if secret else (epochs, agreement)

    def _count_stage(self, state: ModelState) -> None:
        """One more stage on private labels, if the promise of privacy has one left."""
        if self.privacy is not None and state.stages >= self.privacy.rounds:
            raise TrustmixError(f"its promise of privacy is for {self.privacy.rounds} rounds, and these are spent")
        state.stages += 1

    def private_job(self, state: ModelState, round_: int) -> Job:
        """The job of learning from the client's own labels; its order comes from a seed stream named by the round."""
        epochs = self.training.epochs if state.stages else self.training.first_epochs
        self._count_stage(state)
        noise, secret = self.dp_sgd_params, False
        generator = torch_generator(self.seed, "order", "private", self.id, round_)
        if noise is not None and self.privacy is not None:  # which records a batch takes is a secret too
            generator = self.privacy.generator(self.seed, "private", self.id, round_)
            secret = not self.privacy.simulated
        return state.learner.fit(self.private, epochs=epochs, generator=generator, noise=noise, secret=secret)

    def make_upload(self, state: ModelState, request: Request) -> bytes:
        """Public inference, and scores of the density: fitted anew, or kept where `refresh` allows it."""
        header = self.public.header(self.id, request.round)
        base = self.public.teacher(request.teacher, request.round - 1) if self.delta and request.teacher else None
        if self.privacy is not None and self.privacy.mechanism == "uploads":
            generator = self.privacy.generator(self.seed, "upload", self.id, request.round)
            logits = self.privacy.add_noise(predict(state.model, self.public.inputs, self.hardware).cpu(), generator)
            silence = PrecomputedScores(torch.zeros(len(logits)))  # every sample scores alike, so that rules average
            return UPLOAD_ENCODERS[self.form](logits, silence, header, self.codec, base)
        private_ratio = self.density == RATIO and self.privacy is not None and self.privacy.ratio > 0
        refresh = "once" if self.density == DISCRIMINATOR or private_ratio else self.refresh
        if state.kept is not None and not state.kept.are_due(request.round, refresh):
            return self._encode_kept(state, state.kept, header, base)
        if self.privacy is not None and private_ratio:
            state.kept = self._release_ratio(state, request.round, self.privacy)
            return self._encode_kept(state, state.kept, header, base)
        known = self._density_samples(state, request.round)
        scored = score_inputs(state.model, known, self.public.inputs, self.hardware, self.density, self.standardise)
        if self.refresh != "every":
            state.kept = KeptScores(request.round, scored.scores)
        as_scores = self.form == "scores" or self.standardise or self.refresh != "every"
        density = PrecomputedScores(scored.scores) if as_scores else scored.density
        return UPLOAD_ENCODERS[self.form](scored.logits, density, header, self.codec, base, self._class_counts())

    def _encode_kept(
        self, state: ModelState, kept: KeptScores, header: MessageHeader, base: torch.Tensor | None
    ) -> bytes:
        """The upload of the model's predictions with scores that are known."""
        logits = predict(state.model, self.public.inputs, self.hardware).cpu()
        scores = PrecomputedScores(kept.scores)
        return UPLOAD_ENCODERS[self.form](logits, scores, header, self.codec, base, self._class_counts())

    def _release_ratio(self, state: ModelState, round_: int, privacy: PrivacyBudget) -> KeptScores:
        """The noisy density ratio of the private records."""
        logits, points = predict_features(state.model, self.public.inputs, self.hardware)
        _, own = predict_features(state.model, self.private.inputs, self.hardware)
        generator = privacy.generator(self.seed, "ratio", self.id, round_)
        scores = release_log_ratio(own, points, privacy.ratio_noise, generator)
        if self.standardise:  # records have no scores without noise, public samples of the client's classes have
            chosen, _ = select_confident_samples(logits, torch.unique(self.private.labels).tolist())
            scores = standardize_scores(scores[chosen], scores)
        return KeptScores(round_, scores)

    def _discriminate(self, round_: int, seconds: dict[str, float]) -> Generator[Job, None, KeptScores]:
        """Train discriminators and score by them; they do not depend on the client's model, so once is enough."""
        jobs = train_discriminators(
            self.build_model,
            self.private,
            self.calibration,
            self.public.inputs,
            client=self.id,
            seed=self.seed,
            architecture=self.architecture,
            training=self.training,
            hardware=self.hardware,
        )
        with closing(jobs):
            try:
                while True:
                    job = next(jobs)
                    yield job
                    seconds["predict"] = seconds.get("predict", 0.0) + job.seconds
            except StopIteration as end:
                scores, known = end.value
        return KeptScores(round_, standardize_scores(known, scores) if self.standardise else scores)

    def _density_samples(self, state: ModelState, round_: int) -> Labelled:
        """What the density is fitted on: calibration samples, or, under a promise, public ones."""
        if self.privacy is not None:
            logits = predict(state.model, self.public.inputs, self.hardware).cpu()
            chosen, classes = select_confident_samples(logits, torch.unique(self.private.labels).tolist())
            return Labelled(self.public.inputs[chosen], classes)
        if not self.augment_calibration:
            return density_samples(self.density, self.private, self.calibration)
        generator = calibration_generator(self.seed, self.id, round_)
        return Labelled(augment_batch(self.calibration.inputs, "crop-flip", generator), self.calibration.labels)

    def _class_counts(self) -> torch.Tensor | None:
        """What the client shares of its label set."""
        if self.labels not in ("set", "counts"):
            return None
        counts = torch.bincount(self.private.labels.cpu(), minlength=self.public.classes)
        return counts if self.labels == "counts" else counts.clamp(max=1)

    def _own_class_test(self, test: Labelled) -> Labelled:
        if self._own_test is None:
            self._own_test = test[torch.isin(test.labels, torch.unique(self.private.labels))]
        return self._own_test


def calibration_generator(seed: int, client: str, round_: int) -> torch.Generator:
    """The generator of a client's augmented calibration images of a round."""
    return torch_generator(seed, "calibration", client, round_)


def _log_figures(round_: int, overall: float | None, local: float | None) -> None:
    """Log figures of the test set that are not sent."""
    if overall is not None:
        log.info("accuracy after round %d: %.1f %%, not sent", round_ - 1, 100 * overall)
    if local is not None:
        log.info("accuracy on own classes in round %d: %.1f %%, not sent", round_, 100 * local)


def _to_stored(state: ModelState) -> State:
    """What was learned and the kept scores as tensors that safetensors can hold."""
    tensors = state.learner.state_dict()
    facts: dict[str, float] = {"stages": state.stages, "temperature": state.temperature}
    if state.kept is not None:
        tensors |= {"scores": state.kept.scores}
        facts["scores_round"] = state.kept.round
    return tensors, facts


def _restore(state: ModelState, stored: State) -> None:
    tensors, facts = stored
    state.stages = int(facts["stages"])
    if "scores_round" in facts:
        state.kept = KeptScores(int(facts["scores_round"]), tensors["scores"])
    state.temperature = float(facts.get("temperature", 1.0))  # states of earlier versions have none
    state.learner.load_state_dict(tensors)


def _run_jobs(jobs: Generator[Job, None, T]) -> T:
    """Run what the generator yields, one job after another, and give its result."""
    with closing(jobs):
        try:
            while True:
                next(jobs).run()
        except StopIteration as end:
            result: T = end.value
            return result


@contextmanager
def _timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    begin = time.perf_counter()
    yield
    seconds[stage] = seconds.get(stage, 0.0) + time.perf_counter() - begin
