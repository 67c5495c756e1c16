"""Who was trusted for what, from the files that runs write into trust/: data for the page's script, and heat maps.

A share is a client's weight in the teacher's label of one sample. Shares and probabilities become bytes (steps of
1/255). Where all rounds of all runs would be too large for a page, rounds are left out evenly, and then runs.
"""

import base64
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import torch

from trustmix import records, storage
from trustmix.callbacks.trust_log import TRUST_FORMAT, RoundTrust
from trustmix.errors import StorageError
from trustmix.report.charts import Heatmap
from trustmix.report.study import Cell, Study
from trustmix.sweeps.tables import MeanStd

MAX_BYTES = 5_000_000
"""The largest size of all these data in a page."""
MAX_CLIENTS = 100
"""The largest number of clients that are shown."""
TOP_CLASSES = 3
"""The number of classes of a teacher's label that are shown."""


class SampleData(TypedDict):
    """One public sample as the page's script reads it, with an image or a text."""

    truth: int
    """The sample's class; -1 where it is unknown."""
    image: NotRequired[str]
    """A PNG file as a data URL."""
    text: NotRequired[str]


class RunData(TypedDict):
    """One run as the page's script reads it; arrays are bytes in base64, the last axis first to change."""

    name: str
    rounds: list[int]
    clients: list[str]
    of: int
    """The number of clients in the run, of which `clients` may be a part."""
    held: list[list[int]]
    """The classes that each client holds."""
    classes: list[str]
    weighed: bool
    """Whether shares are the rule's own weights."""
    trust: str
    """(rounds, clients, classes): the mean share of a client in samples of a class."""
    shares: str
    """(rounds, clients, samples)."""
    votes: str
    """(rounds, clients, samples): classes; the number of classes for a client that was not in the round."""
    top: str
    """(rounds, samples, top classes): the teacher's most probable classes."""
    chance: str
    """(rounds, samples, top classes): their probabilities."""
    truth: str
    """(rounds, samples): the teacher's probability of the true class."""
    samples: int
    """The index of the run's samples in `TrustData.samples`."""


class TrustData(TypedDict):
    """Everything that the trust map and the sample browser show."""

    samples: list[list[SampleData]]
    """Sets of samples; runs of one split share a set."""
    runs: list[RunData]


@dataclass(frozen=True)
class _TrustFiles:
    """The files of one run."""

    name: str
    rounds: Sequence[Path]
    metadata: dict[str, Any]
    """Class names, labels of the shown samples, held classes by client, and maybe texts."""
    images: torch.Tensor | None

    @property
    def bytes_per_round(self) -> int:
        """The approximate size of a round in the page."""
        clients, classes = min(MAX_CLIENTS, len(self.metadata["held"])), len(self.metadata["classes"])
        samples, bytes_per_class = len(self.metadata["labels"]), 1 + (classes > 255)
        per_sample = clients * (1 + bytes_per_class) + TOP_CLASSES * (1 + bytes_per_class) + 1
        return 4 * (clients * classes + samples * per_sample) // 3


def build_trust_data(study: Study) -> TrustData | None:
    """Collect the data of the trust map and of the sample browser.

    Parameters
    ----------
    study : Study
        The runs.

    Returns
    -------
    TrustData or None
        The first seed of every cell that has recorded trust, the most accurate method of the first task first;
        None where no cell has recorded it.

    Raises
    ------
    StorageError
        If a file in trust/ does not describe trust.
    """
    cells = sorted(study.cells, key=lambda cell: (study.tasks.index(cell.task), -(cell.best_accuracy.mean or 0)))
    sample_sets: list[list[SampleData]] = []
    kept: list[tuple[_TrustFiles, int]] = []
    left = MAX_BYTES
    for cell in cells:
        files = _find_files(cell.runs[0].folder, _cell_name(study, cell))
        if files is None:
            continue
        samples = _sample_data(files)
        cost = files.bytes_per_round + (0 if samples in sample_sets else len(str(samples)))
        if cost > left:
            continue
        left -= cost
        if samples not in sample_sets:
            sample_sets.append(samples)
        kept.append((files, sample_sets.index(samples)))
    if not kept:
        return None
    rounds = 1 + left // sum(files.bytes_per_round for files, _ in kept)
    return {"samples": sample_sets, "runs": [_run_data(files, rounds, index) for files, index in kept]}


def build_trust_maps(study: Study) -> list[tuple[int, Heatmap]]:
    """Build the trust map of the last round of every cell.

    Parameters
    ----------
    study : Study
        The runs.

    Returns
    -------
    list of (int, Heatmap)
        The mean share of every client in the samples of every class, with the index of the cell's task.

    Raises
    ------
    StorageError
        If a file in trust/ does not describe trust.
    """
    found = []
    for cell in study.cells:
        files = _find_files(cell.runs[0].folder, cell.method.name)
        if files:
            last, held = RoundTrust.load(files.rounds[-1]), files.metadata["held"]
            clients = sorted(list(held)[:MAX_CLIENTS], key=lambda client: held[client], reverse=True)
            rows = _client_rows(last, last.trust, clients).float().clamp_min(0).tolist()
            values = [[MeanStd(share, None, 1) for share in row] for row in rows]
            title = f"{files.name}, round {last.round}: mean share of trust, %"
            heatmap = Heatmap("trust", title, "class", "client", files.metadata["classes"], clients, values)
            found.append((study.tasks.index(cell.task), heatmap))
    return found


def class_names(cells: Sequence[Cell], classes: int) -> list[str]:
    """Find the names of the classes of a task.

    Parameters
    ----------
    cells : sequence of Cell
        The cells of one task.
    classes : int
        The number of classes.

    Returns
    -------
    list of str
        The names that the first run with recorded trust has; the classes' indices where no run has any.

    Raises
    ------
    StorageError
        If a file in trust/ does not describe trust.
    """
    for cell in cells:
        files = _find_files(cell.runs[0].folder, cell.method.name)
        if files and len(files.metadata["classes"]) == classes:
            return [str(name) for name in files.metadata["classes"]]
    return [str(index) for index in range(classes)]


def _cell_name(study: Study, cell: Cell) -> str:
    task = cell.task.name if len(study.tasks) > 1 else ""
    return ", ".join(part for part in (cell.method.name, task) if part)


def _find_files(folder: Path, name: str) -> _TrustFiles | None:
    """Find what a run has recorded of trust; None where it has recorded nothing."""
    trust = folder / "trust"
    rounds = sorted(file for file in trust.glob("*.safetensors") if file.stem.isdecimal())
    if not rounds or not (trust / "samples.safetensors").is_file():
        return None
    tensors, record = storage.read_tensors(trust / "samples.safetensors")
    metadata = records.validate_record(record, TRUST_FORMAT, str(trust / "samples.safetensors"))
    if not {"classes", "labels", "held"} <= metadata.keys():
        raise StorageError(
            f"{trust / 'samples.safetensors'} does not describe public samples: it needs classes, labels and held."
        )
    return _TrustFiles(name, rounds, metadata, tensors.get("images"))


def _sample_data(files: _TrustFiles) -> list[SampleData]:
    labels: list[int] = files.metadata["labels"]
    if files.images is None:
        texts: list[str] = files.metadata.get("texts", [""] * len(labels))
        return [{"truth": truth, "text": text} for truth, text in zip(labels, texts, strict=True)]
    urls = ["data:image/png;base64," + _base64(encode_png(image)) for image in files.images]
    return [{"truth": truth, "image": url} for truth, url in zip(labels, urls, strict=True)]


def _evenly_spaced(files: Sequence[Path], wanted: int) -> list[Path]:
    """As many of the files as wanted, evenly spaced, the last among them.

    >>> [path.name for path in _evenly_spaced([Path(str(i)) for i in range(1, 11)], 5)]
    ['2', '4', '6', '8', '10']
    """
    if wanted >= len(files):
        return list(files)
    return [files[round((index + 1) * len(files) / wanted) - 1] for index in range(wanted)]


def _run_data(files: _TrustFiles, max_rounds: int, samples: int) -> RunData:
    """A run's rounds, clients in the order of the classes they hold."""
    rounds = [RoundTrust.load(file) for file in _evenly_spaced(files.rounds, max_rounds)]
    held: dict[str, list[int]] = files.metadata["held"]
    clients = sorted(list(held)[:MAX_CLIENTS], key=lambda client: held[client])
    classes: list[str] = files.metadata["classes"]
    votes = [_client_rows(one, one.votes, clients, absent=len(classes)) for one in rounds]
    teachers = torch.stack([one.teacher.float() for one in rounds])
    top = teachers.topk(min(TOP_CLASSES, len(classes)), dim=2)
    labels = torch.tensor(files.metadata["labels"]).clamp_min(0)
    truth = teachers.gather(2, labels.expand(len(rounds), -1)[:, :, None])[:, :, 0]
    return {
        "name": files.name,
        "rounds": [one.round for one in rounds],
        "clients": clients,
        "of": len(held),
        "held": [held[client] for client in clients],
        "classes": classes,
        "weighed": all(one.weighed for one in rounds),
        "trust": _encode_fractions(torch.stack([_client_rows(one, one.trust, clients) for one in rounds])),
        "shares": _encode_fractions(torch.stack([_client_rows(one, one.shares, clients) for one in rounds])),
        "votes": _encode_classes(torch.stack(votes), len(classes)),
        "top": _encode_classes(top.indices, len(classes)),
        "chance": _encode_fractions(top.values),
        "truth": _encode_fractions(truth),
        "samples": samples,
    }


def _client_rows(one: RoundTrust, values: torch.Tensor, clients: Sequence[str], absent: float = 0) -> torch.Tensor:
    """The rows of these clients; a row of `absent` for a client that was not in the round."""
    place = {client: index for index, client in enumerate(one.clients)}
    missing = torch.full_like(values[0], absent)
    return torch.stack([values[place[client]] if client in place else missing for client in clients])


def _encode_fractions(values: torch.Tensor) -> str:
    """Fractions as bytes; a class without samples, recorded as -1, becomes 0."""
    return _base64((values.float() * 255).round().clamp(0, 255).to(torch.uint8).numpy().tobytes())


def _encode_classes(values: torch.Tensor, classes: int) -> str:
    """Classes as one byte each, or as two bytes, lower first, where there are more than 255."""
    return _base64(values.numpy().astype("<u1" if classes <= 255 else "<u2").tobytes())


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def encode_png(image: torch.Tensor) -> bytes:
    """Encode an image as a PNG file.

    Parameters
    ----------
    image : torch.Tensor
        Bytes, (1 or 3, height, width).

    Returns
    -------
    bytes
        The file.

    Examples
    --------
    >>> encode_png(torch.zeros(1, 2, 2, dtype=torch.uint8))[1:4]
    b'PNG'
    """
    channels, height, width = image.shape
    rows = image.permute(1, 2, 0).reshape(height, width * channels).numpy()
    body = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows), 9)
    head = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", body), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
