"""What the proxy knows of a node's request before the SuperLink sees it: whose key signed it, and what it announces.

Flower's nodes sign the time with their key and send key, time and signature as headers, so a request can be
authenticated before a byte of its body is read.
"""

import binascii
import datetime
from base64 import b64decode
from collections.abc import Iterator, Mapping

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from google.protobuf.message import DecodeError

from trustmix.errors import TrustmixError
from trustmix.transport.flower_internals import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    SYSTEM_TIME_TOLERANCE,
    TIMESTAMP_HEADER,
    TIMESTAMP_TOLERANCE,
    ObjectTree,
    PushMessagesRequest,
    public_key_to_bytes,
    verify_signature,
)

UNKNOWN_KEY = 406
"""The status of HTTP for a request without a registered key; Flower's nodes give 401 and 403 other meanings."""
MAX_TREE_DEPTH = 8
"""Levels of the objects of a message; Flower's messages have five."""


class NodeAuthenticator:
    """Knows the nodes' public keys.

    Parameters
    ----------
    public_keys : mapping of str to bytes
        The public key of each node in OpenSSH's format, by the node's id.

    Raises
    ------
    TrustmixError
        If a key is of another kind than `trustmix keys` makes.
    """

    def __init__(self, public_keys: Mapping[str, bytes]) -> None:
        self._nodes: dict[bytes, tuple[str, EllipticCurvePublicKey]] = {}
        for name, text in public_keys.items():
            key = parse_public_key(name, text)
            self._nodes[public_key_to_bytes(key)] = name, key

    def knows_key(self, headers: Mapping[str, str]) -> bool:
        """Whether a request names a registered key; this does not authenticate it.

        Parameters
        ----------
        headers : mapping of str to str
            The headers of the request.

        Returns
        -------
        bool
        """
        try:
            return b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True) in self._nodes
        except (KeyError, ValueError):
            return False

    def authenticate(self, headers: Mapping[str, str]) -> str | None:
        """The node that signed a request.

        Parameters
        ----------
        headers : mapping of str to str
            The headers of the request.

        Returns
        -------
        str or None
            The node's id, or None if no registered key has signed the request within the last minutes.
        """
        try:
            public_key = b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
            signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER], validate=True)
            timestamp = headers[TIMESTAMP_HEADER]
            name, key = self._nodes[public_key]
            age = (datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(timestamp)).total_seconds()
            is_recent = -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
            return name if is_recent and verify_signature(key, timestamp.encode("ascii"), signature) else None
        except (KeyError, ValueError, TypeError, OverflowError, binascii.Error):
            return None


def parse_public_key(name: str, text: bytes) -> EllipticCurvePublicKey:
    """Read a node's public key.

    Parameters
    ----------
    name : str
        The node's id, for the error message.
    text : bytes
        The key in OpenSSH's format.

    Returns
    -------
    EllipticCurvePublicKey

    Raises
    ------
    TrustmixError
        If it is of another kind than `trustmix keys` makes.
    """
    try:
        key = load_ssh_public_key(text)
    except ValueError as error:
        raise TrustmixError(f"The public key of node {name} cannot be read ({error}).") from error
    if not isinstance(key, EllipticCurvePublicKey):
        raise TrustmixError(f"The public key of node {name} is of another kind than `trustmix keys` makes.")
    return key


def sends_own_messages(body: bytes) -> bool:
    """Whether a node pushes messages of its own, each with a plain tree of objects.

    The SuperLink authenticates the node but not the source of its messages. It unfolds trees in which an object occurs
    twice, and a short tree can unfold to one without end.

    Parameters
    ----------
    body : bytes
        The body of a request `push-messages`.

    Returns
    -------
    bool
        False too if the body is not such a request.
    """
    request = PushMessagesRequest()
    try:
        request.ParseFromString(body)
    except DecodeError:
        return False
    own = all(message.metadata.src_node_id == request.node.node_id for message in request.messages_list)
    objects = [found for tree in request.message_object_trees for found in _walk(tree)]
    is_plain = all(depth < MAX_TREE_DEPTH for _, depth in objects) and len({key for key, _ in objects}) == len(objects)
    return own and is_plain


def _walk(tree: ObjectTree, depth: int = 0) -> Iterator[tuple[str, int]]:
    """Every object of a tree and its depth; objects below the deepest level are not visited."""
    yield tree.object_id, depth
    if depth < MAX_TREE_DEPTH:
        for child in tree.children:
            yield from _walk(child, depth + 1)
