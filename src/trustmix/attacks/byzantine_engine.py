"""An engine with Byzantine clients for simulations: a fraction of the clients, drawn from the seed, sends attacks.

Byzantine clients do their steps as honest clients do. They see the uploads of the honest clients of the round, and then
replace their own upload.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from trustmix.aggregation.upload import Upload
from trustmix.attacks import MALFORMED_MESSAGES, POISONING_ATTACKS, AttackContext
from trustmix.errors import TrustmixError
from trustmix.federation.engine import Engine
from trustmix.federation.messages import Failure, Reply, Request
from trustmix.federation.public_set import Public
from trustmix.registry import did_you_mean
from trustmix.seeds import numpy_generator, torch_generator
from trustmix.wire import decode_upload, encode_upload

ATTACKS = (*POISONING_ATTACKS.names(), *MALFORMED_MESSAGES.names())
"""The names of all attacks."""


def validate_attack(kind: str) -> str:
    """Check the name of an attack.

    Parameters
    ----------
    kind
        The name.

    Returns
    -------
    str
        The same name.

    Raises
    ------
    TrustmixError
        If no attack has the name.

    Examples
    --------
    >>> validate_attack("flip")
    'flip'
    """
    if kind not in ATTACKS:
        raise TrustmixError(
            f'There is no attack "{kind}".{did_you_mean(kind, ATTACKS)} There are: {", ".join(ATTACKS)}.'
        )
    return kind


@dataclass(frozen=True)
class ByzantineEngine:
    """An engine around another engine that replaces the uploads of some clients by attacks.

    Parameters
    ----------
    engine
        The engine that runs the clients.
    public
        The public set.
    kind
        The name of the attack, one of `ATTACKS`.
    share
        The fraction of Byzantine clients; their number is rounded to the nearest integer.
    sees
        What attackers know: "uploads", those of the honest clients of the round, or "teacher", the last teacher alone;
        in the first round, which has none, what the attackers themselves have learnt.
    codec
        The codec of the attackers' uploads, which is that of the honest clients.
    seed
        The seed of the choice of clients and of random attacks.

    Examples
    --------
    >>> import torch
    >>> class FiveClients:
    ...     clients = list("abcde")
    >>> engine = ByzantineEngine(FiveClients(), Public(torch.zeros(1, 2), 2), "flip", share=0.4)
    >>> len(engine.byzantine_clients)
    2
    """

    engine: Engine
    public: Public
    kind: str
    share: float
    sees: Literal["uploads", "teacher"] = "uploads"
    codec: str = "float32"
    seed: int = 0

    @property
    def clients(self) -> Sequence[str]:
        """The client ids of the wrapped engine."""
        return self.engine.clients

    @property
    def byzantine_clients(self) -> set[str]:
        """The ids of the Byzantine clients; a larger share keeps them and adds others."""
        order = numpy_generator(self.seed, "liars").permutation(len(self.clients))
        return {self.clients[index] for index in order[: round(self.share * len(self.clients))]}

    def close(self) -> None:
        """Close the wrapped engine."""
        self.engine.close()

    def exchange(self, requests: Mapping[str, Request]) -> Iterator[Reply | Failure]:
        """Run one exchange with attacks.

        Parameters
        ----------
        requests
            The request of each client, by client id.

        Yields
        ------
        Reply or Failure
            One answer for each request. The answers of Byzantine clients come last, since they depend on the others.
        """
        byzantine, waiting, honest = self.byzantine_clients, list[Reply](), list[Reply]()
        for answer in self.engine.exchange(requests):
            if isinstance(answer, Failure) or answer.payload is None:
                yield answer
            elif answer.client in byzantine:
                waiting.append(answer)
            else:
                honest.append(answer)
                yield answer
        own = [self._decode(reply, requests[reply.client]) for reply in waiting]
        seen = [self._decode(reply, requests[reply.client]) for reply in honest] if self.sees == "uploads" else []
        messages = [reply.payload or b"" for reply in honest]
        for reply, upload in zip(waiting, own, strict=True):
            known = seen or self._from_teacher(requests[reply.client], reply.round) or own
            yield replace(reply, payload=self._attack(reply, upload, known, messages, len(waiting)))

    def _from_teacher(self, request: Request, round_: int) -> list[Upload]:
        """The last teacher as the upload of a client that holds all classes, if that is what attackers see."""
        if self.sees == "uploads" or not request.teacher:
            return []
        return [Upload("teacher", self.public.teacher(request.teacher, round_ - 1).to(torch.float32))]

    def _decode(self, reply: Reply, request: Request) -> Upload:
        base = self.public.teacher(request.teacher, reply.round - 1) if request.teacher else None
        return decode_upload(reply.payload or b"", self.public.header(reply.client, reply.round), base)

    def _attack(
        self, reply: Reply, own: Upload, honest: Sequence[Upload], messages: Sequence[bytes], colluders: int
    ) -> bytes:
        """The message that a Byzantine client sends in place of its own upload."""
        header = self.public.header(reply.client, reply.round)
        if self.kind in MALFORMED_MESSAGES.names():
            return MALFORMED_MESSAGES.get(self.kind)(own, messages, header)
        generator = torch_generator(self.seed, "lies", reply.client, reply.round)
        context = AttackContext(own, honest, generator, colluders)
        return encode_upload(POISONING_ATTACKS.get(self.kind)(context), header, self.codec)
