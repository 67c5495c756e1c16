"""Build the federation of a recipe: clients with their samples and models, the engine and the server.

Recipe, data and models are checked together here, before the first epoch.
"""

import hashlib
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

from trustmix.aggregation.guard import Guard
from trustmix.attacks.byzantine_engine import ByzantineEngine
from trustmix.data import Dataset, Labelled
from trustmix.data.inference import InputSpec
from trustmix.density import DISCRIMINATOR, FEATURES, resolve_density
from trustmix.engines.fault_injection import FaultInjectionEngine
from trustmix.errors import TrustmixError
from trustmix.experiment.classifier_settings import validate_classifier_settings
from trustmix.experiment.data import load_data, select_test_set, split_data, validate_augmentation
from trustmix.experiment.first_stage import share_first_stage
from trustmix.experiment.previews import build_trust_recorder
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
)
from trustmix.federation.method import CLIENTS
from trustmix.federation.public_set import fingerprint_samples
from trustmix.lazy import MANY, LazyMapping, lazily, numbered
from trustmix.learners import Training
from trustmix.learners.training import token_lengths
from trustmix.models import ModelFactory, WithFeatures, validate_model
from trustmix.privacy import PrivacyBudget, validate_dp_model
from trustmix.settings.config import ModelConfig, PublicConfig
from trustmix.settings.recipe import Recipe

log = logging.getLogger(__name__)

TRAINING_COPIES = 6
"""The memory of a model in training, in multiples of its parameters: gradients, two moments, a stack, a stored copy."""


@dataclass
class Experiment:
    """A federation that is ready to run; as a context manager it ends workers and removes temporary files.

    Parameters
    ----------
    recipe : Recipe
        The recipe with the engine's choices filled in, as the run directory records it.
    federation : Federation
        The server and its engine.
    data : Dataset
        The data set of the recipe.
    clients : sequence of Client
        The clients of this process; worker processes train copies of them. Many clients whose states are on disk are
        made each time they are asked for.
    temporary : Path, optional
        The folder for client states of a run without a run directory.
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

    def fingerprints(self) -> dict[str, str]:
        """Hashes of the private data of clients, the test set and the public set, by name.

        Of many clients the first ones count; a client's state has the hash of that client's data besides.
        """
        context, test = self.federation.context, self.clients[0].test
        private = hashlib.sha256(" ".join(client.data_fingerprint for client in self.clients[:MANY]).encode())
        found = {"private": private.hexdigest()[:16], "public": context.public.fingerprint}
        return found | ({} if test is None else {"test": fingerprint_samples(test)})

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
    first_stages: Path | None = None,
) -> Experiment:
    """Build the federation of a recipe, and check everything that can be checked before the first epoch.

    Parameters
    ----------
    recipe : Recipe
        The recipe to build.
    record : RunDirectory, optional
        The run directory, which keeps the states of clients and the weights of clients in each teacher.
    data : Dataset, optional
        The data of the recipe, if they are loaded already.
    callbacks : sequence of Callback
        Observers of the run, besides the recorder of client weights.
    first_stages : Path, optional
        The directory of first private stages that runs share; see `share_first_stage`.

    Returns
    -------
    Experiment
        A context manager; without `with`, call `close`.

    Raises
    ------
    TrustmixError
        If the recipe, the data and the models do not go together.

    Examples
    --------
    >>> with build_federation(Recipe.load("demo", ["clients=5", "engine.mode=sequential"])) as experiment:
    ...     len(experiment.clients)
    5
    """
    recipe.validate_method()
    if recipe.density.kind != DISCRIMINATOR:
        resolve_density(recipe.density.kind)
    original, method = recipe, recipe.method
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

    def client(index: int) -> Client:
        place = folder and folder / str(index)
        return build_client(recipe, str(index), factories[index], shares[index], shared, test, place)

    clients = [client(index) for index in range(recipe.clients)] if keep else lazily(recipe.clients, client)
    validate_privacy(recipe, data.train.inputs, clients)
    student = build_student(recipe, data, clients[0], folder)
    classes = LazyMapping(numbered(recipe.clients), lambda id_: torch.unique(shares[int(id_)][0].labels))
    setup = ENGINES.get(recipe.engine.name)(clients, keep=keep, **recipe.engine.settings)
    log.info("engine: %s", setup.description)
    if student is not None:
        student.to_device(setup.hardware, keep=True)
    recorder = build_trust_recorder(recipe, data, public, classes, record.path) if record else None
    observers = [*([recorder] if recorder else []), *callbacks]
    engine = _wrap_engine(recipe, setup.engine, shared)
    federation = build_server(recipe, engine, shared, public.labels, classes, student, observers)
    resolved = original.resolve_engine({**setup.resolved, "store": "memory" if keep else "disk"})
    if first_stages is not None:
        share_first_stage(resolved, clients, first_stages)
    return Experiment(resolved, federation, data, clients, temporary)


def _state_folder(recipe: Recipe, record: RunDirectory | None, keep: bool) -> tuple[Path | None, Path | None]:
    """The folder of client states and, if it is temporary, the same folder to remove at the end.

    States stay in memory only if all clients run in this process: a worker process that dies loses its memory.
    """
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
            engine,
            public,
            recipe.attack.kind,
            recipe.attack.share,
            sees=recipe.attack.sees,
            codec=recipe.wire.up,
            seed=recipe.seed,
        )
    if any(recipe.faults.model_dump().values()):
        engine = FaultInjectionEngine(engine, **recipe.faults.model_dump(), seed=recipe.seed)
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
    """Build a client with the settings of a recipe.

    Parameters
    ----------
    recipe : Recipe
        The recipe; its sections train, wire, privacy and density apply.
    id : str
        The id of the client.
    model : ModelFactory
        Builds the initial model.
    share : pair of Labelled
        The private and the calibration samples.
    public : Public
        The shared set.
    test : Labelled or None
        The test set; None measures no accuracy.
    folder : Path or None
        The folder of the client's states; None keeps them in memory.
    simulated : bool
        Whether the noise of [privacy] is drawn from the seed, so that the run can be repeated.
    kind : str, optional
        A name in CLIENTS; by default that of the recipe's method.

    Returns
    -------
    Client
        A client of that kind.
    """
    kind = recipe.method.client if kind is None else kind
    if recipe.privacy.epsilon is not None and kind != "distillation":
        raise TrustmixError(f"[privacy] is a promise about predictions; a client of kind {kind} sends other things.")
    return CLIENTS.get(kind)(
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
        refresh=recipe.density.refresh,
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
    """Build the server of the recipe's method, with a guard if the recipe turns it on and the method has one.

    Parameters
    ----------
    recipe : Recipe
        The recipe.
    engine : Engine
        Runs the clients.
    public : Public
        The shared set.
    public_labels : torch.Tensor
        (N,), class indices of the public samples for measurement only; -1 means unknown.
    client_classes : mapping of str to torch.Tensor
        By client id: the indices of the classes that the client holds, for measurement only.
    student : Client or None
        The server's own model.
    callbacks : sequence of Callback
        Observers of the run.

    Returns
    -------
    Federation
        The server.
    """
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
        labels=recipe.wire.labels,
        callbacks=callbacks,
        seed=recipe.seed,
    )


def build_student(recipe: Recipe, data: Dataset, like: Client, folder: Path | None) -> Client | None:
    """Build the server's own model, which learns from teachers alone.

    Parameters
    ----------
    recipe : Recipe
        The recipe.
    data : Dataset
        The data set, for the shape of inputs and the classes.
    like : Client
        A client, whose training settings, public set and test set the student shares.
    folder : Path or None
        The folder of client states; None keeps the state in memory.

    Returns
    -------
    Client or None
        The student; the initial global model for a method that averages weights; otherwise None.
    """
    if recipe.student is None and recipe.method.exchanges != "weights":
        return None
    factory = client_model_factory(recipe, data, recipe.student or recipe.models[0], STUDENT)
    model = validate_model(factory, probe_inputs(data.train.inputs))
    validate_classifier_settings(recipe, model, factory.label)
    empty = like.private[torch.zeros(0, dtype=torch.int64)]
    training = like.training
    if recipe.student is not None:
        training = replace(training, public_epochs=recipe.student.epochs, stages="two", calibrate=False)
    store = DiskStore(folder / STUDENT) if folder else MemoryStore()
    return Client(STUDENT, factory, empty, empty, like.public, like.test, training, seed=recipe.seed, store=store)


def model_factories(recipe: Recipe, data: Dataset) -> Sequence[ModelFactory]:
    """Create the model factory of every client; each model of the recipe is tried on real inputs.

    Parameters
    ----------
    recipe : Recipe
        The recipe, whose models are assigned to the clients in turn.
    data : Dataset
        The data set, for the shape of inputs and the classes.

    Returns
    -------
    sequence of ModelFactory
        One factory per client; of many clients they are made when they are asked for.

    Raises
    ------
    TrustmixError
        If a model cannot be built for the data, or has no features and the density needs them.

    Examples
    --------
    >>> recipe = Recipe.load("demo", ["clients=5"])
    >>> len(model_factories(recipe, load_data(recipe)))
    5
    """
    models, spec = recipe.models, InputSpec.from_dataset(data)
    factories = lazily(
        recipe.clients, lambda index: model_factory(models[index % len(models)], spec, recipe.seed, str(index))
    )
    for factory in factories[: len(recipe.models)]:
        model = validate_model(factory, inputs := probe_inputs(data.train.inputs))
        validate_classifier_settings(recipe, model, factory.label)
        if recipe.density.kind in FEATURES or CLIENTS.get(recipe.method.client).needs_features:
            WithFeatures(model)(inputs)  # refuses a model that has none
    return factories


def client_model_factory(recipe: Recipe, data: Dataset, model: ModelConfig, owner: str) -> ModelFactory:
    """Create the factory of one model for the data.

    Parameters
    ----------
    recipe : Recipe
        The recipe, for the seed.
    data : Dataset
        The data set, for the inputs and the classes.
    model : ModelConfig
        The model.
    owner : str
        The id of the client, or "student"; it selects the random stream of the initial weights.

    Returns
    -------
    ModelFactory
        Builds the model.
    """
    return model_factory(model, InputSpec.from_dataset(data), recipe.seed, owner)


def probe_inputs(inputs: torch.Tensor) -> torch.Tensor:
    """Select two inputs to try a model on.

    Parameters
    ----------
    inputs : torch.Tensor
        (n, ...), the inputs of a data set.

    Returns
    -------
    torch.Tensor
        (2, ...): for texts the longest one and the one with the largest token id, otherwise the first two inputs.

    Examples
    --------
    >>> probe_inputs(torch.tensor([[1, -1, -1], [2, 3, 4], [9, -1, -1]])).tolist()
    [[2, 3, 4], [9, -1, -1]]
    """
    sizes = token_lengths(inputs)
    return inputs[:2] if sizes is None else inputs[torch.stack([sizes.argmax(), inputs.amax(1).argmax()])]


def validate_privacy(recipe: Recipe, inputs: torch.Tensor, clients: Sequence[Client]) -> None:
    """Check the [privacy] settings against models and data sizes; the noise of every client is computed here.

    Parameters
    ----------
    recipe : Recipe
        The recipe; without privacy.epsilon nothing is checked.
    inputs : torch.Tensor
        (n, ...), inputs of the data set to try the models on.
    clients : sequence of Client
        The clients, in the order in which models were assigned.

    Raises
    ------
    TrustmixError
        If a model cannot be trained with DP-SGD, privacy.delta is too large for a client, or no noise reaches epsilon.
    """
    if recipe.privacy.epsilon is None:
        return
    if recipe.privacy.mechanism == "training":
        for client in clients[: len(recipe.models)]:
            validate_dp_model(client.build_model(), probe_inputs(inputs))
    for client in clients:
        records = len(client.private)
        if recipe.privacy.delta * records >= 1:
            raise TrustmixError(
                f"privacy.delta is {recipe.privacy.delta:g}; client {client.id} has {records} records, and it must be "
                f"well below 1/{records} to promise anything."
            )
        client.privacy_spent(recipe.rounds)


def _privacy(recipe: Recipe, *, simulated: bool) -> PrivacyBudget | None:
    """The privacy budget of each client; None without privacy.epsilon."""
    config = recipe.privacy
    if config.epsilon is None:
        return None
    return PrivacyBudget(
        config.epsilon,
        recipe.rounds,
        config.delta,
        config.mechanism,
        config.clip,
        ratio=config.ratio,
        simulated=simulated,
    )


def _centralized(recipe: Recipe) -> Recipe:
    """The recipe of the centralized reference: one client with |D_i| + |D_pub| labelled samples of all classes."""
    samples = recipe.split.samples_per_client + recipe.public.samples
    split = recipe.split.model_copy(update={"kind": "homogeneous", "samples_per_client": samples})
    all_to_train = recipe.density.model_copy(update={"calibration": "holdout", "holdout": 1e-9})  # keeps one per class
    fields = {"clients": 1, "split": split, "density": all_to_train, "public": PublicConfig(samples=1)}
    return recipe.model_copy(update=fields)


def _fits_in_memory(recipe: Recipe, factories: Sequence[ModelFactory]) -> bool:
    """Whether models stay in memory between rounds; by default if all of them in training take less than half of it."""
    if recipe.engine.store != "auto":
        return recipe.engine.store == "memory"
    one_of_each = factories[: len(recipe.models)]
    bytes_each = sum(p.numel() * p.element_size() for f in one_of_each for p in f().parameters()) / len(one_of_each)
    return bool(TRAINING_COPIES * bytes_each * len(factories) < psutil.virtual_memory().total / 2)
