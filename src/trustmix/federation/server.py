"""The server of Algorithm 1: ask, take in replies as they arrive, send what came of them with the next request.

R rounds take R + 1 exchanges: the effect of a teacher on the clients is known from their next answers, and the closing
exchange, which goes to every client or to a sample of them, only distils and evaluates. What replies mean is the
algorithm's (`algorithm`).
"""

import math
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean
from types import TracebackType
from typing import Any, Literal, Self

import torch

from trustmix.aggregation.guard import Guard
from trustmix.errors import StorageError, TrustmixError
from trustmix.federation.algorithm import RoundResult, ServerContext
from trustmix.federation.callbacks import Callback, ProgressEvent
from trustmix.federation.client import Client, LabelSharing
from trustmix.federation.engine import ENGINES, Engine, FoldingEngine
from trustmix.federation.folding import PartialRound
from trustmix.federation.history import MAX_RECALLS, WALL, History, Round
from trustmix.federation.late import pack_late, unpack_late, upload_only, without_late
from trustmix.federation.messages import Absence, Failure, Reply, Request
from trustmix.federation.method import Rule, resolve_method
from trustmix.federation.public_set import Public
from trustmix.federation.reply_validation import LONGEST_NAME, rejection_reason, sanitize_reply, to_valid_utf8
from trustmix.federation.state import Checkpoint, ServerState
from trustmix.seeds import numpy_generator


@dataclass(frozen=True)
class Participation:
    """Who is asked in a round, how long the server waits, and how many must answer."""

    fraction: float = 1.0
    """Part of the clients asked each round, drawn from the seed."""
    quorum: float = 0.5
    """Part of the asked clients whose uploads must arrive; with fewer the run stops, and can be resumed."""
    deadline: float | None = None
    """Seconds a client's step may take; a later answer is left out of the round."""
    late: Literal["drop", "next"] = "drop"
    """What becomes of an upload that arrives after its round: nothing, or a part in the next one (see `late`)."""
    closing: Literal["all", "sample"] = "all"
    """Who is asked after the last round, to learn from its teacher: all clients, or as many as in a round."""


@dataclass
class RoundReplies:
    """What came back in one exchange."""

    replies: dict[str, Reply] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    absence: dict[str, Absence] = field(default_factory=dict)
    late: dict[str, Reply] = field(default_factory=dict)
    """Answers that their round did not wait for."""
    unreached: set[str] = field(default_factory=set)
    """Clients that the request was never sent to."""
    upload_bytes: dict[str, int] = field(default_factory=dict)
    """Of every upload that arrived, those refused included."""
    seconds: dict[str, float] = field(default_factory=dict)
    duplicates: dict[str, int] = field(default_factory=dict)
    """Answers beyond the first, by client."""
    folding: bool = False
    """Whether workers of the engine fold uploads."""

    def add_seconds(self, seconds: Mapping[str, float]) -> None:
        """Add the time of stages."""
        for stage, much in seconds.items():
            self.seconds[stage] = self.seconds.get(stage, 0.0) + much


class Federation:
    """Clients, a public set and a method. It is a context manager that ends its workers.

    Parameters
    ----------
    clients
        The clients, or an engine that reaches them.
    public
        The shared unlabelled set.
    rule
        A method's name, a tau, an aggregator, its class or "package.module:Class".
    public_labels
        (N,), -1 unknown: they only measure the teacher.
    client_classes
        The classes each client holds: with public labels they measure how well its density tells own classes.
    participation
        Who is asked and who must answer.
    student
        The server's own model, a client without private data that distils every teacher; methods that exchange weights
        need one, which all clients begin with.
    guard
        Bounds what one client can do to a teacher. With None, the default, uploads are aggregated as they are: the
        paper's rules.
    codec
        How the teacher is encoded.
    labels
        What clients were asked to share of their label sets; an upload with more is refused. None accepts any.
    callbacks
        What watches the run.
    seed
        Of the draws of participants.

    >>> import trustmix as tm
    >>> def model(): return torch.nn.Linear(4, 2)
    >>> x, y = torch.rand(20, 4), torch.arange(20) % 2
    >>> public = tm.Public(torch.rand(8, 4), classes=2)
    >>> clients = [tm.Client.from_arrays(name, model, x, y, public=public) for name in ("north", "south")]
    >>> with tm.Federation(clients=clients, public=public, rule="trust") as federation:
    ...     history = federation.run(rounds=2)
    >>> [line.participants for line in history.rounds]
    [['north', 'south'], ['north', 'south']]
    """

    def __init__(
        self,
        *,
        clients: Sequence[Client] | Engine,
        public: Public,
        rule: Rule = "trust",
        public_labels: torch.Tensor | None = None,
        client_classes: Mapping[str, torch.Tensor] | None = None,
        participation: Participation | None = None,
        student: Client | None = None,
        guard: Guard | None = None,
        codec: str = "float32",
        labels: LabelSharing | None = None,
        callbacks: Sequence[Callback] = (),
        seed: int = 0,
    ) -> None:
        self.method = resolve_method(rule)
        if self.method.one_architecture and isinstance(clients, Sequence):
            self._check_architecture([*clients, *([student] if student else [])])
        self.engine: Engine = ENGINES.get("local")(clients).engine if isinstance(clients, Sequence) else clients
        self.participation = participation or Participation()
        if self.participation.late == "next" and self.method.exchanges != "predictions":
            raise TrustmixError(f'participation.late = "next" is for methods that exchange predictions, not {rule}.')
        self.callbacks = tuple(callbacks)
        self.seed = seed
        self.context = ServerContext(
            self.engine, public, public_labels, client_classes or {}, student, guard, codec, labels, self.callbacks
        )
        self.algorithm = self.method.make_algorithm(self.context)

    def __repr__(self) -> str:
        return f"<Federation of {len(self.engine.clients)} clients, {self.context.public}, by {self.method.name}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the engine's workers."""
        self.engine.close()

    def run(self, rounds: int, *, checkpoint: Checkpoint | None = None) -> History:
        """Play all rounds, from the checkpoint's last commit on, if there is one.

        Parameters
        ----------
        rounds
            How many there are in all.
        checkpoint
            Where the server's state is committed after every round.

        Returns
        -------
        History
            The rounds that this call has played.
        """
        return History(list(self.iter_rounds(rounds, checkpoint=checkpoint)))

    def iter_rounds(self, rounds: int, *, checkpoint: Checkpoint | None = None) -> Iterator[Round]:
        """Yield each round when its accuracy is known. The round is committed when the next one is asked for.

        So the consumer of the rounds has written them down before they count as done; after a crash the last one may
        be yielded again, never skipped.
        """
        state = checkpoint.load() if checkpoint else ServerState()
        if state.exchange == 0:
            state = ServerState(teacher=self.algorithm.initial_message())
        self.algorithm.load_state_dict(without_late(state.memory))
        late = unpack_late(state.memory)
        accuracy = None
        begin = time.perf_counter()
        for number in range(state.exchange + 1, rounds + 2):
            closing = number > rounds
            asked = self._sample(number, everybody=closing and self.participation.closing == "all")
            event = ProgressEvent(
                min(number, rounds), rounds, "closing" if closing else "clients", 0, len(asked), accuracy
            )
            upload = self.algorithm.wants_uploads and not closing
            request = Request(number, state.teacher, train=not closing, upload=upload)
            result = self._exchange(request, asked, event)
            late = self._use_late(request, late | result.late, result)
            self._check_quorum(number, asked, result)
            if state.pending is not None:
                line = _complete(Round(**state.pending), result, state.teacher, asked, closing)
                accuracy, now = line.accuracy_mean, time.perf_counter()
                line.seconds[WALL], begin = now - begin, now
                yield line
                for callback in self.callbacks:
                    callback.on_round_end(line)
            message, pending = (None, None) if closing else self._close_round(number, asked, result)
            states = state.states | self._newest_states(number, result)
            memory = {**self.algorithm.state_dict(), **pack_late(late)}
            state = ServerState(number, message, pending, memory, states)
            if checkpoint:
                checkpoint.commit(state)

    def _newest_states(self, number: int, result: RoundReplies) -> dict[str, int]:
        """The rounds of the states that an exchange has left; a student that learns is one round ahead."""
        student = self.context.student
        ahead = None if student is None else student.store.newest_before(number + 2)
        own = {client: reply.round for client, reply in result.replies.items()}
        return own | ({} if student is None or ahead is None else {student.id: ahead})

    def _check_architecture(self, clients: Sequence[Client]) -> None:
        if len({client.architecture for client in clients}) > 1:
            raise TrustmixError(
                f"{self.method.name} averages weights, which takes one architecture; these clients have several models."
            )

    def _sample(self, number: int, *, everybody: bool = False) -> Sequence[str]:
        """The clients of an exchange, in their fixed order."""
        clients = self.engine.clients
        if everybody:
            return clients
        size = max(1, round(self.participation.fraction * len(clients)))
        chosen = numpy_generator(self.seed, "participants", number).permutation(len(clients))[:size]
        return [clients[index] for index in sorted(chosen.tolist())]

    def _exchange(self, request: Request, asked: Sequence[str], event: ProgressEvent) -> RoundReplies:
        """Ask, and take in each reply as it arrives; whatever is wrong with an answer leaves that client out."""
        result = RoundReplies()
        if request.train:
            self.algorithm.begin_round(request.round, request.teacher)
        self._report_progress(event)
        requests, done = dict.fromkeys(asked, request), 0
        for answer in self._answers(requests, request, result):
            if isinstance(answer, PartialRound):
                self.algorithm.merge(answer)
                result.add_seconds({"mix": answer.seconds})
                continue
            done += 1
            self._report_progress(replace(event, done=min(done, len(asked))))
            if answer.client in result.replies or answer.client in result.failed:
                result.duplicates[answer.client] = result.duplicates.get(answer.client, 0) + 1
                continue
            failure = answer if isinstance(answer, Failure) else self._receive(answer, request, requests, result)
            if failure is not None:
                name = to_valid_utf8(answer.client[:LONGEST_NAME])
                result.failed[name], result.absence[name] = to_valid_utf8(failure.reason), failure.kind
                result.unreached |= set() if failure.sent else {answer.client}
                result.late |= {} if failure.late is None else {answer.client: sanitize_reply(failure.late)}
        for client in asked:
            if client not in result.replies and client not in result.failed:
                result.failed[client], result.absence[client] = "the engine brought no answer", "failed"
        return result

    def _answers(
        self, requests: Mapping[str, Request], request: Request, result: RoundReplies
    ) -> Iterator[Reply | Failure | PartialRound]:
        """The answers of an exchange, whose uploads the workers of the engine fold if they can."""
        if request.upload and isinstance(self.engine, FoldingEngine):
            make_folder = self.algorithm.make_folder(self.participation.deadline)
            if make_folder is not None:
                result.folding = True
                return self.engine.exchange_folded(requests, make_folder)
        return self.engine.exchange(requests)

    def _use_late(self, request: Request, late: Mapping[str, Reply], result: RoundReplies) -> dict[str, Reply]:
        """Take in uploads of earlier rounds of clients without a newer one; return those that arrived just now."""
        if self.participation.late == "drop" or not request.upload:
            return {}
        for client, reply in late.items():
            if reply.round < request.round and client not in result.replies and reply.payload is not None:
                result.upload_bytes[client] = len(reply.payload)
                failure = self._aggregate(upload_only(reply), result)
                if failure is None:
                    result.replies[client] = replace(upload_only(reply), payload=None)
                    result.failed.pop(client, None)
                    result.absence.pop(client, None)
                else:
                    result.failed[client], result.absence[client] = to_valid_utf8(failure.reason), failure.kind
        return {client: reply for client, reply in late.items() if reply.round == request.round}

    def _report_progress(self, event: ProgressEvent) -> None:
        for callback in self.callbacks:
            callback.on_progress(event)

    def _receive(self, answer: Reply, request: Request, asked: Container[str], result: RoundReplies) -> Failure | None:
        """Take one answer in, or return why not."""
        reason = rejection_reason(answer, request.round, asked)
        if reason is not None:
            return Failure(answer.client, reason, kind="refused")
        answer = sanitize_reply(answer)
        folded = answer.folded if result.folding and answer.payload is None else None
        if folded is not None or answer.payload is not None:
            result.upload_bytes[answer.client] = len(answer.payload or b"") if folded is None else folded
        result.add_seconds(answer.seconds)
        failure = self._aggregate(answer, result) if request.train and folded is None else None
        if failure is None:
            result.replies[answer.client] = replace(answer, payload=None)  # aggregated: only its figures are kept
        return failure

    def _aggregate(self, reply: Reply, result: RoundReplies) -> Failure | None:
        """Hand one reply to the algorithm, or return why not."""
        took, deadline = sum(reply.seconds.values()), self.participation.deadline
        if deadline is not None and took > deadline:
            reason = f"answered after {took:.1f} s, the deadline is {deadline:g} s"
            return Failure(reply.client, reason, kind="late", late=reply)
        if not self.algorithm.wants_uploads:
            return None
        begin = time.perf_counter()
        try:
            self.algorithm.aggregate(reply)
        except StorageError:  # no fault of the client: the round cannot be finished here
            raise
        except TrustmixError as error:
            return Failure(reply.client, f"upload refused: {error}", kind="refused")
        finally:
            result.add_seconds({"mix": time.perf_counter() - begin})
        return None

    def _check_quorum(self, number: int, asked: Sequence[str], result: RoundReplies) -> None:
        needed = max(1, math.ceil(self.participation.quorum * len(asked)))
        if len(result.replies) < needed:
            client, reason = next(iter(result.failed.items()))
            raise TrustmixError(
                f"Round {number}: {len(result.replies)} of {len(asked)} clients answered, the quorum is {needed}; "
                f"client {client}: {reason}. Nothing of this round is kept."
            )

    def _close_round(
        self, number: int, asked: Sequence[str], result: RoundReplies
    ) -> tuple[bytes | None, dict[str, object]]:
        """The message to the clients, and everything about the round that is known before they have it."""
        others = result.replies.keys() - set(asked)  # late uploads
        in_order = [client for client in (self.engine.clients if others else asked) if client in result.replies]
        outcome = self.algorithm.finalize(in_order) if self.algorithm.wants_uploads else RoundResult()
        result.add_seconds(outcome.seconds)
        replies = result.replies.values()
        local = {reply.client: reply.local_accuracy for reply in replies if reply.local_accuracy is not None}
        line = Round(
            number,
            self.method.name,
            local_accuracy=local,
            local_accuracy_mean=fmean(local.values()) if local else None,
            bytes_up=sum(result.upload_bytes.values()),
            client_bytes_up=result.upload_bytes,
            epsilon=_largest(reply.epsilon for reply in replies),
            epsilon_round=_largest(reply.epsilon_round for reply in replies),
            participants=list(result.replies),
            failed=result.failed,
            absence=dict(result.absence),
            late={c: number - reply.round for c, reply in result.replies.items() if reply.round < number},
            guard=_with_duplicates(self.algorithm.guard_report(), result.duplicates),
            seconds={stage: s for stage, s in result.seconds.items() if stage not in LATER_STAGES},
        )
        return outcome.message, asdict(replace(line, **outcome.metrics))  # type: ignore[arg-type]


LATER_STAGES = ("distil", "evaluate")
"""Stages of an exchange that belong to the round before."""


def _complete(line: Round, result: RoundReplies, message: bytes | None, asked: Sequence[str], closing: bool) -> Round:
    """The round with its effect on the clients, which the exchange after it shows."""
    accuracy = {c: r.accuracy for c, r in result.replies.items() if r.accuracy is not None}
    agreement = {c: r.agreement for c, r in result.replies.items() if r.agreement is not None}
    later = {stage: s for stage, s in result.seconds.items() if closing or stage in LATER_STAGES}
    sent = [client for client in asked if client not in result.unreached] if message else []
    return replace(
        line,
        accuracy=accuracy,
        accuracy_mean=fmean(accuracy.values()) if accuracy else None,
        agreement=agreement,
        public_epochs={c: r.public_epochs for c, r in result.replies.items() if r.public_epochs is not None},
        agreement_mean=_mean(agreement.values()),
        nll_mean=_mean(reply.nll for reply in result.replies.values()),
        ece_mean=_mean(reply.ece for reply in result.replies.values()),
        **_mean_and_each(result.replies, "balanced_accuracy"),
        **_mean_and_each(result.replies, "macro_f1"),
        **_mean_and_each(result.replies, "auroc"),
        **_recalls(result.replies),
        bytes_down=len(message or b"") * len(sent),
        client_bytes_down=dict.fromkeys(sent, len(message or b"")),
        failed=line.failed | (result.failed if closing else {}),
        absence=line.absence | (dict(result.absence) if closing else {}),
        seconds={s: line.seconds.get(s, 0.0) + later.get(s, 0.0) for s in {**line.seconds, **later}},
    )


def _mean_and_each(replies: Mapping[str, Reply], name: str) -> dict[str, Any]:
    """A figure by client, and its mean over those that have it."""
    each = {client: found for client, reply in replies.items() if (found := getattr(reply, name)) is not None}
    return {name: each, f"{name}_mean": _mean(each.values())}


def _recalls(replies: Mapping[str, Reply]) -> dict[str, Any]:
    """The recall of each class, mean over clients, and by client where these are few."""
    each = {
        client: [None if value is None else round(value, 4) for value in reply.recall]
        for client, reply in replies.items()
        if reply.recall is not None
    }
    mean = [_mean(values) for values in zip(*each.values(), strict=True)]
    few = len(each) * len(mean) <= MAX_RECALLS
    return {"recall": each if few else {}, "recall_mean": [m if m is None else round(m, 4) for m in mean]}


def _with_duplicates(
    report: Mapping[str, Mapping[str, float]], duplicates: Mapping[str, int]
) -> dict[str, dict[str, float]]:
    """What was done in a round by the guard, and how many answers beyond the first were not taken, by client."""
    found = {client: dict(figures) for client, figures in report.items()}
    for client, times in duplicates.items():
        found.setdefault(client, {})["again"] = times
    return found


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean of those that are known."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _largest(values: Iterable[float | None]) -> float | None:
    """The largest of those that are known."""
    return max((value for value in values if value is not None), default=None)
