"""A run directory, the record of a run: recipe.toml (resolved), rounds.jsonl (a line a round), summary.json, models/.

In trust/ is whom the teacher trusted, a file a round (see `federation.witness`); `trustmix report` shows it. Its
checkpoint/ lets the run go on after it was stopped; whatever is written is whole or not there.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trustmix import storage
from trustmix.errors import StorageError, TrustmixError
from trustmix.experiment.recipe import Recipe
from trustmix.experiment.toml_settings import toml_value
from trustmix.federation import Checkpoint, History, Method, Round
from trustmix.federation.history import SUMMARY_FORMAT


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
            ensure_empty(self.path)
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
        with storage.lock_directory(self.path):
            self.check(recipe, resume=not overwrite, overwrite=overwrite)  # once more, now that nobody else can write
            if overwrite:
                # the recipe last: until it is gone, the directory is still known as a run's
                told = ("rounds.jsonl", "theory.jsonl", "mlflow.json", "report.html")
                for name in ("checkpoint/server.json", "summary.json", *told):
                    (self.path / name).unlink(missing_ok=True)
                for name in ("checkpoint", "models", "trust"):
                    shutil.rmtree(self.path / name, ignore_errors=True)
                (self.path / "recipe.toml").unlink(missing_ok=True)
            storage.write_bytes(self.path / "recipe.toml", recipe.toml().encode())
            self._forget_after(self.checkpoint.load().exchange - 1)
            yield

    def _forget_after(self, last: int) -> None:
        """Drop lines that were written but not committed; they will be told again."""
        kept = [line for line, found in zip(self._lines(), self.rounds(), strict=True) if found.round <= last]
        storage.write_bytes(self.path / "rounds.jsonl", "".join(line + "\n" for line in kept).encode())

    def _lines(self) -> list[str]:
        """Whole lines of rounds.jsonl; a torn last line, without its end, does not count."""
        file = self.path / "rounds.jsonl"
        return file.read_text("utf-8").split("\n")[:-1] if file.exists() else []

    def rounds(self) -> list[Round]:
        """The rounds so far."""
        file = self.path / "rounds.jsonl"
        return [Round.from_json(line, f"{file}, line {number}") for number, line in enumerate(self._lines(), 1)]

    def append(self, line: Round) -> None:
        """Write one more round."""
        try:
            with open(self.path / "rounds.jsonl", "a", encoding="utf-8") as file:
                file.write(line.to_json() + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StorageError(f"Could not write {self.path / 'rounds.jsonl'}: {error.strerror}.") from error

    def finish(self, history: History, method: Method) -> None:
        """Write the summary, which marks the run as over; a report takes the method's label and colour from it."""
        names = {"label": method.label, "colour": method.colour}
        storage.write_json(self.path / "summary.json", {"format": SUMMARY_FORMAT, **history.summary(), **names})

    def summary(self) -> dict[str, Any]:
        """Read the summary of a finished run: the figures of `History.summary` by name."""
        file = self.path / "summary.json"
        return storage.validate_record(storage.read_json(file), SUMMARY_FORMAT, str(file))


def ensure_empty(folder: Path) -> None:
    """Refuse a directory that holds files of other programs; a lock or a half-written file of ours does not count.

    Parameters
    ----------
    folder
        A directory, which need not exist.

    Raises
    ------
    TrustmixError
        If it is a file or holds other files.
    """
    if folder.is_file():
        raise TrustmixError(f"{folder} is a file; --out must be a new or an empty directory.")
    if folder.exists() and any(file.name != storage.LOCK_FILE and file.suffix != ".tmp" for file in folder.iterdir()):
        raise TrustmixError(f"{folder} holds other files; choose an empty or a new directory.")


def _same_recipe(file: Path, recipe: Recipe) -> Recipe:
    """The recipe that the run began with, if it is this one; what was left to the engine was settled then."""
    begun = Recipe.load(file)
    ensure_same_recipe(file.parent, begun, recipe.resolve_engine(begun.engine.model_dump()))
    return begun


def ensure_same_recipe(folder: Path, begun: Recipe, recipe: Recipe) -> None:
    """Refuse to resume a run with another recipe.

    Parameters
    ----------
    folder
        The run directory, for the error message.
    begun
        The recipe that the run began with.
    recipe
        The recipe to go on with.

    Raises
    ------
    TrustmixError
        If they differ; the message names the settings that do.
    """
    if begun != recipe:
        before, after = set(_settings(begun)), set(_settings(recipe))
        changed = ", ".join(sorted(before - after)) or "a setting less"
        now = ", ".join(sorted(after - before)) or "a setting less"
        raise TrustmixError(
            f"{folder} was begun with {changed}, and this recipe has {now}; resume with the same recipe."
        )


def _settings(recipe: Recipe) -> Iterator[str]:
    """Every setting as 'section.key = value'."""
    for key, value in recipe.model_dump(mode="json", exclude_none=True).items():
        inner = {f"{key}.{name}": entry for name, entry in value.items()} if isinstance(value, dict) else {key: value}
        yield from (f"{name} = {toml_value(entry)}" for name, entry in inner.items())
