"""Where rules that look at uploads more than once keep them: in memory while they are few, then in a file on disk.

A `Spool` holds columns of numbers, (N, K) of each upload, and reads them again by samples (all uploads, a few rows) or
by uploads (all rows, a few columns). An `UploadSpool` holds whole uploads. The file has no name: it is in the
directory for temporary files (TMPDIR), and the operating system removes it when the process ends, however it ends.
"""

import tempfile
import weakref
from collections.abc import Iterator
from io import FileIO

import numpy as np
import torch

from trustmix.aggregation.upload import Upload
from trustmix.arrays import ArraySpec
from trustmix.errors import StorageError, TrustmixError

CHUNK = 2**22
"""Bytes of columns that stay in memory; what is more goes to disk in chunks of this size, or of one upload."""


class Spool:
    """Columns of numbers, one row a sample, all of one type.

    Parameters
    ----------
    dtype
        The type.

    >>> spool = Spool(torch.float32)
    >>> spool.append(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    >>> spool.append(torch.tensor([[5.0], [6.0]]))
    >>> spool.rows(1, 2).tolist()
    [[3.0, 4.0, 6.0]]
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.width = 0
        """The number of columns."""
        self.samples = 0
        """The number of rows."""
        self._file: FileIO | None = None
        self._written: list[tuple[int, int]] = []
        self._buffer = torch.empty(0, 0, dtype=dtype)
        self._used = 0

    def append(self, columns: torch.Tensor) -> None:
        """Add columns (N, K), which are copied.

        Raises
        ------
        StorageError
            If the disk is full.
        """
        columns, (self.samples, width) = columns.to(self.dtype), columns.shape
        if self._used + width > self._buffer.shape[1]:
            self._flush()
        if 2 * columns.numel() * self.dtype.itemsize >= CHUNK:
            self._flush()  # columns stay in their order
            self._write(columns.contiguous(), width)
        elif width:
            if self._used + width > self._buffer.shape[1]:  # of a fixed size: memory is that of many uploads at once
                room = CHUNK // (self.samples * self.dtype.itemsize)
                self._buffer = torch.empty(self.samples, room, dtype=self.dtype)
            self._buffer[:, self._used : self._used + width] = columns
            self._used += width
        self.width += width

    def rows(self, start: int, stop: int) -> torch.Tensor:
        """The rows from start to stop of all columns, (stop - start, width)."""
        found, size = torch.empty(stop - start, self.width, dtype=self.dtype), self.dtype.itemsize
        if self.width == 0:
            return found
        into, first = found.view(torch.uint8).numpy(), 0
        for file, width, used, offset in self._places():
            part = np.empty((stop - start, width * size), np.uint8)
            _read(file, offset + start * width * size, part.data)
            into[:, first : first + used * size] = part[:, : used * size]
            first += used * size
        if self._used:
            found[:, -self._used :] = self._buffer[start:stop, : self._used]
        return found

    def chunks(self, start: int = 0, stop: int | None = None) -> Iterator[torch.Tensor]:
        """Copies of the rows from start to stop, some columns at a time, in their order; an `append` stays together."""
        stop = self.samples if stop is None else min(stop, self.samples)
        for place in self._places():
            yield self._chunk(start, stop, *place)
        if self._used:
            yield self._buffer[start:stop, : self._used].clone()

    def _chunk(self, start: int, stop: int, file: FileIO, width: int, used: int, offset: int) -> torch.Tensor:
        found = torch.empty(stop - start, width, dtype=self.dtype)
        _read(file, offset + start * width * self.dtype.itemsize, found.view(torch.uint8).numpy().data)
        return found[:, :used]

    def clear(self) -> None:
        """Forget all columns, and give the disk back."""
        if self._file is not None:
            self._file.close()
        self.width = self._used = 0
        self._file, self._written, self._buffer = None, [], torch.empty(0, 0, dtype=self.dtype)

    def _flush(self) -> None:
        if self._used:
            self._write(self._buffer, self._used)
            self._used = 0

    def _write(self, chunk: torch.Tensor, used: int) -> None:
        """Write a chunk (N, width), of which some columns are used."""
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - open until the round is over
                weakref.finalize(self, self._file.close)
            self._file.seek(0, 2)
            left = chunk.view(torch.uint8).numpy().data.cast("B")
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            raise StorageError(
                f"The uploads of this round do not fit in {tempfile.gettempdir()} ({error.strerror}); free space "
                "there, or set TMPDIR to a directory with more. The round is not kept and can be repeated."
            ) from error
        self._written.append((chunk.shape[1], used))

    def _places(self) -> Iterator[tuple[FileIO, int, int, int]]:
        """The file, and of each chunk in it the width, how many columns are used, and where it begins."""
        offset = 0
        for width, used in self._written:
            if self._file is not None:
                yield self._file, width, used, offset
            offset += width * self.samples * self.dtype.itemsize


def _read(file: FileIO, offset: int, into: memoryview) -> None:
    """Fill an array from a place in a file."""
    file.seek(offset)
    left = into.cast("B")
    while left:
        done = file.readinto(left)
        if not done:
            raise StorageError(f"The uploads of this round in {tempfile.gettempdir()} are cut off.")
        left = left[done:]


class UploadSpool:
    """The uploads of a round, one of each client, in the order of arrival.

    >>> spool = UploadSpool()
    >>> spool.append(Upload.from_arrays("north", [[0.9, 0.1]], [2.0]))
    >>> [(upload.client, upload.scores.tolist()) for upload in spool]
    [('north', [2.0])]
    """

    def __init__(self) -> None:
        self.clients: dict[str, ArraySpec] = {}
        """By client, the kind of array that its predictions were given as."""
        self.class_counts: list[torch.Tensor | None] = []
        self._weights: list[float] = []
        self._scored: list[bool] = []
        self._predictions: list[Spool] = []
        self._scores = Spool(torch.float64)
        self._classes = 1

    def __len__(self) -> int:
        return len(self.clients)

    def __iter__(self) -> Iterator[Upload]:
        scores = self.scores()
        parts = zip(self.clients.items(), self.predictions(), self.class_counts, self._weights, strict=True)
        for ((client, spec), q, counts, weight), scored in zip(parts, self._scored, strict=True):
            yield Upload(client, q, next(scores) if scored else None, counts, weight, spec)

    @property
    def scored(self) -> bool:
        """Whether every client has scores."""
        return bool(self._scored) and all(self._scored)

    def predictions(self) -> Iterator[torch.Tensor]:
        """The predictions (N, C) of each client."""
        for spool in self._predictions:
            for chunk in spool.chunks():
                yield from (
                    chunk[:, i : i + self._classes].contiguous() for i in range(0, chunk.shape[1], self._classes)
                )

    def scores(self) -> Iterator[torch.Tensor]:
        """The scores (N,) of each client that has some."""
        for chunk in self._scores.chunks():
            yield from chunk.t().contiguous()

    def validate(self, upload: Upload) -> None:
        """Refuse a client's second upload of a round."""
        if upload.client in self.clients:
            raise TrustmixError(f"client {upload.client}: a client has one upload a round, and this is its second.")

    def append(self, upload: Upload) -> None:
        """Add a copy of an upload.

        Raises
        ------
        StorageError
            If the disk is full.
        """
        if not self._predictions or self._predictions[-1].dtype != upload.predictions.dtype:
            self._predictions.append(Spool(upload.predictions.dtype))
        self._classes = upload.predictions.shape[1]
        self._predictions[-1].append(upload.predictions)
        if upload.scores is not None:
            self._scores.append(upload.scores.unsqueeze(1))
        self.clients[upload.client] = upload.spec
        self.class_counts.append(None if upload.class_counts is None else upload.class_counts.clone())
        self._weights.append(upload.weight)
        self._scored.append(upload.scores is not None)

    def clear(self) -> None:
        """Forget all uploads, and give the disk back."""
        for spool in [*self._predictions, self._scores]:
            spool.clear()
        self.clients, self.class_counts, self._weights, self._scored, self._predictions = {}, [], [], [], []
