"""The federation of a recipe, built and checked: clients with their samples and models, engine, server."""

import logging
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
import torch

from trustmix.aggregation.coupling import validate_connected
from trustmix.aggregation.guard import Guard
from trustmix.attacks.byzantine_engine import ByzantineEngine
from trustmix.data import Dataset, Labelled
from trustmix.data.inference import InputSpec
from trustmix.density import FEATURES, resolve_density
from trustmix.engines.fault_injection import FaultInjectionEngine
from trustmix.errors import TrustmixError
from trustmix.experiment.config import ModelConfig, PublicConfig
from trustmix.experiment.data import load_data, select_test_set, split_data, validate_augmentation
from trustmix.experiment.previews import build_trust_recorder
from trustmix.experiment.recipe import Recipe
from trustmix.experiment.run_directory import RunDirectory
from trustmix.experiment.saved_models import STUDENT, model_factory
from trustmix.federation import (
    ENGINES,
    Callback,
    Client,
    DiskStore,
    Engine,
    Federation,
    MemoryStore,
    Participation,
    Public,
    Training,
)
from trustmix.federation.method import CLIENTS
from trustmix.federation.training import token_lengths
from trustmix.models import ModelFactory, WithFeatures, validate_model
from trustmix.privacy import PrivacyBudget, validate_dp_model

log = logging.getLogger(__name__)

TRAINING_COPIES = 6
"""A model in training takes about this many times its parameters: gradients, two moments, a stack, a copy to store."""


@dataclass
class Experiment:
    """A recipe, built: a context manager that ends workers and removes what is temporary.

    Parameters
    ----------
    recipe
        The recipe with the engine resolved: how clients are run is chosen once, and written down.
    federation
        The server and its engine, ready to run.
    data
        What the recipe's data section names.
    clients
        The clients as they are in this process; those of worker processes go on elsewhere.
    temporary
        A folder for states of clients without a run directory, if there is one.
    """

    recipe: Recipe
    federation: Federation
    data: Dataset
    clients: Sequence[Client]
    temporary: Path | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the workers and remove the temporary folder."""
        self.federation.close()
        if self.temporary is not None:
            shutil.rmtree(self.temporary, ignore_errors=True)


def build_federation(
    recipe: Recipe,
    record: RunDirectory | None = None,
    data: Dataset | None = None,
    callbacks: Sequence[Callback] = (),
) -> Experiment:
    """Build the federation of a recipe; everything is checked that can be checked before the first epoch.

    Parameters
    ----------
    recipe
        What to build.
    record
        The run directory, if there is one: states of clients and the record of trust go there.
    data
        The recipe's data, where they are loaded already.
    callbacks
        What watches the run, beside the recorder of trust.

    Returns
    -------
    Experiment
        Close it, or use it as a context manager.

    Raises
    ------
    TrustmixError
        If the recipe, the data and the models do not go together.
    """
    recipe.validate_method()
    resolve_density(recipe.density.kind)
    given, method = recipe, recipe.method
    recipe = _centralized(recipe) if method.pooled_data else recipe
    data = data or load_data(recipe)
    if data.public_only:
        raise TrustmixError(f"{data.name} is a public set alone: its clients are elsewhere; use `trustmix serve`.")
    validate_augmentation(recipe, data)
    public, shares = split_data(recipe, data)
    shared, test = Public(public.inputs, data.classes), select_test_set(recipe, data)
    factories = model_factories(recipe, data)
    keep = _fits_in_memory(recipe, factories)
    folder, temporary = _state_folder(recipe, record, keep)
    clients = [
        build_client(recipe, str(index), factories[index], share, shared, test, folder and folder / str(index))
        for index, share in enumerate(shares)
    ]
    validate_privacy(recipe, data.train.inputs, clients)
    student = build_student(recipe, data, clients[0], folder)
    classes = {client.id: torch.unique(client.private.labels).cpu() for client in clients}
    if method.needs_label_sets and method.make_aggregator().compares_classes:
        validate_connected(classes, data.classes)
    setup = ENGINES.get(recipe.engine.name)(clients, keep=keep, **recipe.engine.settings)
    log.info("engine: %s", setup.description)
    if student is not None:
        student.to_device(setup.hardware, keep=True)
    recorder = build_trust_recorder(recipe, data, public, classes, record.path) if record else None
    watching = [*([recorder] if recorder else []), *callbacks]
    engine = _wrap_engine(recipe, setup.engine, shared)
    federation = build_server(recipe, engine, shared, public.labels, classes, student, watching)
    resolved = given.resolve_engine({**setup.resolved, "store": "memory" if keep else "disk"})
    return Experiment(resolved, federation, data, clients, temporary)


def _state_folder(recipe: Recipe, record: RunDirectory | None, keep: bool) -> tuple[Path | None, Path | None]:
    """Where clients keep their states, and the temporary folder among them: a worker that dies loses its memory."""
    if record:
        return record.path / "checkpoint" / "clients", None
    in_this_process = (recipe.engine.name, recipe.engine.mode) == ("local", "sequential")
    if keep and in_this_process:
        return None, None
    folder = Path(tempfile.mkdtemp(prefix="trustmix-"))
    return folder, folder


def _wrap_engine(recipe: Recipe, engine: Engine, public: Public) -> Engine:
    """The engine with the attackers and the faults of the recipe."""
    if recipe.attack.kind is not None:
        engine = ByzantineEngine(
            engine, public, recipe.attack.kind, recipe.attack.share, codec=recipe.wire.up, seed=recipe.seed
        )
    if recipe.faults.crash or recipe.faults.late:
        engine = FaultInjectionEngine(engine, recipe.faults.crash, recipe.faults.late, recipe.seed)
    return engine


def build_client(
    recipe: Recipe,
    id: str,  # noqa: A002
    model: ModelFactory,
    share: tuple[Labelled, Labelled],
    public: Public,
    test: Labelled | None,
    folder: Path | None,
    *,
    simulated: bool = True,
    kind: str | None = None,
) -> Client:
    """A client as the recipe wants it.

    Parameters
    ----------
    recipe
        How it trains and what it sends.
    id
        Its own id.
    model
        Builds its initial model.
    share
        Its private and its calibration samples.
    public
        The shared set.
    test
        What accuracy is measured on, if anything.
    folder
        Where its states lie; in memory if None.
    simulated
        Whether the noise of [privacy] is drawn from the seed, so that the run can be repeated.
    kind
        A name in CLIENTS; that of the recipe's method if None.

    Returns
    -------
    Client
        Of that kind.
    """
    return CLIENTS.get(kind or recipe.method.client)(
        id=id,
        model=model,
        private=share[0],
        calibration=share[1],
        public=public,
        test=test,
        training=Training(**recipe.train.model_dump()),
        form=recipe.wire.form,
        codec=recipe.wire.up,
        delta=recipe.wire.delta,
        labels=recipe.wire.labels,
        seed=recipe.seed,
        privacy=_privacy(recipe, simulated=simulated),
        density=recipe.density.kind,
        standardise=recipe.density.standardise,
        augment_calibration=recipe.density.calibration == "augmented",
        store=DiskStore(folder) if folder else MemoryStore(),
    )


def build_server(
    recipe: Recipe,
    engine: Engine,
    public: Public,
    public_labels: torch.Tensor,
    client_classes: Mapping[str, torch.Tensor],
    student: Client | None,
    callbacks: Sequence[Callback] = (),
) -> Federation:
    """The server of the recipe's method, guarded where the recipe and the method allow it."""
    method = recipe.method
    return Federation(
        clients=engine,
        public=public,
        rule=method,
        public_labels=public_labels,
        client_classes=client_classes,
        participation=Participation(**recipe.participation.model_dump()),
        student=student,
        guard=Guard(recipe.guard.cap) if recipe.guard.on and method.guardable else None,
        codec=recipe.wire.down,
        callbacks=callbacks,
        seed=recipe.seed,
    )


def build_student(recipe: Recipe, data: Dataset, like: Client, folder: Path | None) -> Client | None:
    """The server's own model, which learns from teachers alone; where weights are shared, the one all begin with."""
    if recipe.student is None and recipe.method.exchanges != "weights":
        return None
    wanted = recipe.student or recipe.models[0]
    factory = client_model_factory(recipe, data, wanted, STUDENT)
    validate_model(factory, probe_inputs(data.train.inputs))
    nothing = like.private[torch.zeros(0, dtype=torch.int64)]
    training = like.training if recipe.student is None else replace(like.training, public_epochs=recipe.student.epochs)
    store = DiskStore(folder / STUDENT) if folder else MemoryStore()
    return Client(STUDENT, factory, nothing, nothing, like.public, like.test, training, seed=recipe.seed, store=store)


def model_factories(recipe: Recipe, data: Dataset) -> list[ModelFactory]:
    """Each client's model, the listed models dealt in turn; one of each kind is tried on real inputs."""
    dealt = [recipe.models[index % len(recipe.models)] for index in range(recipe.clients)]
    factories = [client_model_factory(recipe, data, model, str(index)) for index, model in enumerate(dealt)]
    for factory in factories[: len(recipe.models)]:
        model = validate_model(factory, inputs := probe_inputs(data.train.inputs))
        if recipe.density.kind in FEATURES:
            WithFeatures(model)(inputs)  # refuses a model that has none
    return factories


def client_model_factory(recipe: Recipe, data: Dataset, model: ModelConfig, owner: str) -> ModelFactory:
    """What builds an owner's model for the data."""
    return model_factory(model, InputSpec.from_dataset(data), recipe.seed, owner)


def probe_inputs(inputs: torch.Tensor) -> torch.Tensor:
    """Two inputs to try a model on: of texts the longest, and the one with the largest token id."""
    sizes = token_lengths(inputs)
    return inputs[:2] if sizes is None else inputs[torch.stack([sizes.argmax(), inputs.amax(1).argmax()])]


def validate_privacy(recipe: Recipe, inputs: torch.Tensor, clients: Sequence[Client]) -> None:
    """Find all noise before the first epoch, and refuse models that cannot be trained with it."""
    if recipe.privacy.epsilon is None:
        return
    if recipe.privacy.mechanism == "training":
        for client in clients[: len(recipe.models)]:
            validate_dp_model(client.model(), probe_inputs(inputs))
    for client in clients:
        records = len(client.private)
        if recipe.privacy.delta * records >= 1:
            raise TrustmixError(
                f"privacy.delta is {recipe.privacy.delta:g}; client {client.id} has {records} records, and it must be "
                f"well below 1/{records} to promise anything."
            )
        client.privacy_spent(recipe.rounds)


def _privacy(recipe: Recipe, *, simulated: bool) -> PrivacyBudget | None:
    """What clients promise; where it is simulated, with noise that can be repeated, as the run can."""
    wanted = recipe.privacy
    if wanted.epsilon is None:
        return None
    return PrivacyBudget(
        wanted.epsilon, recipe.rounds, wanted.delta, wanted.mechanism, wanted.clip, simulated=simulated
    )


def _centralized(recipe: Recipe) -> Recipe:
    """The fully informed reference: one client with |D_i| + |D_pub| labelled samples of all classes."""
    samples = recipe.split.samples_per_client + recipe.public.samples
    split = recipe.split.model_copy(update={"kind": "homogeneous", "samples_per_client": samples})
    all_to_train = recipe.density.model_copy(update={"calibration": "holdout", "holdout": 1e-9})  # one a class is kept
    fields = {"clients": 1, "split": split, "density": all_to_train, "public": PublicConfig(samples=1)}
    return recipe.model_copy(update=fields)


def _fits_in_memory(recipe: Recipe, factories: Sequence[ModelFactory]) -> bool:
    """Whether models stay in memory between rounds: by default if all of them, with what training adds, fit in half."""
    if recipe.engine.store != "auto":
        return recipe.engine.store == "memory"
    one_of_each = factories[: len(recipe.models)]
    bytes_each = sum(p.numel() * p.element_size() for f in one_of_each for p in f().parameters()) / len(one_of_each)
    return bool(TRAINING_COPIES * bytes_each * len(factories) < psutil.virtual_memory().total / 2)
