"""The server of Algorithm 1: ask, fold the uploads into a teacher as they arrive, send it with the next request.

R rounds take R + 1 exchanges: what a teacher made of the clients is told in their next answer, and the closing
exchange, which goes to every client, only distils and evaluates.
"""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean
from typing import Any

import torch

from trustmix.aggregation.guard import Guard, GuardedAggregator
from trustmix.aggregation.rules import AggregatorFactory, Lasting, Memory, rule_of
from trustmix.callbacks.trust_log import ClientTrust, TrustRecorder
from trustmix.density.gaussians import roc_auc
from trustmix.errors import TrustmixError
from trustmix.federation.callbacks import ProgressCallback, ProgressEvent, ignore
from trustmix.federation.checkpoint import Checkpoint, ServerState
from trustmix.federation.client import Client, Public
from trustmix.federation.engine import ENGINES, Engine
from trustmix.federation.history import History, Round
from trustmix.federation.messages import Failure, Reply, Request
from trustmix.federation.reply_validation import LONGEST_NAME, rejection_reason, sanitize_reply, to_valid_utf8
from trustmix.metrics import ClassificationMetrics
from trustmix.seeds import numpy_generator
from trustmix.wire import decode_upload, encode_teacher, predictions_bytes

LOCAL_ONLY = "alone"
"""The method in which clients train on their own data and exchange nothing."""
CENTRALIZED = "reference"
"""The method with one client that holds as much as a client and the public set together, of all classes, labelled."""

GUARD = Guard()
"""The guard of those who ask for none in particular."""


@dataclass(frozen=True)
class Participation:
    """Who is asked in a round, how long the server waits, and how many must answer."""

    fraction: float = 1.0
    """Part of the clients asked each round, drawn from the seed."""
    quorum: float = 0.5
    """Part of the asked clients whose uploads must arrive; with fewer the run stops, and can be resumed."""
    deadline: float | None = None
    """Seconds a client's step may take; a later answer is left out of the round."""


@dataclass
class RoundReplies:
    """What came back in one exchange."""

    replies: dict[str, Reply] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    """Bytes of every upload that arrived, those refused included."""
    seconds: dict[str, float] = field(default_factory=dict)
    separations: list[float] = field(default_factory=list)
    again: dict[str, int] = field(default_factory=dict)
    """Answers beyond the first, by client."""
    seen: dict[str, ClientTrust] = field(default_factory=dict)
    """What the witness keeps of uploads."""


class Federation:
    """Clients, a public set and a rule.

    `rule` is a rule's name, a tau, or "alone"; `public_labels` (-1 unknown) only measure the teacher, and with `held`,
    the classes each client holds, how well its density tells them from the others. `student`, a client without private
    data that is never asked for predictions, distils every teacher: one model in the end, for those who want one.
    `guard` bounds what one client can do; with None, uploads are mixed as they are.
    `witness` writes down who was trusted for what.

    >>> import trustmix as tm
    >>> def model(): return torch.nn.Linear(4, 2)
    >>> x, y = torch.rand(20, 4), torch.arange(20) % 2
    >>> public = tm.Public(torch.rand(8, 4), classes=2)
    >>> clients = [tm.Client.from_arrays(name, model, x, y, public=public) for name in ("north", "south")]
    >>> history = tm.Federation(clients=clients, public=public, rule="suwa").run(rounds=2)
    >>> [line.participants for line in history.rounds]
    [['north', 'south'], ['north', 'south']]
    """

    def __init__(
        self,
        *,
        clients: Sequence[Client] | Engine,
        public: Public,
        rule: str | float = "suwa",
        public_labels: torch.Tensor | None = None,
        held: Mapping[str, torch.Tensor] | None = None,
        participation: Participation | None = None,
        student: Client | None = None,
        guard: Guard | None = GUARD,
        witness: TrustRecorder | None = None,
        codec: str = "float32",
        seed: int = 0,
    ) -> None:
        self.engine: Engine = ENGINES.get("local")(clients).engine if isinstance(clients, Sequence) else clients
        self.public = public
        self.method = rule if isinstance(rule, str) else f"tau={rule:g}"
        self.rule: AggregatorFactory | None = None if rule in (LOCAL_ONLY, CENTRALIZED) else rule_of(rule)
        self.public_labels = public_labels
        self.held = held or {}
        self.participation = participation or Participation()
        self.student = student
        self.guard = guard
        self.witness = witness
        self.codec = codec
        self.seed = seed

    def run(
        self, rounds: int, *, checkpoint: Checkpoint | None = None, watch: ProgressCallback | None = None
    ) -> History:
        """All rounds (from the checkpoint's last commit on, if there is one)."""
        return History(list(self.play(rounds, checkpoint=checkpoint, watch=watch)))

    def play(
        self, rounds: int, *, checkpoint: Checkpoint | None = None, watch: ProgressCallback | None = None
    ) -> Iterator[Round]:
        """Yield each round when its accuracy is known. The round is committed when the next one is asked for.

        So whoever consumes the rounds has written them down before they count as done; after a crash the last one may
        be told again, never skipped.
        """
        progress = checkpoint.load() if checkpoint else ServerState()
        if progress.exchange == 0:
            progress = ServerState(teacher=self._opening())
        accuracy = None
        for number in range(progress.exchange + 1, rounds + 2):
            closing = number > rounds
            asked = self.engine.clients if closing else self._sample(number)
            mixer = None if closing else self._mixer(progress.teacher, progress.memory)
            request = Request(number, progress.teacher, train=not closing, upload=mixer is not None)
            moment = ProgressEvent(
                min(number, rounds), rounds, "closing" if closing else "clients", 0, len(asked), accuracy
            )
            result = self._exchange(request, asked, mixer, moment, watch or ignore)
            self._check_quorum(number, asked, result)
            if progress.pending is not None:
                line = self._complete(Round(**progress.pending), result, progress.teacher, asked, closing)
                accuracy = line.accuracy_mean
                yield line
            teacher, pending = (None, None) if closing else self._close(number, result, mixer)
            progress = ServerState(number, teacher, pending, mixer.memory() if isinstance(mixer, Lasting) else {})
            if checkpoint:
                checkpoint.commit(progress)

    def _opening(self) -> bytes | None:
        """What the first request carries."""
        return None

    def _mixer(self, last: bytes | None, memory: Memory) -> Any:  # noqa: ARG002 - some go on from the last message
        """What folds the uploads of a round; None where nothing is exchanged."""
        if self.rule is None:
            return None
        mixer = self.rule() if self.guard is None else GuardedAggregator(self.rule, self.guard)
        if isinstance(mixer, Lasting):
            mixer.recall(memory)
        return mixer

    def _sample(self, number: int) -> Sequence[str]:
        """The clients of a round, in their fixed order."""
        everybody = self.engine.clients
        size = max(1, round(self.participation.fraction * len(everybody)))
        chosen = set(numpy_generator(self.seed, "participants", number).permutation(len(everybody))[:size].tolist())
        return [client for index, client in enumerate(everybody) if index in chosen]

    def _exchange(
        self, request: Request, asked: Sequence[str], mixer: Any, moment: ProgressEvent, watch: ProgressCallback
    ) -> RoundReplies:
        """Ask, and fold each upload as it arrives; whatever is wrong with an answer leaves that client out."""
        result = RoundReplies()
        watch(moment)
        for done, answer in enumerate(self.engine.exchange(dict.fromkeys(asked, request)), 1):
            watch(replace(moment, done=min(done, len(asked))))
            if answer.client in result.replies or answer.client in result.failed:
                result.again[answer.client] = result.again.get(answer.client, 0) + 1
                continue
            reason = (
                answer.reason if isinstance(answer, Failure) else self._receive(answer, request, asked, mixer, result)
            )
            if reason is not None:
                result.failed[to_valid_utf8(answer.client[:LONGEST_NAME])] = to_valid_utf8(reason)
        return result

    def _receive(
        self, answer: Reply, request: Request, asked: Sequence[str], mixer: Any, result: RoundReplies
    ) -> str | None:
        """Take one answer in, or say why not."""
        reason = rejection_reason(answer, request.round, asked)
        if reason is not None:
            return reason
        answer = sanitize_reply(answer)
        if answer.payload is not None:
            result.sent[answer.client] = len(answer.payload)
        for stage, seconds in answer.seconds.items():
            result.seconds[stage] = result.seconds.get(stage, 0.0) + seconds
        reason = self._fold(answer, mixer, request.teacher, result) if request.train else None
        if reason is None:
            result.replies[answer.client] = answer
        return reason

    def _fold(self, reply: Reply, mixer: Any, last: bytes | None, result: RoundReplies) -> str | None:
        """Take one upload in, or say why not."""
        took = sum(reply.seconds.values())
        if self.participation.deadline is not None and took > self.participation.deadline:
            return f"answered after {took:.1f} s, the deadline is {self.participation.deadline:g} s"
        if mixer is None:
            return None
        begin = time.perf_counter()
        try:
            self._take(reply, mixer, last, result)
        except TrustmixError as error:
            return f"upload refused: {error}"
        finally:
            result.seconds["mix"] = result.seconds.get("mix", 0.0) + time.perf_counter() - begin
        return None

    def _take(self, reply: Reply, mixer: Any, last: bytes | None, result: RoundReplies) -> None:
        """Fold the upload of a reply, which may be a difference to the last message, or refuse it by an error."""
        base = self.public.teacher(last, reply.round - 1) if last else None
        upload = decode_upload(reply.payload or b"", self.public.envelope(reply.client, reply.round), base)
        told = {"classes": upload.classes, "ranks": upload.ranks, "name": f"{CLIENT}{reply.client}"}
        mixer.add(upload.predictions, upload.scores, **told)
        result.separations += self._separation(reply.client, upload.scores)
        if self.witness is not None:
            result.seen[reply.client] = self.witness.sight(upload, mixer)

    def _separation(self, client: str, scores: torch.Tensor) -> list[float]:
        """How well a client's scores tell its own classes, as a list of one, or of none where it cannot be known."""
        if self.public_labels is None or client not in self.held:
            return []
        known = self.public_labels >= 0
        own = torch.isin(self.public_labels[known], self.held[client])
        return [roc_auc(scores[known], own)] if 0 < int(own.sum()) < len(own) else []

    def _check_quorum(self, number: int, asked: Sequence[str], result: RoundReplies) -> None:
        needed = max(1, math.ceil(self.participation.quorum * len(asked)))
        if len(result.replies) < needed:
            client, reason = next(iter(result.failed.items()))
            raise TrustmixError(
                f"Round {number}: {len(result.replies)} of {len(asked)} clients answered, the quorum is {needed}; "
                f"client {client}: {reason}. Nothing of this round is kept."
            )

    def _close(self, number: int, result: RoundReplies, mixer: Any) -> tuple[bytes | None, dict[str, Any]]:
        """The teacher as a message, and everything about the round that is known before it is distilled."""
        message, facts = (None, {}) if mixer is None else self._teach(number, mixer, result)
        local = {c: r.local_accuracy for c, r in result.replies.items() if r.local_accuracy is not None}
        line = Round(
            number,
            self.method,
            local_accuracy=local,
            local_accuracy_mean=fmean(local.values()) if local else None,
            bytes_up=sum(result.sent.values()),
            client_bytes_up=result.sent,
            epsilon=max((r.epsilon for r in result.replies.values() if r.epsilon is not None), default=None),
            epsilon_round=max(
                (r.epsilon_round for r in result.replies.values() if r.epsilon_round is not None), default=None
            ),
            participants=list(result.replies),
            failed=result.failed,
            guard=_watched(mixer, result),
            seconds={stage: s for stage, s in result.seconds.items() if stage not in LATER_STAGES},
        )
        return message, asdict(replace(line, **facts))

    def _teach(self, number: int, mixer: Any, result: RoundReplies) -> tuple[bytes, dict[str, Any]]:
        """The message that a round makes, and what its line says of it."""
        begin = time.perf_counter()
        teacher = mixer.finish()
        result.seconds["mix"] = result.seconds.get("mix", 0.0) + time.perf_counter() - begin
        chi = float(teacher.concentration.mean())
        if self.witness is not None:
            in_order = {client: result.seen[client] for client in self.engine.clients if client in result.seen}
            self.witness.testify(number, in_order, mixer, teacher.probabilities)
        message = encode_teacher(teacher.probabilities, self.public.envelope("server", number), self.codec)
        return message, {
            **self._measured(teacher.probabilities),
            "student_accuracy": self._student_accuracy(number, message, result),
            "concentration": chi,
            "effective_clients": 1 / chi,
            "density_auc": fmean(result.separations) if result.separations else None,
            "paper_bytes_up": len(result.replies) * predictions_bytes(len(self.public.inputs), self.public.classes),
        }

    def _student_accuracy(self, number: int, message: bytes, result: RoundReplies) -> float | None:
        """What the teacher makes of the student, if there is one; its store lets it repeat a round."""
        if self.student is None:
            return None
        reply = self.student.step(Request(number + 1, message, train=False, upload=False))
        result.seconds["student"] = sum(reply.seconds.values())
        return reply.accuracy

    def _measured(self, probabilities: torch.Tensor) -> dict[str, float]:
        """What the teacher is worth on public samples whose labels are known."""
        if self.public_labels is None or not bool((known := self.public_labels >= 0).any()):
            return {}
        worth = asdict(ClassificationMetrics.of(probabilities.cpu()[known], self.public_labels[known]))
        return {f"teacher_{name}": value for name, value in worth.items()}

    def _complete(
        self, line: Round, result: RoundReplies, teacher: bytes | None, asked: Sequence[str], closing: bool
    ) -> Round:
        """The round with what its teacher made of the clients, told in the exchange after it."""
        accuracy = {c: r.accuracy for c, r in result.replies.items() if r.accuracy is not None}
        later = {stage: s for stage, s in result.seconds.items() if closing or stage in LATER_STAGES}
        return replace(
            line,
            accuracy=accuracy,
            accuracy_mean=fmean(accuracy.values()) if accuracy else None,
            nll_mean=_mean(reply.nll for reply in result.replies.values()),
            ece_mean=_mean(reply.ece for reply in result.replies.values()),
            bytes_down=len(teacher or b"") * len(asked),
            client_bytes_down=dict.fromkeys(asked, len(teacher)) if teacher else {},
            failed=line.failed | (result.failed if closing else {}),
            seconds={s: line.seconds.get(s, 0.0) + later.get(s, 0.0) for s in {**line.seconds, **later}},
        )


CLIENT = "client "
"""What a client's id is preceded by where a message is about it."""
LATER_STAGES = ("distil", "evaluate")
"""Stages of an exchange that belong to the round before."""


def _watched(mixer: Any, result: RoundReplies) -> dict[str, dict[str, float]]:
    """What was done to whom in a round, by the guard and at the door."""
    found = (
        {n.removeprefix(CLIENT): dict(f) for n, f in mixer.report().items()}
        if isinstance(mixer, GuardedAggregator)
        else {}
    )
    for client, times in result.again.items():
        found.setdefault(client, {})["again"] = times
    return found


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean of what is known."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
