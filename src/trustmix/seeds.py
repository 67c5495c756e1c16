"""Random streams by name: one seed per run, and a separate stream for each use, derived by hashing its name.

No generator is carried from one use to the next. So another client, a skipped stage or a resumed run does not change
the numbers of other clients and stages, and there is no generator state to save.
"""

import hashlib
import secrets

import numpy as np
import torch


def derive_seed(seed: int, *name: object) -> int:
    """Derive the seed of a named stream.

    Parameters
    ----------
    seed
        The seed of the run.
    *name
        The parts of the stream's name, such as "split" and a client's number.

    Returns
    -------
    int
        63 bits of a hash of seed and name.

    Examples
    --------
    >>> derive_seed(0, "split", 3) == derive_seed(0, "split", 3)
    True
    >>> derive_seed(0, "split", 3) == derive_seed(0, "split", 4)
    False
    """
    text = "/".join([str(seed), *map(str, name)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def torch_generator(seed: int, *name: object) -> torch.Generator:
    """Create a torch generator at the start of a named stream.

    Parameters
    ----------
    seed, *name
        As in `derive_seed`.

    Returns
    -------
    torch.Generator
        On the CPU.
    """
    return torch.Generator().manual_seed(derive_seed(seed, *name))


def numpy_generator(seed: int, *name: object) -> np.random.Generator:
    """Create a NumPy generator at the start of a named stream.

    Parameters
    ----------
    seed, *name
        As in `derive_seed`.

    Returns
    -------
    numpy.random.Generator
        The generator.
    """
    return np.random.default_rng(derive_seed(seed, *name))


STATE = slice(24, 24 + 8 * 624)
"""The bytes of a torch generator's state with the 624 words of its Mersenne twister, 32 bits in 8 bytes each."""


def secure_generator() -> torch.Generator:
    """Create a torch generator that cannot be repeated: its whole state comes from the operating system.

    A random seed would not be enough, since torch uses 32 bits of it, and an attacker can try them all.

    Returns
    -------
    torch.Generator
        On the CPU.

    Examples
    --------
    >>> bool(torch.rand((), generator=secure_generator()) == torch.rand((), generator=secure_generator()))
    False
    """
    generator = torch.Generator().manual_seed(0)
    state = generator.get_state()
    state.numpy()[STATE].view(np.uint64)[:] = np.frombuffer(secrets.token_bytes(4 * 624), np.uint32)
    generator.set_state(state)
    return generator
