"""The server: engines that bring too few answers, what counts as sent, who closes the engine, and the guard."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import torch

import trustmix as tm
from trustmix import Checkpoint, Client, Federation, Labelled, Participation, Public, Training, TrustmixError
from trustmix.aggregation import Accumulator, Guard, GuardedAggregator
from trustmix.engines import LocalEngine
from trustmix.federation import Distillation, Failure, Reply, Request

CLIENTS = ["north", "east", "south", "west"]
LABELS = torch.arange(24) % 3
INPUTS = torch.eye(3)[LABELS] + 0.3 * torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
PUBLIC = Public(INPUTS[:12], classes=3)
TRAINING = Training(batch=8, first_epochs=1)


def linear() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(3, 3)


def clients() -> list[Client]:
    data = Labelled(INPUTS, LABELS)
    return [Client(name, linear, data, data, PUBLIC, test=data, training=TRAINING) for name in CLIENTS]


class FailingEngine:
    """An engine of which some clients do not answer in some exchanges; it counts how often it is closed."""

    def __init__(self, failing: Mapping[int, Mapping[str, Failure | None]]) -> None:
        self.engine = LocalEngine(clients())
        self.failing = failing
        """By round and client: the failure, or None where there is no answer at all."""
        self.closed = 0

    @property
    def clients(self) -> Sequence[str]:
        return self.engine.clients

    def exchange(self, requests: Mapping[str, Request]) -> Iterator[Reply | Failure]:
        (round_,) = {request.round for request in requests.values()}
        failing = self.failing.get(round_, {})
        yield from (failure for client, failure in failing.items() if failure is not None and client in requests)
        yield from self.engine.exchange({c: request for c, request in requests.items() if c not in failing})

    def close(self) -> None:
        self.closed += 1


def federation(
    failing: Mapping[int, Mapping[str, Failure | None]], quorum: float = 0.5, rule: str = "suwa"
) -> Federation:
    return Federation(
        clients=FailingEngine(failing), public=PUBLIC, rule=rule, participation=Participation(quorum=quorum)
    )


SILENCE = "the engine brought no answer"


@pytest.mark.parametrize("rule", ["suwa", "alone"])
def test_clients_without_any_answer_are_named_and_the_round_goes_on(rule: str) -> None:
    first, second = federation({1: {"east": None, "west": None}}, rule=rule).run(2).rounds
    assert first.participants == ["north", "south"]
    assert first.failed == {"east": SILENCE, "west": SILENCE}
    assert (second.participants, second.failed) == (CLIENTS, {})


@pytest.mark.parametrize("silent", [CLIENTS, CLIENTS[1:]])
def test_too_few_answers_end_the_run_with_a_sentence_that_names_a_missing_client(
    silent: list[str], tmp_path: Path
) -> None:
    broken = federation({2: dict.fromkeys(silent)})
    answers = len(CLIENTS) - len(silent)
    sentence = rf"^Round 2: {answers} of 4 clients answered, the quorum is 2; client {silent[0]}: {SILENCE}\."
    with pytest.raises(TrustmixError, match=sentence):
        broken.run(3, checkpoint=Checkpoint(tmp_path))
    assert Checkpoint(tmp_path).load().exchange == 1  # the run can be resumed from the round before


def test_clients_without_an_answer_to_the_closing_request_are_named_in_the_last_round() -> None:
    (line,) = federation({2: {"south": None}}).run(1).rounds
    assert line.participants == CLIENTS
    assert line.failed == {"south": SILENCE}
    assert set(line.accuracy) == {"north", "east", "west"}


def test_bytes_down_count_only_requests_that_were_sent() -> None:
    unsent, lost = Failure("east", "not connected", sent=False), Failure("west", "crashed")
    first, second = federation({2: {"east": unsent, "west": lost}, 3: {"east": unsent}}).run(2).rounds
    size = first.client_bytes_down["north"]
    assert size > 0
    assert first.client_bytes_down == dict.fromkeys(["north", "south", "west"], size)  # west's was sent, then lost
    assert first.bytes_down == 3 * size
    assert set(second.client_bytes_down) == {"north", "south", "west"}
    assert second.bytes_down == sum(second.client_bytes_down.values())
    assert second.failed == {"east": "not connected", "west": "crashed"}


def test_nothing_is_sent_down_where_nothing_is_exchanged() -> None:
    (line,) = federation({}, rule="alone").run(1).rounds
    assert (line.bytes_up, line.bytes_down, line.client_bytes_down) == (0, 0, {})


def test_a_federation_closes_its_engine_when_its_block_ends() -> None:
    engine = FailingEngine({})
    with Federation(clients=engine, public=PUBLIC) as opened:
        opened.run(1)
        assert engine.closed == 0
    assert engine.closed == 1


def test_a_federation_closes_its_engine_when_its_block_ends_by_an_error() -> None:
    engine = FailingEngine({1: dict.fromkeys(CLIENTS)})
    with pytest.raises(TrustmixError, match="0 of 4 clients"), Federation(clients=engine, public=PUBLIC) as opened:
        opened.run(1)
    assert engine.closed == 1


def test_a_federation_has_no_guard_unless_one_is_given() -> None:
    def aggregator(guard: Guard | None) -> tm.Aggregator:
        algorithm = Federation(clients=clients(), public=PUBLIC, rule="uwa", guard=guard).algorithm
        assert isinstance(algorithm, Distillation)
        return algorithm.aggregator

    plain = aggregator(None)
    assert type(plain) is Accumulator
    assert plain.tau == 1.0
    guarded = aggregator(Guard(cap=0.6))
    assert isinstance(guarded, GuardedAggregator)
    assert guarded.guard.cap == 0.6


class Recorder(tm.Callback):
    """Writes down which of its hooks were called; it may fail in one of them."""

    def __init__(self, failing: str = "") -> None:
        self.calls: list[str] = []
        self.failing = failing

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name == self.failing:
            raise TrustmixError(f"{name} failed")

    def on_run_begin(self, rounds: Sequence[tm.Round]) -> None:
        self._call(f"begin after {len(rounds)}")

    def on_upload(self, round_: int, upload: tm.Upload) -> None:
        self._call("upload")

    def on_round_end(self, line: tm.Round) -> None:
        self._call(f"round {line.round}")

    def on_run_end(self, error: BaseException | None) -> None:
        self._call(f"end {type(error).__name__ if error else 'well'}")


SMALL = {"data": {"name": "digits"}, "clients": 5, "rounds": 2, "split": {"samples_per_client": 40}}


@pytest.mark.parametrize("out", [True, False])
def test_a_callback_hears_of_begin_rounds_and_end_with_and_without_a_run_directory(out: bool, tmp_path: Path) -> None:
    recorder = Recorder()
    tm.run({**SMALL, "engine": {"mode": "sequential"}}, out=tmp_path / "run" if out else None, callbacks=[recorder])
    assert [call for call in recorder.calls if call != "upload"] == ["begin after 0", "round 1", "round 2", "end well"]
    assert recorder.calls.count("upload") == 10


def test_a_callback_that_fails_at_the_end_keeps_no_other_from_ending() -> None:
    first, second = Recorder(), Recorder("end well")
    with pytest.raises(TrustmixError, match="end well failed"):
        tm.run({**SMALL, "engine": {"mode": "sequential"}}, callbacks=[first, second])
    assert first.calls[-1] == "end TrustmixError"


def test_a_callback_that_never_began_is_not_ended() -> None:
    first, second, third = Recorder(), Recorder("begin after 0"), Recorder()
    with pytest.raises(TrustmixError, match="begin after 0 failed"):
        tm.run({**SMALL, "engine": {"mode": "sequential"}}, callbacks=[first, second, third])
    assert (first.calls[-1], second.calls[-1], third.calls) == ("end TrustmixError", "begin after 0", [])


def test_a_callback_that_fails_is_not_a_client_that_was_refused() -> None:
    with pytest.raises(RuntimeError, match="a callback failed: upload failed"):
        Federation(clients=clients(), public=PUBLIC, callbacks=[Recorder("upload")]).run(1)


def test_a_round_that_failed_and_is_played_again_counts_once(tmp_path: Path) -> None:
    class FailsOnce(tm.Callback):
        failed = False

        def on_teacher(self, *_: object) -> None:
            if not self.failed:
                self.failed = True
                raise KeyError("once")

    def reputations(callbacks: list[tm.Callback], folder: Path) -> dict[str, torch.Tensor]:
        federation = Federation(clients=clients(), public=PUBLIC, rule="expguard", callbacks=callbacks)
        checkpoint = Checkpoint(folder)
        if callbacks:
            with pytest.raises(KeyError):
                federation.run(2, checkpoint=checkpoint)
        federation.run(2, checkpoint=checkpoint)
        return federation.algorithm.state_dict()

    assert reputations([FailsOnce()], tmp_path / "again") == reputations([], tmp_path / "once")


def test_an_instance_of_a_rule_can_serve_one_run_after_another() -> None:
    class Tracks(tm.Callback):
        def on_round_begin(self, round_: int, aggregator: tm.Aggregator) -> None:
            aggregator.track(torch.tensor([11]))

    rule = Accumulator(1.0)
    Federation(clients=clients(), public=PUBLIC, rule=rule, callbacks=[Tracks()]).run(1)
    small = Public(INPUTS[:4], classes=3)
    data = Labelled(INPUTS, LABELS)
    others = [Client(name, linear, data, data, small, training=TRAINING) for name in CLIENTS]
    assert len(Federation(clients=others, public=small, rule=rule).run(1).rounds) == 1
