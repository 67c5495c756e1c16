"""The trust map and the sample browser of a page: what runs wrote down in trust/, as small as a page needs it.

Shares and probabilities become bytes (steps of 1/255). Where all rounds of all runs would be too much for a page,
rounds are left out evenly, and then runs.
"""

import base64
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trustmix import storage
from trustmix.callbacks.trust_log import TRUST_FORMAT, RoundTrust
from trustmix.errors import StorageError
from trustmix.experiment.tables import MeanStd
from trustmix.report.charts import Heatmap
from trustmix.report.load import Cell, Study

BUDGET = 5_000_000
"""Bytes that all of it may take in a page."""
CLIENTS = 100
"""At most so many clients are shown."""
TOP = 3
"""Classes of a teacher's label that are shown."""


@dataclass(frozen=True)
class _Told:
    """One run's files."""

    name: str
    rounds: Sequence[Path]
    facts: dict[str, Any]
    images: torch.Tensor | None

    @property
    def bytes_per_round(self) -> int:
        """About what a round takes in the page."""
        clients, classes = min(CLIENTS, len(self.facts["held"])), len(self.facts["classes"])
        samples, wide = len(self.facts["labels"]), 1 + (classes > 255)
        return 4 * (clients * classes + samples * (clients * (1 + wide) + TOP * (1 + wide) + 1)) // 3


def trusted(study: Study) -> dict[str, Any] | None:
    """What the page's script needs, of the first seed of every cell that has something to tell; None without any.

    The first run, which is shown first, is the best of the first task.
    """
    cells = sorted(study.cells, key=lambda cell: (study.tasks.index(cell.task), -(cell.best.mean or 0)))
    sets: list[list[dict[str, Any]]] = []
    kept: list[tuple[_Told, int]] = []
    left = BUDGET
    for cell in cells:
        told = _told(cell.runs[0].folder, _name(study, cell))
        samples = _samples(told) if told else []
        cost = (told.bytes_per_round if told else 0) + (0 if samples in sets else len(str(samples)))
        if told is None or cost > left:
            continue
        left -= cost
        if samples not in sets:
            sets.append(samples)
        kept.append((told, sets.index(samples)))
    if not kept:
        return None
    rounds = 1 + left // sum(told.bytes_per_round for told, _ in kept)
    runs = [{**_run(told, _evenly(told.rounds, rounds)), "samples": place} for told, place in kept]
    return {"samples": sets, "runs": runs}


def trust_maps(study: Study) -> list[tuple[int, Heatmap]]:
    """The trust map of every cell's last round, with the index of its task."""
    found = []
    for cell in study.cells:
        told = _told(cell.runs[0].folder, cell.method.name)
        if told:
            last, held = RoundTrust.load(told.rounds[-1]), told.facts["held"]
            clients = sorted(list(held)[:CLIENTS], key=lambda client: held[client], reverse=True)
            rows = _rows(last, clients, last.trust.float(), 0.0).clamp_min(0).tolist()
            figures = [[MeanStd(share, None, 1) for share in row] for row in rows]
            title = f"{told.name}, round {last.round}: mean share of trust, %"
            heat = Heatmap("trust", title, "class", "client", told.facts["classes"], clients, figures)
            found.append((study.tasks.index(cell.task), heat))
    return found


def _name(study: Study, cell: Cell) -> str:
    task = cell.task.name if len(study.tasks) > 1 else ""
    return ", ".join(part for part in (cell.method.name, task) if part)


def _told(folder: Path, name: str) -> _Told | None:
    place = folder / "trust"
    rounds = sorted(file for file in place.glob("*.safetensors") if file.stem.isdecimal())
    if not rounds or not (place / "samples.safetensors").is_file():
        return None
    tensors, record = storage.read_tensors(place / "samples.safetensors")
    facts = storage.validate_record(record, TRUST_FORMAT, str(place / "samples.safetensors"))
    if not {"classes", "labels", "held"} <= facts.keys():
        raise StorageError(f"{place / 'samples.safetensors'} does not describe public samples.")
    return _Told(name, rounds, facts, tensors.get("images"))


def _samples(told: _Told) -> list[dict[str, Any]]:
    """The shown samples: their truth, and an image or a text."""
    looks: list[dict[str, Any]] = (
        [{"text": text} for text in told.facts.get("texts", [""] * len(told.facts["labels"]))]
        if told.images is None
        else [{"image": "data:image/png;base64," + _base64(png(image))} for image in told.images]
    )
    return [{"truth": truth, **look} for truth, look in zip(told.facts["labels"], looks, strict=True)]


def _evenly(files: Sequence[Path], wanted: int) -> list[Path]:
    """So many of the files, evenly spaced, the last among them.

    >>> [path.name for path in _evenly([Path(str(i)) for i in range(1, 11)], 5)]
    ['2', '4', '6', '8', '10']
    """
    if wanted >= len(files):
        return list(files)
    return [files[round((index + 1) * len(files) / wanted) - 1] for index in range(wanted)]


def _run(told: _Told, files: Sequence[Path]) -> dict[str, Any]:
    """A run's rounds, clients in the order of the classes they hold."""
    rounds = [RoundTrust.load(file) for file in files]
    held: dict[str, list[int]] = told.facts["held"]
    clients = sorted(list(held)[:CLIENTS], key=lambda client: held[client])
    classes = told.facts["classes"]
    return {
        "name": told.name,
        "rounds": [one.round for one in rounds],
        "clients": clients,
        "of": len(held),
        "held": [held[client] for client in clients],
        "classes": classes,
        "weighed": all(one.weighed for one in rounds),
        "trust": _parts(torch.stack([_rows(one, clients, one.trust.float(), 0.0) for one in rounds])),
        "shares": _parts(torch.stack([_rows(one, clients, one.shares.float(), 0.0) for one in rounds])),
        "votes": _numbers(torch.stack([_rows(one, clients, one.votes, len(classes)) for one in rounds]), len(classes)),
        **_teachers([one.teacher.float() for one in rounds], torch.tensor(told.facts["labels"]), len(classes)),
    }


def _rows(one: RoundTrust, clients: Sequence[str], values: torch.Tensor, absent: float) -> torch.Tensor:
    """The rows of these clients, and a row of something else for those that were not in the round."""
    place = {client: index for index, client in enumerate(one.clients)}
    missing = torch.full_like(values[0], absent)
    return torch.stack([values[place[client]] if client in place else missing for client in clients])


def _teachers(teachers: Sequence[torch.Tensor], labels: torch.Tensor, classes: int) -> dict[str, str]:
    """The most probable classes, their probabilities, and the probability of the truth (0 where it is unknown)."""
    stacked = torch.stack(list(teachers))
    best = stacked.topk(min(TOP, classes), dim=2)
    truth = stacked.gather(2, labels.clamp_min(0).expand(len(stacked), -1)[:, :, None])[:, :, 0]
    return {"top": _numbers(best.indices, classes), "chance": _parts(best.values), "truth": _parts(truth)}


def _parts(values: torch.Tensor) -> str:
    """Parts of one as bytes; a class without samples, told as -1, is 0 here."""
    return _base64((values * 255).round().clamp(0, 255).to(torch.uint8).numpy().tobytes())


def _numbers(values: torch.Tensor, largest: int) -> str:
    """Classes as one byte each, or as two, lower first, where there are many."""
    array = values.numpy().astype("<u1" if largest <= 255 else "<u2")
    return _base64(array.tobytes())


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def png(image: torch.Tensor) -> bytes:
    """An image (1 or 3, h, w) of bytes as a PNG file.

    >>> png(torch.zeros(1, 2, 2, dtype=torch.uint8))[1:4]
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
