"""A recipe, run: data split, clients built and checked, rounds played, and a run directory as the record.

The directory holds recipe.toml (resolved), rounds.jsonl (a line a round), summary.json, checkpoint/ and models/.
"""

import atexit
import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trustmix import storage
from trustmix.data import Dataset, Labelled, load, partition
from trustmix.engines import LocalEngine, choose
from trustmix.errors import StorageError, TrustmixError
from trustmix.federation import (
    Checkpoint,
    Client,
    DiskStore,
    Engine,
    FaultyEngine,
    Federation,
    History,
    MemoryStore,
    Participation,
    Public,
    Round,
    Training,
    Watcher,
)
from trustmix.models import ModelFactory, check_model
from trustmix.seeds import numpy_stream
from trustmix.study.recipe import Recipe

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
    recipe, federation = prepare(recipe, record)
    with closing(federation.engine), record.begin(recipe, overwrite=overwrite):
        for line in federation.play(recipe.rounds, checkpoint=record.checkpoint, watch=watch):
            record.append(line)
        history = History(record.rounds())
        record.finish(history)
    return history


def prepare(recipe: Recipe, record: "RunDirectory | None" = None) -> tuple[Recipe, Federation]:
    """The federation of a recipe, everything checked that can be checked before the first epoch.

    With it comes the recipe in which the engine is settled: how clients are run is chosen once, and written down.
    """
    data = load(recipe.data.name, path=recipe.data.path, source=recipe.data.source)
    public, shares = _split(recipe, data)
    shared = Public(public.inputs, data.classes)
    factories = _factories(recipe, data)
    keep = _keep(recipe, factories)
    folder = record.path / "checkpoint" / "clients" if record else None
    if folder is None and (not keep or recipe.engine.mode != "sequential"):
        # a worker process that dies takes its memory along; on disk its clients' states outlive it
        folder = Path(tempfile.mkdtemp(prefix="trustmix-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    clients = [
        Client(
            id=str(index),
            model=factories[index],
            private=private,
            calibration=calibration,
            public=shared,
            test=data.test,
            training=Training(**recipe.train.model_dump()),
            form=recipe.wire.form,
            codec=recipe.wire.up,
            delta=recipe.wire.delta,
            seed=recipe.seed,
            store=DiskStore(folder / str(index)) if folder else MemoryStore(),
        )
        for index, (private, calibration) in enumerate(shares)
    ]
    wanted = recipe.engine
    plan, found = choose(
        clients, mode=wanted.mode, precision=wanted.precision, device=wanted.device, workers=wanted.workers
    )
    log.info("engine: %s", found)
    engine: Engine = LocalEngine(clients, plan, keep=keep)
    if recipe.faults.crash or recipe.faults.late:
        engine = FaultyEngine(engine, recipe.faults.crash, recipe.faults.late, recipe.seed)
    federation = Federation(
        clients=engine,
        public=shared,
        rule=recipe.method,
        public_labels=public.labels,
        participation=Participation(**recipe.participation.model_dump()),
        codec=recipe.wire.down,
        seed=recipe.seed,
    )
    return recipe.settled(plan.mode, plan.hardware.precision, plan.hardware.device, plan.workers, keep), federation


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
    split = partition(
        data.train.labels,
        data.classes,
        clients=recipe.clients,
        kind=recipe.split.kind,
        classes_per_client=recipe.split.classes_per_client,
        samples_per_client=recipe.split.samples_per_client,
        alpha=recipe.split.alpha,
        public_samples=recipe.public.samples if data.public is None else None,
        holdout=recipe.density.holdout,
        seed=recipe.seed,
    )
    if data.public is None:
        public = data.train[split.public]
    elif recipe.public.samples > len(data.public):
        raise TrustmixError(
            f"public.samples is {recipe.public.samples}, but the data's own public set has {len(data.public)} samples."
        )
    else:
        order = numpy_stream(recipe.seed, "public").permutation(len(data.public))
        public = data.public[torch.from_numpy(order[: recipe.public.samples])]
    return public, [(data.train[share.train], data.train[share.calibration]) for share in split.clients]


def _factories(recipe: Recipe, data: Dataset) -> list[ModelFactory]:
    """Each client's model, the listed models dealt in turn; one of each kind is tried on real inputs."""
    scale = (data.mean, data.std) if data.train.inputs.dtype == torch.uint8 else None
    factories = []
    for index in range(recipe.clients):
        model = recipe.models[index % len(recipe.models)]
        options = model.model_extra or {}
        factories.append(
            ModelFactory(model.name, model.source, options, data.shape, data.classes, scale, recipe.seed, str(index))
        )
    for factory in factories[: len(recipe.models)]:
        check_model(factory, data.train.inputs[:2])
    return factories


@dataclass(frozen=True)
class RunDirectory:
    """The record of one run."""

    path: Path

    @property
    def checkpoint(self) -> Checkpoint:
        """The server's state."""
        return Checkpoint(self.path / "checkpoint")

    @property
    def finished(self) -> bool:
        """Whether the run is over."""
        return (self.path / "summary.json").exists()

    def check(self, recipe: Recipe, *, resume: bool, overwrite: bool) -> Recipe:
        """Refuse what would damage or confuse: somebody's other files, a run already there, another recipe.

        Gives the recipe to run: of a run that is resumed, the one it began with.
        """
        file = self.path / "recipe.toml"
        if resume and overwrite:
            raise TrustmixError("--resume goes on with a run and --overwrite starts it anew; give one of them.")
        if not file.exists():
            if self.path.is_file():
                raise TrustmixError(f"{self.path} is a file; --out must be a new or an empty directory.")
            if self.path.exists() and any(found.suffix != ".tmp" for found in self.path.iterdir()):
                raise TrustmixError(f"{self.path} holds other files; choose an empty or a new directory.")
        elif not (resume or overwrite):
            raise TrustmixError(
                f"{self.path} holds a run already; add --resume to go on with it or --overwrite to start anew."
            )
        elif not overwrite:
            return _same_recipe(file, recipe)
        return recipe

    @contextmanager
    def begin(self, recipe: Recipe, *, overwrite: bool) -> Iterator[None]:
        """The directory, ready for a new run, one started anew or one that goes on from its last commit.

        Inside, the run is locked: a second process that tries the same directory is refused.
        """
        with _lock(self.path):
            self.check(recipe, resume=not overwrite, overwrite=overwrite)  # once more, now that nobody else can write
            if overwrite:
                # the recipe last: until it is gone, the directory is still known as a run's
                for name in ("checkpoint/server.json", "summary.json", "rounds.jsonl", "report.html"):
                    (self.path / name).unlink(missing_ok=True)
                for name in ("checkpoint", "models"):
                    shutil.rmtree(self.path / name, ignore_errors=True)
                (self.path / "recipe.toml").unlink(missing_ok=True)
            storage.write_bytes(self.path / "recipe.toml", recipe.toml().encode())
            self._forget_after(self.checkpoint.load().exchange - 1)
            yield

    def _forget_after(self, last: int) -> None:
        """Drop lines that were written but not committed; they will be told again."""
        kept = [line for line in self._lines() if Round.from_line(line).round <= last]
        storage.write_bytes(self.path / "rounds.jsonl", "".join(line + "\n" for line in kept).encode())

    def _lines(self) -> list[str]:
        """Whole lines of rounds.jsonl; a torn last line, without its end, does not count."""
        file = self.path / "rounds.jsonl"
        return file.read_text("utf-8").split("\n")[:-1] if file.exists() else []

    def rounds(self) -> list[Round]:
        """The rounds so far."""
        return [Round.from_line(line) for line in self._lines()]

    def append(self, line: Round) -> None:
        """Write one more round."""
        try:
            with open(self.path / "rounds.jsonl", "a", encoding="utf-8") as file:
                file.write(line.line() + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StorageError(f"Could not write {self.path / 'rounds.jsonl'}: {error.strerror}.") from error

    def finish(self, history: History) -> None:
        """Write the final models and the summary, which marks the run as over."""
        for folder in sorted((self.path / "checkpoint" / "clients").iterdir()):
            state = DiskStore(folder).before(len(history.rounds) + 2)
            if state is not None:
                model = {name[6:]: tensor for name, tensor in state[0].items() if name.startswith("model.")}
                storage.write_tensors(self.path / "models" / f"{folder.name}.safetensors", model)
        storage.write_json(self.path / "summary.json", history.summary())


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Hold the folder; the lock ends with the process, however it ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise StorageError(f"Could not make the directory {folder}: {error.strerror}.") from error
    try:
        _take(handle, folder)
        yield
    finally:
        os.close(handle)


def _take(handle: int, folder: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise TrustmixError(f"Another process is running in {folder}; wait for it, or use another one.") from error


def _same_recipe(file: Path, recipe: Recipe) -> Recipe:
    """The recipe that the run began with, if it is this one; what was left to the engine was settled then."""
    begun = Recipe.load(file)
    engine = begun.engine
    settled = recipe.settled(engine.mode, engine.precision, engine.device, engine.workers, engine.store == "memory")
    if begun != settled:
        before, after = set(begun.toml().splitlines()), set(settled.toml().splitlines())
        changed = ", ".join(sorted(before - after)) or "a setting less"
        now = ", ".join(sorted(after - before)) or "a setting less"
        raise TrustmixError(
            f"{file.parent} was begun with {changed}, and this recipe has {now}; resume with the same recipe."
        )
    return begun
