"""A run directory is the record of a run.

It holds recipe.toml (resolved), rounds.jsonl (one line per round), summary.json (once the run is finished), models/,
environment.json (versions and hardware), trust/ (one file per round, see `callbacks.trust_log`), theory.jsonl (see
`theory.probe`) and checkpoint/, from which a stopped run is resumed.
Files are written atomically; `.lock` keeps a second process out. Only its owner can enter a directory that a run has
made; models and states are made from private data.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trustmix import records, storage
from trustmix.errors import StorageError, TrustmixError
from trustmix.experiment.environment import append_environment
from trustmix.federation import Checkpoint, History, Method, Round
from trustmix.federation.history import SUMMARY_FORMAT, SUMMARY_TYPES
from trustmix.settings.recipe import Recipe
from trustmix.settings.toml_settings import toml_value

DATA_FORMAT = 1
"""The version of checkpoint/data.json."""


@dataclass(frozen=True)
class RunDirectory:
    """The files of one run.

    Parameters
    ----------
    path : Path
        The directory, which need not exist.

    Examples
    --------
    >>> RunDirectory(Path("no/such/run")).finished
    False
    """

    path: Path

    @property
    def checkpoint(self) -> Checkpoint:
        """The state of the server after the last committed round."""
        return Checkpoint(self.path / "checkpoint")

    @property
    def finished(self) -> bool:
        """Whether the run has a summary, which is written at its end."""
        return (self.path / "summary.json").exists()

    def check(self, recipe: Recipe, *, resume: bool, overwrite: bool) -> Recipe:
        """Check that a run can start or be resumed here.

        Parameters
        ----------
        recipe : Recipe
            The recipe to run.
        resume : bool
            Whether to resume a run that is here.
        overwrite : bool
            Whether to replace a run that is here.

        Returns
        -------
        Recipe
            The recipe to run; for a run that is resumed, the one that it began with.

        Raises
        ------
        TrustmixError
            If the directory holds other files, a run without `resume` or `overwrite`, or a run of another recipe.
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
    def begin(self, recipe: Recipe, *, overwrite: bool, data: Mapping[str, str] | None = None) -> Iterator[None]:
        """Prepare the directory for a new run, or for resuming from the last commit, and lock it for the context.

        Parameters
        ----------
        recipe : Recipe
            The recipe to run.
        overwrite : bool
            Whether to remove a run that is here.
        data : mapping of str to str, optional
            Fingerprints of the data by name; a run that is resumed must have the same.

        Raises
        ------
        TrustmixError
            As `check`, and if another process runs here, the data are others, or lines of rounds.jsonl are missing.
        """
        if not self.path.exists():
            storage.make_private_directory(self.path)
        with storage.lock_directory(self.path):
            self.check(recipe, resume=not overwrite, overwrite=overwrite)  # again, now that no other process can write
            if overwrite:
                self._remove_run()
            exchange = self.checkpoint.load().exchange
            self._validate_rounds(exchange)
            self._validate_data(data or {})
            storage.write_bytes(self.path / "recipe.toml", recipe.resolved_toml().encode())
            storage.make_private_directory(self.path / "checkpoint")  # even if others may read the run directory
            storage.write_json(self._data_file, {"format": DATA_FORMAT, **(data or {})})
            self._drop_rounds_after(exchange - 1)
            append_environment(self.path)
            yield

    @property
    def _data_file(self) -> Path:
        return self.path / "checkpoint" / "data.json"

    def _validate_data(self, data: Mapping[str, str]) -> None:
        """Refuse data with other fingerprints than those that the run began with."""
        if not self._data_file.exists():
            return
        begun = records.validate_record(storage.read_json(self._data_file), DATA_FORMAT, str(self._data_file))
        for name in (name for name, found in data.items() if begun.get(name, found) != found):
            raise TrustmixError(f"{self.path} was begun with other {name} data; resume with the same data.")

    def _validate_rounds(self, exchange: int) -> None:
        """Refuse a record that is not that of the checkpoint: an exchange completes the round before it."""
        found = len(self.rounds())
        if found < exchange - 1:
            raise StorageError(
                f"{self.path / 'rounds.jsonl'} ends with round {found}, and the checkpoint is of exchange {exchange}; "
                "lines are missing: restore them, or start anew with --overwrite."
            )
        if found > exchange:
            raise StorageError(
                f"{self.path / 'rounds.jsonl'} has {found} rounds, and the checkpoint is of exchange {exchange}; it is "
                "lost or older: restore it, or start anew with --overwrite."
            )

    def _remove_run(self) -> None:
        files = ("rounds.jsonl", "theory.jsonl", "mlflow.json", "wandb.json", "environment.json", "report.html")
        for name in ("checkpoint/server.json", "summary.json", *files):
            (self.path / name).unlink(missing_ok=True)
        for name in ("checkpoint", "models", "trust", "wandb"):
            shutil.rmtree(self.path / name, ignore_errors=True)
        (self.path / "recipe.toml").unlink(missing_ok=True)  # last: it marks the directory as that of a run

    def _drop_rounds_after(self, last: int) -> None:
        """Remove lines that were written but not committed; the resumed run writes them again."""
        kept = [line for line, found in zip(self._lines(), self.rounds(), strict=True) if found.round <= last]
        storage.write_bytes(self.path / "rounds.jsonl", "".join(line + "\n" for line in kept).encode())

    def _lines(self) -> list[str]:
        """The lines of rounds.jsonl, without a last line that a crash has cut."""
        file = self.path / "rounds.jsonl"
        if not file.exists():
            return []
        try:
            return storage.read_bytes(file).decode().split("\n")[:-1]
        except UnicodeDecodeError as error:
            raise StorageError(f"{file} is not UTF-8 text.") from error

    def rounds(self) -> list[Round]:
        """Read the rounds so far.

        Returns
        -------
        list of Round
            In the order of the file.

        Raises
        ------
        StorageError
            If a line is missing, is no round or is of a newer format.
        """
        file = self.path / "rounds.jsonl"
        found = [Round.from_json(line, f"{file}, line {number}") for number, line in enumerate(self._lines(), 1)]
        for number, line in enumerate(found, 1):
            if line.round != number:
                raise StorageError(f"{file}, line {number} is of round {line.round}; round {number} belongs there.")
        if self.finished and (rounds := self.summary().get("rounds", len(found))) != len(found):
            raise StorageError(f"{file} ends with round {len(found)}, and the run has {rounds}; restore the lines.")
        return found

    def append(self, line: Round) -> None:
        """Append a round to rounds.jsonl.

        Parameters
        ----------
        line : Round
            The round.

        Raises
        ------
        StorageError
            If the file cannot be written.
        """
        try:
            with open(self.path / "rounds.jsonl", "a", encoding="utf-8", newline="\n") as file:
                file.write(line.to_json() + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StorageError(f"Could not write {self.path / 'rounds.jsonl'}: {error.strerror}.") from error

    def finish(self, history: History, method: Method) -> None:
        """Write summary.json, which marks the run as finished.

        Parameters
        ----------
        history : History
            All rounds.
        method : Method
            The method of the run; a report takes its label and colour from the summary.
        """
        names = {"label": method.label, "colour": method.colour}
        storage.write_json(self.path / "summary.json", {"format": SUMMARY_FORMAT, **history.summary(), **names})

    def summary(self) -> dict[str, Any]:
        """Read summary.json of a finished run.

        Returns
        -------
        dict
            The figures of `History.summary`, and label and colour of the method.

        Raises
        ------
        StorageError
            If the file cannot be read or is of a newer format.
        """
        file = self.path / "summary.json"
        found = records.validate_record(storage.read_json(file), SUMMARY_FORMAT, str(file))
        records.validate_types(SUMMARY_TYPES, found, str(file))
        return found


def ensure_empty(folder: Path) -> None:
    """Refuse a directory that holds files of other programs; a lock or a half-written file of ours does not count.

    Parameters
    ----------
    folder : Path
        A directory, which need not exist.

    Raises
    ------
    TrustmixError
        If it is a file or holds other files.

    Examples
    --------
    >>> import tempfile
    >>> ensure_empty(Path(tempfile.mkdtemp()))
    """
    if folder.is_file():
        raise TrustmixError(f"{folder} is a file; --out must be a new or an empty directory.")
    if folder.exists() and any(file.name != storage.LOCK_FILE and file.suffix != ".tmp" for file in folder.iterdir()):
        raise TrustmixError(f"{folder} holds other files; choose an empty or a new directory.")


def _same_recipe(file: Path, recipe: Recipe) -> Recipe:
    """The recipe that the run began with, if it equals this one; the engine's choices were made at that time."""
    begun = Recipe.load(file)
    ensure_same_recipe(file.parent, begun, recipe.resolve_engine(begun.engine.model_dump()))
    return begun


def ensure_same_recipe(folder: Path, begun: Recipe, recipe: Recipe) -> None:
    """Refuse to resume a run with another recipe.

    Parameters
    ----------
    folder : Path
        The run directory, for the error message.
    begun : Recipe
        The recipe that the run began with.
    recipe : Recipe
        The recipe to resume with.

    Raises
    ------
    TrustmixError
        If they differ; the message names the settings that do.

    Examples
    --------
    >>> ensure_same_recipe(Path("runs/demo"), Recipe.load("demo"), Recipe.load("demo"))
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
