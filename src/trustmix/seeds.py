"""Everything random has a name: one seed, and a separate stream for each use, derived by hashing its name.

No generator is carried from one use to the next, so a client more, a stage left out or a resumed run changes
nobody else's numbers, and there is no generator state to save.
"""

import hashlib

import numpy as np
import torch


def stream(seed: int, *name: object) -> int:
    """The 63-bit seed of the stream with this name.

    >>> stream(0, "split", 3) == stream(0, "split", 3)
    True
    >>> stream(0, "split", 3) == stream(0, "split", 4)
    False
    """
    text = "/".join([str(seed), *map(str, name)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def torch_stream(seed: int, *name: object) -> torch.Generator:
    """A torch generator at the start of the named stream."""
    return torch.Generator().manual_seed(stream(seed, *name))


def numpy_stream(seed: int, *name: object) -> np.random.Generator:
    """A NumPy generator at the start of the named stream."""
    return np.random.default_rng(stream(seed, *name))
