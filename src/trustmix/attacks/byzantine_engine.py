"""Clients that lie, for simulations: a part of them, drawn from the seed, sends something else than it should.

They do their steps honestly, see what the honest clients of the round say, and only then lie.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from trustmix.aggregation.base import Upload
from trustmix.attacks import MALFORMED_MESSAGES, POISONING_ATTACKS, AttackContext
from trustmix.errors import TrustmixError
from trustmix.federation.engine import Engine
from trustmix.federation.messages import Failure, Reply, Request
from trustmix.federation.public_set import Public
from trustmix.registry import did_you_mean
from trustmix.seeds import numpy_generator, torch_generator
from trustmix.wire import decode_upload, encode_upload

ATTACKS = (*POISONING_ATTACKS.names(), *MALFORMED_MESSAGES.names())
"""The kinds of attack there are."""


def validate_attack(kind: str) -> str:
    """The kind, if there is such an attack."""
    if kind not in ATTACKS:
        raise TrustmixError(
            f'There is no attack "{kind}".{did_you_mean(kind, ATTACKS)} There are: {", ".join(ATTACKS)}.'
        )
    return kind


@dataclass(frozen=True)
class ByzantineEngine:
    """Another engine, in which some clients lie."""

    engine: Engine
    public: Public
    kind: str
    share: float
    """Part of the clients that lie, rounded to the nearest number of them."""
    codec: str = "float32"
    """What their uploads are encoded with, as those of the honest."""
    seed: int = 0

    @property
    def clients(self) -> Sequence[str]:
        """The clients of the engine underneath."""
        return self.engine.clients

    @property
    def liars(self) -> set[str]:
        """Those who lie: with a larger share, the same ones and more."""
        order = numpy_generator(self.seed, "liars").permutation(len(self.clients))
        return {self.clients[index] for index in order[: round(self.share * len(self.clients))]}

    def close(self) -> None:
        """Close the engine underneath."""
        self.engine.close()

    def exchange(self, requests: Mapping[str, Request]) -> Iterator[Reply | Failure]:
        """The exchange with its lies. Honest answers come first, since the liars wait for them."""
        liars, waiting, honest = self.liars, [], list[Reply]()
        for answer in self.engine.exchange(requests):
            if isinstance(answer, Failure) or answer.payload is None:
                yield answer
            elif answer.client in liars:
                waiting.append(answer)
            else:
                honest.append(answer)
                yield answer
        said = [self._open(reply, requests[reply.client]) for reply in honest]
        for reply in waiting:
            own = self._open(reply, requests[reply.client])
            yield replace(reply, payload=self._lie(reply, own, said or [own], [one.payload or b"" for one in honest]))

    def _open(self, reply: Reply, request: Request) -> Upload:
        base = self.public.teacher(request.teacher, reply.round - 1) if request.teacher else None
        return decode_upload(reply.payload or b"", self.public.header(reply.client, reply.round), base)

    def _lie(self, reply: Reply, own: Upload, said: Sequence[Upload], messages: Sequence[bytes]) -> bytes:
        header = self.public.header(reply.client, reply.round)
        if self.kind in MALFORMED_MESSAGES.names():
            return MALFORMED_MESSAGES.get(self.kind)(own, messages, header)
        sight = AttackContext(own, said, torch_generator(self.seed, "lies", reply.client, reply.round))
        return encode_upload(POISONING_ATTACKS.get(self.kind)(sight), header, self.codec)
