"""A recipe, run: data split, clients built and checked, rounds played into a run directory."""

import atexit
import inspect
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from trustmix.baselines import CLIENTS, SERVERS
from trustmix.data import DATASETS, Dataset, Labelled, load, partition
from trustmix.data.fresh import Inputs
from trustmix.errors import TrustmixError
from trustmix.federation import (
    ENGINES,
    REFERENCE,
    Client,
    DiskStore,
    FaultyEngine,
    Federation,
    History,
    MemoryStore,
    Participation,
    Privacy,
    Public,
    Training,
    Watcher,
    check_private,
)
from trustmix.federation.training import lengths
from trustmix.models import ModelFactory, check_model
from trustmix.seeds import numpy_stream
from trustmix.study.meter import Meter
from trustmix.study.previews import witness_of
from trustmix.study.recipe import ModelSection, PublicSection, Recipe
from trustmix.study.record import RunDirectory
from trustmix.study.track import check_track, tracked
from trustmix.study.trained import STUDENT, model_factory, save_models
from trustmix.trust import NEED_LABELS, TEMPERED, check_connected

log = logging.getLogger(__name__)


def run(
    recipe: str | Path | Mapping[str, Any] | Recipe,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    watch: Watcher | None = None,
) -> History:
    """Run a recipe (a built-in name, a file, a mapping), into a run directory if `out` is given.

    >>> history = run({"data": {"name": "digits"}, "clients": 5, "rounds": 1, "split": {"samples_per_client": 40}})
    >>> history.best_accuracy > 0.1
    True
    """
    recipe = Recipe.load(recipe)
    if out is None:
        _, federation = prepare(recipe)
        with closing(federation.engine):
            return federation.run(recipe.rounds, watch=watch)
    record = RunDirectory(Path(out))
    recipe = record.check(recipe, resume=resume, overwrite=overwrite)
    if resume and record.finished:
        return History(record.rounds())
    check_track(recipe.track)
    data = data_of(recipe)
    recipe, federation = prepare(recipe, record, data)
    with closing(federation.engine), record.begin(recipe, overwrite=overwrite), tracked(recipe, record) as tell:
        every = recipe.theory.every if covered(recipe) else None
        meter = meter_of(recipe) if every else None
        for line in federation.play(recipe.rounds, checkpoint=record.checkpoint, watch=watch):
            record.append(line)
            tell(line)
            if meter and every and line.round % every == 0:
                meter.note(record.path, line, recipe.method)
        history = History(record.rounds())
        save_models(record.path, recipe, Inputs.of(data), len(history.rounds))
        record.finish(history)
    return history


def prepare(
    recipe: Recipe, record: RunDirectory | None = None, data: Dataset | None = None
) -> tuple[Recipe, Federation]:
    """The federation of a recipe, everything checked that can be checked before the first epoch.

    `data` spares loading them where they are loaded already. With the federation comes the recipe in which the engine
    is settled: how clients are run is chosen once, and written down.
    """
    given, recipe = recipe, _informed(recipe) if recipe.rule == REFERENCE else recipe
    data = data or data_of(recipe)
    _check_images(recipe, data)
    public, shares = _split(recipe, data)
    test = _test(recipe, data)
    shared = Public(public.inputs, data.classes)
    factories = _factories(recipe, data)
    keep = _keep(recipe, factories)
    folder = record.path / "checkpoint" / "clients" if record else None
    in_this_process = (recipe.engine.name, recipe.engine.mode) == ("local", "sequential")
    if folder is None and not (keep and in_this_process):
        # a worker process that dies takes its memory along; on disk its clients' states outlive it
        folder = Path(tempfile.mkdtemp(prefix="trustmix-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    kind = CLIENTS.get(str(recipe.rule), Client)
    clients = [
        kind(
            id=str(index),
            model=factories[index],
            private=private,
            calibration=calibration,
            public=shared,
            test=test,
            training=Training(**recipe.train.model_dump()),
            form=recipe.wire.form,
            codec=recipe.wire.up,
            delta=recipe.wire.delta,
            labels=recipe.wire.labels,
            seed=recipe.seed,
            privacy=_privacy(recipe),
            augment_calibration=recipe.density.calibration == "augmented",
            store=DiskStore(folder / str(index)) if folder else MemoryStore(),
        )
        for index, (private, calibration) in enumerate(shares)
    ]
    _check_privacy(recipe, data, clients)
    student = _student(recipe, data, clients[0], folder)
    held = {client.id: torch.unique(client.private.labels).cpu() for client in clients}
    if recipe.rule in NEED_LABELS:
        check_connected(held, data.classes)
    ready = ENGINES.get(recipe.engine.name)(clients, keep=keep, **recipe.engine.settings)
    log.info("engine: %s", ready.account)
    engine = ready.engine
    if recipe.faults.crash or recipe.faults.late:
        engine = FaultyEngine(engine, recipe.faults.crash, recipe.faults.late, recipe.seed)
    if student is not None:
        student.settle(ready.hardware, keep=True)
    settings: dict[str, Any] = {
        "clients": engine,
        "public": shared,
        "public_labels": public.labels,
        "held": held,
        "participation": Participation(**recipe.participation.model_dump()),
        "student": student,
        "witness": witness_of(recipe, data, public, held, record.path) if record else None,
        "codec": recipe.wire.down,
        "seed": recipe.seed,
    }
    server = SERVERS.get(str(recipe.rule))
    federation = server(**settings) if server else Federation(rule=recipe.method, **settings)
    return given.settled({**ready.settled, "store": "memory" if keep else "disk"}), federation


def data_of(recipe: Recipe) -> Dataset:
    """The data a recipe names."""
    wanted = recipe.data
    return load(wanted.name, path=wanted.path, source=wanted.source, **(wanted.model_extra or {}))


def _privacy(recipe: Recipe) -> Privacy | None:
    """What clients promise; noise that can be repeated, as the run can."""
    wanted = recipe.privacy
    if wanted.epsilon is None:
        return None
    return Privacy(wanted.epsilon, recipe.rounds, wanted.delta, wanted.mechanism, wanted.clip, simulated=True)


def _check_privacy(recipe: Recipe, data: Dataset, clients: Sequence[Client]) -> None:
    """Find all noise before the first epoch, and refuse models that cannot be trained with it."""
    if recipe.privacy.epsilon is None:
        return
    if recipe.privacy.mechanism == "training":
        for client in clients[: len(recipe.models)]:
            check_private(client.model(), _extremes(data.train.inputs))
    for client in clients:
        records = len(client.private)
        if recipe.privacy.delta * records >= 1:
            raise TrustmixError(
                f"privacy.delta is {recipe.privacy.delta:g}; client {client.id} has {records} records, and it must be "
                f"well below 1/{records} to promise anything."
            )
        client.spending(recipe.rounds)


def _student(recipe: Recipe, data: Dataset, like: Client, folder: Path | None) -> Client | None:
    """The server's own model, which learns from teachers alone; where weights are shared, the one all begin with."""
    if recipe.student is None and recipe.rule not in SERVERS:
        return None
    wanted = recipe.student or recipe.models[0]
    factory = _factory(recipe, data, wanted, STUDENT)
    check_model(factory, _extremes(data.train.inputs))
    nothing = like.private[torch.zeros(0, dtype=torch.int64)]
    training = like.training if recipe.student is None else replace(like.training, public_epochs=recipe.student.epochs)
    store = DiskStore(folder / STUDENT) if folder else MemoryStore()
    return Client(STUDENT, factory, nothing, nothing, like.public, like.test, training, seed=recipe.seed, store=store)


def _informed(recipe: Recipe) -> Recipe:
    """The fully informed reference: one client with |D_i| + |D_pub| labelled samples of all classes."""
    samples = recipe.split.samples_per_client + recipe.public.samples
    split = recipe.split.model_copy(update={"kind": "homogeneous", "samples_per_client": samples})
    all_to_train = recipe.density.model_copy(update={"calibration": "holdout", "holdout": 1e-9})  # one a class is kept
    fields = {"clients": 1, "split": split, "density": all_to_train, "public": PublicSection(samples=1)}
    return recipe.model_copy(update=fields)


def _check_images(recipe: Recipe, data: Dataset) -> None:
    """Augmentation is of images."""
    wants = {"train.augment": recipe.train.augment != "none"}
    wants["density.calibration"] = recipe.density.calibration == "augmented"
    for setting in (name for name, wanted in wants.items() if wanted):
        if len(data.shape) != 3:
            raise TrustmixError(f"{setting} asks for augmented images, but the inputs of {data.name} are {data.shape}.")


def covered(recipe: Recipe) -> bool:
    """Whether the teachers of a run are what the theory is about: weighted averages of predictions."""
    return not isinstance(recipe.rule, str) or recipe.rule in TEMPERED


def meter_of(recipe: Recipe) -> Meter:
    """What measures the theory on runs of the recipe."""
    if recipe.privacy.epsilon is not None:
        raise TrustmixError("The theory is measured on uploads as the paper has them, not on those of [privacy].")
    data = data_of(recipe)
    public, shares = _split(recipe, data)
    return Meter(recipe, public, shares, _factories(recipe, data), data.test, recipe.theory.reference)


def calibration_of(recipe: Recipe, client: int) -> Labelled:
    """The samples a client's density is fitted on."""
    return _split(recipe, data_of(recipe))[1][client][1]


def _keep(recipe: Recipe, factories: Sequence[ModelFactory]) -> bool:
    """Whether models stay in memory between rounds: by default if all of them, with what training adds, fit in half."""
    if recipe.engine.store != "auto":
        return recipe.engine.store == "memory"
    one_of_each = factories[: len(recipe.models)]
    bytes_each = sum(p.numel() * p.element_size() for f in one_of_each for p in f().parameters()) / len(one_of_each)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return TRAINING_COPIES * bytes_each * len(factories) < memory / 2


TRAINING_COPIES = 6
"""A model in training takes about this many times its parameters: gradients, two moments, a stack, a copy to store."""


def _split(recipe: Recipe, data: Dataset) -> tuple[Labelled, list[tuple[Labelled, Labelled]]]:
    """The public set, and each client's private and calibration samples."""
    seed = recipe.seed if recipe.split.seed is None else recipe.split.seed
    elsewhere = _public_elsewhere(recipe, data)
    split = partition(
        data.train.labels,
        data.classes,
        clients=recipe.clients,
        kind=recipe.split.kind,
        classes_per_client=recipe.split.classes_per_client,
        samples_per_client=recipe.split.samples_per_client,
        alpha=recipe.split.alpha,
        public_samples=recipe.public.samples if elsewhere is None else None,
        holdout=recipe.density.holdout if recipe.holds_out else 0.0,
        seed=seed,
    )
    if elsewhere is None:
        public = data.train[split.public]
    elif recipe.public.samples > len(elsewhere):
        raise TrustmixError(
            f"public.samples is {recipe.public.samples}, but the public set has {len(elsewhere)} samples."
        )
    else:
        order = numpy_stream(seed, "public").permutation(len(elsewhere))
        public = elsewhere[torch.from_numpy(order[: recipe.public.samples])]
    return public, [(data.train[share.train], data.train[share.calibration]) for share in split.clients]


def _test(recipe: Recipe, data: Dataset) -> Labelled:
    """The test samples, or a part of them, the same for every seed."""
    order = torch.from_numpy(numpy_stream(0, "test").permutation(len(data.test)))[: recipe.split.test_samples]
    return data.test if recipe.split.test_samples is None else data.test[order.sort().values]


def _public_elsewhere(recipe: Recipe, data: Dataset) -> Labelled | None:
    """Public samples from other data than the private ones: the data's own public set, or another data set's.

    Another data set's labels mean something else, so they count as unknown. Shorter texts are padded.
    """
    wanted = recipe.public
    if wanted.data is None:
        return data.public
    if (wanted.data, wanted.path) == (recipe.data.name, recipe.data.path):
        raise TrustmixError("public.data is the private data set itself; leave it out to draw from the same pool.")
    takes = inspect.signature(DATASETS.get(wanted.data)).parameters
    given = recipe.data.model_extra or {}
    as_private = {key: given[key] for key in ("tokenizer", "length", "size") if key in given and key in takes}
    other = load(wanted.data, path=wanted.path, **as_private | (wanted.model_extra or {})).train.inputs
    own = data.train.inputs
    if own.ndim == other.ndim == 2 and not own.dtype.is_floating_point and not other.dtype.is_floating_point:
        other = torch.nn.functional.pad(other[:, : own.shape[1]], (0, max(0, own.shape[1] - other.shape[1])), value=-1)
        other = other.to(own.dtype)
    if other.shape[1:] != own.shape[1:] or other.dtype != own.dtype:
        raise TrustmixError(
            f'public.data "{wanted.data}" has inputs {tuple(other.shape[1:])} ({other.dtype}), the private data '
            f"{data.shape} ({own.dtype}); they must be alike."
        )
    return Labelled(other, torch.full((len(other),), -1))


def _factories(recipe: Recipe, data: Dataset) -> list[ModelFactory]:
    """Each client's model, the listed models dealt in turn; one of each kind is tried on real inputs."""
    dealt = [recipe.models[index % len(recipe.models)] for index in range(recipe.clients)]
    factories = [_factory(recipe, data, model, str(index)) for index, model in enumerate(dealt)]
    for factory in factories[: len(recipe.models)]:
        check_model(factory, _extremes(data.train.inputs))
    return factories


def _extremes(inputs: torch.Tensor) -> torch.Tensor:
    """Two inputs to try a model on: of texts the longest, and the one with the largest token id."""
    sizes = lengths(inputs)
    return inputs[:2] if sizes is None else inputs[torch.stack([sizes.argmax(), inputs.amax(1).argmax()])]


def _factory(recipe: Recipe, data: Dataset, model: ModelSection, owner: str) -> ModelFactory:
    return model_factory(model, Inputs.of(data), recipe.seed, owner)
