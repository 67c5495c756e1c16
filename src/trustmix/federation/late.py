"""Uploads that arrive after their round was closed (participation.late = "next"): their weight, and how they are kept.

An upload of round r that is used in round t has the age t - r and the weight 1 / (1 + age), as the weights of stale
updates in FedAsync (Xie et al. 2019) with the exponent 1. It is used only if its client has no newer one in the round.
"""

from collections.abc import Mapping

import torch

from trustmix.aggregation.base import StateDict
from trustmix.federation.messages import Reply

PREFIX = "late/"
"""The beginning of the names under which late uploads lie in the state of a server."""


def late_weight(age: int) -> float:
    """The weight of an upload, by its age in rounds.

    Parameters
    ----------
    age
        0 for an upload of the round itself.

    Returns
    -------
    float
        1 / (1 + age).

    Examples
    --------
    >>> [late_weight(age) for age in range(3)]
    [1.0, 0.5, 0.3333333333333333]
    """
    return 1 / (1 + age)


def upload_only(reply: Reply) -> Reply:
    """A late reply without its figures, which belong to a round that is recorded already.

    Parameters
    ----------
    reply
        The late reply.

    Returns
    -------
    Reply
        Its upload, and the privacy that it has cost.

    Examples
    --------
    >>> upload_only(Reply("north", 3, b"upload", accuracy=0.5, epsilon=1.0))
    Reply(client='north', round=3, payload=b'upload', accuracy=None, local_accuracy=None, seconds={}, epsilon=1.0, ...)
    """
    return Reply(reply.client, reply.round, reply.payload, epsilon=reply.epsilon, epsilon_round=reply.epsilon_round)


def pack_late(replies: Mapping[str, Reply]) -> dict[str, torch.Tensor]:
    """Late uploads as tensors, for the state of a server.

    Parameters
    ----------
    replies
        By client.

    Returns
    -------
    dict of str to torch.Tensor
        The bytes of each upload; the name has the round and the client.

    Examples
    --------
    >>> packed = pack_late({"north": Reply("north", 3, b"upload")})
    >>> list(packed), unpack_late(packed)["north"].payload
    (['late/3/north'], b'upload')
    """
    return {
        f"{PREFIX}{reply.round}/{client}": torch.frombuffer(bytearray(reply.payload), dtype=torch.uint8)
        for client, reply in replies.items()
        if reply.payload
    }


def unpack_late(state: StateDict) -> dict[str, Reply]:
    """The late uploads in the state of a server.

    Parameters
    ----------
    state
        The tensors of the state; others than those of `pack_late` are passed over.

    Returns
    -------
    dict of str to Reply
        By client.
    """
    found = {}
    for name, tensor in state.items():
        if name.startswith(PREFIX):
            round_, client = name.removeprefix(PREFIX).split("/", 1)
            found[client] = Reply(client, int(round_), tensor.numpy().tobytes())
    return found


def without_late(state: StateDict) -> StateDict:
    """The state of a server without late uploads: what its algorithm remembers.

    Parameters
    ----------
    state
        The tensors of the state.

    Returns
    -------
    dict of str to torch.Tensor
    """
    return {name: tensor for name, tensor in state.items() if not name.startswith(PREFIX)}
