"""The run's connection to its nodes: Flower's grid with limits on what one node can cost the server.

Flower announces a reply first, as a tree of objects, and delivers its objects one by one. Flower's own grid waits for
hours for objects that never come, and takes objects of any size. This one takes what has arrived and returns, so the
round's deadline holds, and it refuses a reply as soon as it is larger than a reply of the run can be.
"""

import json
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx
from flwr.app import Message

from trustmix.errors import TrustmixError
from trustmix.transport.flower_internals import (
    Array,
    ConfirmMessageReceivedRequest,
    Error,
    ErrorCode,
    HttpGrid,
    NodeInfo,
    ObjectTree,
    ProtoMessage,
    PullAppMessagesRequest,
    PullObjectRequest,
    RetryInvoker,
    constant,
    get_object_body,
    get_object_head_values_from_object_content,
    inflate_object_from_contents,
    iterate_object_tree,
    make_message,
    metadata_from_proto,
)

log = logging.getLogger(__name__)

MAX_REPLY_BYTES = 2**30
"""The largest reply of a run that sets no limit of its own."""
MIN_CHUNK_BYTES = 2**20
"""The size of the smallest chunk into which a large payload is cut; Flower's chunks have five megabytes."""
FURTHER_OBJECTS = 16
"""Objects of a reply that are not chunks of its payload; Flower makes six."""


class SuperLinkUnavailable(ConnectionError):  # noqa: N818 - it is what happened
    """The SuperLink does not answer any more, or does not know the run any more."""


@dataclass
class _IncomingReply:
    """A reply that was announced, and those of its objects that have arrived."""

    header: ProtoMessage
    missing: list[str]
    contents: dict[str, bytes] = field(default_factory=dict)
    size: int = 0

    @property
    def has_expired(self) -> bool:
        """Whether the request that it answers is void."""
        return self.header.metadata.created_at + self.header.metadata.ttl < time.time()

    def as_error(self, reason: str) -> Message:
        """A reply without content, with the reason why."""
        error = Error(code=ErrorCode.MESSAGE_UNAVAILABLE, reason=reason)
        return make_message(metadata=metadata_from_proto(self.header.metadata), error=error)


class RunGrid(HttpGrid):
    """The connection of a run. A SuperLink that does not answer raises `SuperLinkUnavailable`.

    Parameters
    ----------
    address : str
        The SuperLink's address, HOST:PORT.
    ca_certificate : bytes, optional
        The certificate that signed the SuperLink's; without it there is no TLS.
    token : str
        The token of the run's task.
    max_reply_bytes : int
        The largest reply that is taken.
    """

    def __init__(
        self, address: str, ca_certificate: bytes | None, token: str, max_reply_bytes: int = MAX_REPLY_BYTES
    ) -> None:
        super().__init__(address, ca_certificate is None, ca_certificate, token=token)
        self.max_reply_bytes = max_reply_bytes
        self._incoming: dict[str, _IncomingReply] = {}
        # only failed connections are retried: a request that was sent may have taken replies, which come once
        self._retry_invoker = RetryInvoker(lambda: constant(0.5), httpx.ConnectError, max_tries=4, max_time=60)

    def get_nodes(self) -> Iterable[NodeInfo]:
        """The connected nodes."""
        with superlink_errors():
            return super().get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; their message ids."""
        with superlink_errors():
            return super().push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Fetch the replies that are complete, without waiting for the others.

        Parameters
        ----------
        message_ids : iterable of str
            The ids of requests. A reply to any other request that was announced before is given up.

        Returns
        -------
        list of Message
            A reply that is too large, damaged or not complete in time has an error instead of content.
        """
        asked = set(message_ids)
        with superlink_errors():
            for message_id in [key for key in self._incoming if key not in asked]:
                self._confirm(self._incoming.pop(message_id))
            announced = asked - set(self._incoming)
            if announced:
                self._pull_announcements(announced)
            found = {key: self._receive(reply) for key, reply in self._incoming.items()}
        complete = {key: message for key, message in found.items() if message is not None}
        for key in complete:
            del self._incoming[key]
        return list(complete.values())

    def _pull_announcements(self, message_ids: set[str]) -> None:
        """Ask which of these requests have a reply."""
        response = self._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=sorted(message_ids)))
        for header, tree in zip(response.messages_list, response.message_object_trees, strict=True):
            if header.metadata.reply_to_message_id in message_ids:
                reply = _IncomingReply(header, _object_ids(tree))
                self._incoming[header.metadata.reply_to_message_id] = reply

    def _receive(self, reply: _IncomingReply) -> Message | None:
        """The reply, if it is complete; one that cannot become a valid reply has an error."""
        try:
            if len(reply.missing) > FURTHER_OBJECTS + self.max_reply_bytes // MIN_CHUNK_BYTES:
                raise TrustmixError(f"it has {len(reply.missing)} parts, more than a reply of this run can have")
            self._pull_objects(reply)
            if reply.missing and not reply.has_expired:
                return None
            if reply.missing:
                raise TrustmixError("it was announced but not sent in time")
            message = _inflate(reply, self.max_reply_bytes)
        except TrustmixError as error:
            message = reply.as_error(f"the reply is refused: {error}")
        self._confirm(reply)
        return message

    def _pull_objects(self, reply: _IncomingReply) -> None:
        """Take the objects that have arrived, up to the first that has not."""
        while reply.missing:
            run_id, object_id = reply.header.metadata.run_id, reply.missing[0]
            request = PullObjectRequest(node=self.node, run_id=run_id, object_id=object_id)
            response = self._runtime_client.PullObject(request)
            if not response.object_found:
                raise TrustmixError("a part of it was withdrawn")
            if not response.object_available:
                return
            reply.size += len(response.object_content)
            if reply.size > self.max_reply_bytes:
                raise TrustmixError(
                    f"it is larger than {self.max_reply_bytes / 1e6:.1f} MB, which no reply of this run is"
                )
            reply.contents[object_id] = response.object_content
            del reply.missing[0]

    def _confirm(self, reply: _IncomingReply) -> None:
        """Let the SuperLink forget a reply."""
        metadata = reply.header.metadata
        self._runtime_client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=self.node, run_id=metadata.run_id, message_object_id=metadata.message_id)
        )


@contextmanager
def superlink_errors() -> Iterator[None]:
    """Raise errors of HTTP as `SuperLinkUnavailable`."""
    try:
        yield
    except httpx.HTTPError as error:
        raise SuperLinkUnavailable(f"the SuperLink does not answer ({error})") from error


def _object_ids(tree: ObjectTree) -> list[str]:
    """The ids of all objects of a tree, each once."""
    return list(dict.fromkeys(node.object_id for node in iterate_object_tree(tree)))


def _inflate(reply: _IncomingReply, limit: int) -> Message:
    """The message of a reply; its metadata are those that the SuperLink has checked, not those of the object."""
    try:
        if _unfolded_size(reply.contents) > limit:
            raise TrustmixError(f"it unfolds to more than {limit / 1e6:.1f} MB")
        found = inflate_object_from_contents(reply.header.metadata.message_id, reply.contents)
        if not isinstance(found, Message):
            raise TrustmixError("it is no message")
        metadata = metadata_from_proto(reply.header.metadata)
        if found.has_error():
            return make_message(metadata=metadata, error=found.error)
        return make_message(metadata=metadata, content=found.content)
    except TrustmixError:
        raise
    except Exception as error:  # the objects come from an attacker, and Flower's readers raise errors of many kinds
        log.debug("a reply is damaged", exc_info=True)
        raise TrustmixError(f"it is damaged ({type(error).__name__})") from error


def _unfolded_size(contents: Mapping[str, bytes]) -> int:
    """The bytes of all arrays; an array can name the same chunk many times."""
    size = 0
    for content in contents.values():
        kind, children, _ = get_object_head_values_from_object_content(content)
        if kind == Array.__qualname__:
            chunks = json.loads(get_object_body(content, Array))["arraychunk_ids"]
            size += sum(len(contents[children[index]]) for index in chunks)
    return size
