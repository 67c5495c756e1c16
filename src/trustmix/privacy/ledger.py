"""The privacy ledger of a data set: what was released of it, over all runs, and the newest answers.

It only grows. A round that is asked for again is answered with the stored bytes, so that no noise is drawn twice for
it, and a new run or a state that was rolled back does not reset what was spent. An entry is committed by the rename of
one file, `ledger.json`, before the answer leaves the client.
"""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from trustmix import records, storage
from trustmix.errors import StorageError, TrustmixError
from trustmix.privacy.accountant import Release, compute_total_epsilon

LEDGER_FORMAT = 1
"""The version of ledger.json."""
LARGEST = 1e15
"""Larger numbers are in no entry of a ledger."""
KEPT_ANSWERS = 2
"""Answers of a run that are kept: a server repeats the last round only."""


@dataclass(frozen=True)
class LedgerEntry:
    """One release of one round of a run."""

    run: str
    round: int
    release: Release


@dataclass(frozen=True)
class Answer:
    """A stored answer: the payload as it was sent, and the figures that went with it."""

    payload: bytes | None
    figures: dict[str, float]


@dataclass
class PrivacyLedger:
    """The ledger of one data set, as one run sees it.

    Parameters
    ----------
    epsilon : float
        What is promised: the most that all runs together may spend.
    delta : float
        The delta at which epsilon is given.
    folder : Path, optional
        Where the ledger lies. It must outlive runs and their states. None keeps the ledger in memory.
    run : str
        The id of the run.

    Examples
    --------
    >>> ledger = PrivacyLedger(epsilon=8.0, delta=1e-5)
    >>> ledger.record(1, [Release(noise_multiplier=4.0, sample_rate=0.5, releases=10)], b"noisy predictions", {})
    >>> ledger.find_answer(1).payload
    b'noisy predictions'
    >>> 0 < ledger.epsilon_spent() < 8
    True
    """

    epsilon: float
    delta: float
    folder: Path | None = None
    run: str = ""
    _entries: list[LedgerEntry] = field(default_factory=list, init=False, repr=False)
    _answers: dict[int, Answer] = field(default_factory=dict, init=False, repr=False)

    @property
    def name(self) -> str:
        """The ledger's name for error messages, which a server may see: without the path."""
        return "the privacy ledger" if self.folder is None else f"the privacy ledger {self.folder.name}"

    def entries(self) -> list[LedgerEntry]:
        """All entries, of all runs.

        Returns
        -------
        list of LedgerEntry
            In the order in which they were recorded; none if there is no ledger yet.

        Raises
        ------
        StorageError
            If the file cannot be read or is no ledger: it never counts as empty.
        """
        if self.folder is None:
            return list(self._entries)
        file = self._file(self.folder)
        if not file.exists():
            return []
        found = records.validate_record(storage.read_json(file), LEDGER_FORMAT, str(file)).get("entries")
        if not isinstance(found, list):
            raise StorageError(f"{file} is no privacy ledger: it lacks a list of entries; restore it from a backup.")
        return [_parse_entry(entry, f"{file}, entry {number}") for number, entry in enumerate(found, 1)]

    def epsilon_spent(self, *more: Release) -> float:
        """Epsilon of everything that was recorded.

        Parameters
        ----------
        *more : Release
            Further releases to add.

        Returns
        -------
        float
            Epsilon at the ledger's delta.
        """
        return compute_total_epsilon([*(entry.release for entry in self.entries()), *more], self.delta)

    def count_rounds(self) -> int:
        """The number of rounds of this run that were recorded."""
        return len({entry.round for entry in self.entries() if entry.run == self.run})

    def validate_plan(self, planned: Sequence[Release]) -> None:
        """Check that a whole run fits into the promise, beside the other runs on record.

        Parameters
        ----------
        planned : sequence of Release
            What the run releases in all its rounds.

        Raises
        ------
        TrustmixError
            If it does not.
        """
        others = [entry.release for entry in self.entries() if entry.run != self.run]
        total = compute_total_epsilon([*others, *planned], self.delta)
        if total > self.epsilon:
            raise TrustmixError(
                f"By {self.name}, these data have spent epsilon {compute_total_epsilon(others, self.delta):.3g} in "
                f"other runs; this run would bring it to {total:.3g}, and {self.epsilon:g} is promised."
            )

    def validate_releases(self, releases: Sequence[Release]) -> None:
        """Check that releases fit into what is left of the promise.

        Parameters
        ----------
        releases : sequence of Release
            What is about to be released.

        Raises
        ------
        TrustmixError
            If they do not.
        """
        total = self.epsilon_spent(*releases)
        if total > self.epsilon:
            raise TrustmixError(
                f"By {self.name}, epsilon {self.epsilon:g} is promised, {self.epsilon_spent():.3g} is spent, and this "
                f"round would bring it to {total:.3g}; it is not answered."
            )

    def find_answer(self, round_: int) -> Answer | None:
        """The answer that was given in a round of this run.

        Parameters
        ----------
        round_ : int
            The round that is asked for.

        Returns
        -------
        Answer or None
            None if the round comes after all rounds that were answered.

        Raises
        ------
        TrustmixError
            If a later round was answered and the answer of this one is not kept.
        """
        last = max((entry.round for entry in self.entries() if entry.run == self.run), default=0)
        if round_ > last:
            return None
        answer = self._answers.get(round_) if self.folder is None else self._read_answer(self.folder, round_)
        if answer is None:
            raise TrustmixError(f"round {round_} was asked for after round {last}, and its answer is not kept")
        return answer

    def record(
        self, round_: int, releases: Sequence[Release], payload: bytes | None, figures: Mapping[str, float]
    ) -> None:
        """Record releases and the answer that carries them, before the answer leaves the client.

        Parameters
        ----------
        round_ : int
            The round of this run.
        releases : sequence of Release
            What the answer releases.
        payload : bytes or None
            The answer's payload.
        figures : mapping of str to float
            Further figures of the answer.

        Raises
        ------
        TrustmixError
            If they do not fit into the promise, or the ledger cannot be written.
        """
        with self._lock():
            self.validate_releases(releases)
            entries = [*self.entries(), *(LedgerEntry(self.run, round_, release) for release in releases)]
            answer = Answer(payload, dict(figures))
            if self.folder is None:
                self._entries, self._answers[round_] = entries, answer
            else:
                self._write_answer(self.folder, round_, answer)
                rows = [{"run": e.run, "round": e.round, **asdict(e.release)} for e in entries]
                storage.write_json(self._file(self.folder), {"format": LEDGER_FORMAT, "entries": rows})
            self._forget_answers(sorted({entry.round for entry in entries if entry.run == self.run})[:-KEPT_ANSWERS])

    def _lock(self) -> AbstractContextManager[None]:
        return nullcontext() if self.folder is None else storage.lock_directory(self.folder, wait=True)

    def _file(self, folder: Path) -> Path:
        return folder / "ledger.json"

    def _answer_file(self, folder: Path, round_: int) -> Path:
        """The file of an answer; the id of a run comes from a server and names no file itself."""
        return folder / f"{hashlib.sha256(self.run.encode()).hexdigest()[:16]}-{round_:06d}.safetensors"

    def _read_answer(self, folder: Path, round_: int) -> Answer | None:
        file = self._answer_file(folder, round_)
        if not file.exists():
            return None
        tensors, figures = storage.read_tensors(file)
        payload = bytes(tensors["payload"].numpy()) if "payload" in tensors else None
        return Answer(payload, {name: float(value) for name, value in figures.items()})

    def _write_answer(self, folder: Path, round_: int, answer: Answer) -> None:
        tensors = {}
        if answer.payload is not None:
            tensors["payload"] = torch.frombuffer(bytearray(answer.payload), dtype=torch.uint8)
        storage.write_tensors(self._answer_file(folder, round_), tensors, answer.figures)

    def _forget_answers(self, rounds: list[int]) -> None:
        for round_ in rounds:
            self._answers.pop(round_, None)
            if self.folder is not None:
                self._answer_file(self.folder, round_).unlink(missing_ok=True)


def _parse_entry(entry: object, source: str) -> LedgerEntry:
    """An entry of ledger.json, with numbers that a release can have."""
    fields = entry if isinstance(entry, dict) else {}
    run, round_, releases = fields.get("run"), _positive(fields.get("round")), _positive(fields.get("releases"))
    noise, rate = _positive(fields.get("noise_multiplier")), _positive(fields.get("sample_rate"))
    if not isinstance(run, str) or not (round_ and releases and noise and rate) or rate > 1:
        raise StorageError(f"{source}, is no release of a privacy ledger; restore the file from a backup.")
    return LedgerEntry(run, int(round_), Release(noise, rate, int(releases)))


def _positive(value: object) -> float | None:
    """A number of JSON above 0, or None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value < LARGEST else None
