"""Everything random has a name: one seed, and a separate stream for each use, derived by hashing its name.

No generator is carried from one use to the next, so a client more, a stage left out or a resumed run changes
nobody else's numbers, and there is no generator state to save.
"""

import hashlib
import secrets

import numpy as np
import torch


def derive_seed(seed: int, *name: object) -> int:
    """The 63-bit seed of the stream with this name.

    >>> derive_seed(0, "split", 3) == derive_seed(0, "split", 3)
    True
    >>> derive_seed(0, "split", 3) == derive_seed(0, "split", 4)
    False
    """
    text = "/".join([str(seed), *map(str, name)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def torch_generator(seed: int, *name: object) -> torch.Generator:
    """A torch generator at the start of the named stream."""
    return torch.Generator().manual_seed(derive_seed(seed, *name))


def numpy_generator(seed: int, *name: object) -> np.random.Generator:
    """A NumPy generator at the start of the named stream."""
    return np.random.default_rng(derive_seed(seed, *name))


STATE = slice(24, 24 + 8 * 624)
"""Where a torch generator's state has the 624 words of its Mersenne twister, 32 bits in 8 bytes each."""


def secure_generator() -> torch.Generator:
    """A torch generator that nobody can repeat: its whole state comes from the operating system.

    A seed would not do, since torch takes 32 bits of it, which can all be tried.

    >>> bool(torch.rand((), generator=secure_generator()) == torch.rand((), generator=secure_generator()))
    False
    """
    generator = torch.Generator().manual_seed(0)
    state = generator.get_state()
    state.numpy()[STATE].view(np.uint64)[:] = np.frombuffer(secrets.token_bytes(4 * 624), np.uint32)
    generator.set_state(state)
    return generator
