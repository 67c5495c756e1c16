"""The server's door: whatever comes, only what keeps the contract is mixed, and the round goes on with the honest."""

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch

from trustmix import Federation, Participation, Public
from trustmix.aggregation import Upload
from trustmix.aggregation.guard import Guard
from trustmix.federation import Failure, Reply, Request
from trustmix.wire import encode_upload

SAMPLES, CLASSES = 16, 4
PUBLIC = Public(torch.rand(SAMPLES, 3, generator=torch.Generator().manual_seed(0)), CLASSES)
HONEST = [f"honest-{index}" for index in range(6)]
FUZZERS = [f"fuzzer-{index}" for index in range(1000)]
NONSENSE: dict[str, Any] = {
    "accuracy": float("nan"),
    "local_accuracy": -3.0,
    "seconds": {"train": -1.0, "x" * 999: 1.0},
    "epsilon": float("nan"),
    "agreement": 1.5,
    "public_epochs": -2,
}


def said(client: str, round_: int) -> Upload:
    luck = torch.Generator().manual_seed(sum(map(ord, client)) + 1000 * round_)
    logits = 2 * torch.randn(SAMPLES, CLASSES, generator=luck)
    scores = torch.randn(SAMPLES, generator=luck)
    return Upload(client, torch.softmax(logits, 1), scores, torch.ones(CLASSES).long())


def message(client: str, round_: int, upload: Upload | None = None, **header: Any) -> bytes:
    return encode_upload(upload or said(client, round_), replace(PUBLIC.header(client, round_), **header), "float32")


def broken(client: str, round_: int, luck: random.Random) -> Reply:
    """An answer that breaks the contract in one of many ways."""
    fine, upload = message(client, round_), said(client, round_)
    place, length = luck.randrange(len(fine)), luck.randint(1, 40)
    row, column = luck.randrange(SAMPLES), luck.randrange(CLASSES)
    wrong = upload.predictions.clone()
    wrong[row, column] = luck.choice([torch.nan, torch.inf, -1.0, 2.0, 1e30, float(wrong[row, column]) + 0.01])
    scores = torch.as_tensor(upload.scores).clone()
    scores[row] = torch.nan
    other = luck.choice([c for c in HONEST if c != client])
    payloads: list[Callable[[], bytes | None]] = [
        lambda: None,
        lambda: luck.randbytes(length),
        lambda: fine[:place],
        lambda: fine[:place] + bytes([fine[place] ^ (1 << luck.randrange(8))]) + fine[place + 1 :],
        lambda: fine + luck.randbytes(length),
        lambda: fine[:place] + luck.randbytes(length) + fine[place:],
        lambda: message(client, round_, replace(upload, predictions=wrong)),
        lambda: message(client, round_, replace(upload, scores=scores)),
        lambda: message(client, round_, replace(upload, predictions=upload.predictions[:, :-1])),
        lambda: message(client, round_, replace(upload, predictions=upload.predictions[1:], scores=scores[1:])),
        lambda: message(client, round_, replace(upload, class_counts=torch.zeros(CLASSES).long())),
        lambda: message(client, round_, replace(upload, class_counts=-torch.ones(CLASSES).long())),
        lambda: message(client, round_, replace(upload, class_counts=torch.ones(CLASSES - 1).long())),
        lambda: message(client, round_, sender=other),
        lambda: message(client, round_, round=round_ - luck.randint(1, 3)),
        lambda: message(client, round_, fingerprint="0" * 16),
        lambda: message(other, round_),
    ]
    return Reply(client, round_, luck.choice(payloads)(), **NONSENSE)


class Crowd:
    """A thousand clients that send broken answers among six that do not; `extra` adds answers nobody asked for."""

    def __init__(self, extra: Callable[[Request], list[Reply]] = lambda _: [], fuzzers: int = 1000) -> None:
        self.clients = [*HONEST[:3], *FUZZERS[:fuzzers], *HONEST[3:]]
        self.extra = extra

    def exchange(self, requests: Mapping[str, Request]) -> Iterator[Reply | Failure]:
        for client, request in requests.items():
            if not request.train or client in HONEST:
                payload = message(client, request.round) if request.upload else None
                yield Reply(client, request.round, payload, accuracy=0.5, seconds={"train": float(request.train)})
            else:
                yield broken(client, request.round, random.Random(f"{client}/{request.round}"))
        yield from self.extra(next(iter(requests.values())))

    def close(self) -> None:
        pass


def federation(engine: Any, rule: str = "trust", guard: Guard | None = Guard()) -> Federation:  # noqa: B008
    return Federation(clients=engine, public=PUBLIC, rule=rule, participation=Participation(quorum=0.001), guard=guard)


@pytest.mark.slow
def test_ten_thousand_broken_answers_change_nothing_and_the_honest_go_on() -> None:
    refused, alone = 0, federation(Crowd(fuzzers=0)).run(10)
    for line, undisturbed in zip(federation(Crowd()).run(10).rounds, alone.rounds, strict=True):
        assert line.participants == HONEST
        assert line.concentration == undisturbed.concentration
        assert line.seconds["train"] == 6.0
        assert json.loads(json.dumps(asdict(line), allow_nan=False))["accuracy_mean"] == 0.5
        assert all(len(reason) < 400 for reason in line.failed.values())
        refused += len(line.failed)
    assert refused == 10_000


@pytest.mark.parametrize("guard", [None, Guard()])
def test_a_client_has_one_answer_a_round_and_a_stranger_none(guard: Guard | None) -> None:
    def extra(request: Request) -> list[Reply]:
        if not request.train:
            return []
        again = Reply(HONEST[0], request.round, message(HONEST[0], request.round, said("other", 1)))
        stranger = Reply("stranger" * 100, request.round, message("stranger", request.round))
        return [again, again, stranger]

    line = federation(Crowd(extra, fuzzers=0), "suwa", guard).run(1).rounds[0]
    assert line.participants == HONEST
    assert line.guard[HONEST[0]]["again"] == 2
    assert line.failed == {("stranger" * 100)[:60]: "was not asked"}
    assert line.concentration == federation(Crowd(fuzzers=0), "suwa", guard).run(1).rounds[0].concentration


def test_an_answer_of_an_earlier_round_is_turned_away() -> None:
    class Late(Crowd):
        def exchange(self, requests: Mapping[str, Request]) -> Iterator[Reply | Failure]:
            for answer in super().exchange(requests):
                late = isinstance(answer, Reply) and answer.client == HONEST[0] and answer.round == 2
                yield Reply(HONEST[0], 1, message(HONEST[0], 1)) if late else answer

    history = federation(Late(fuzzers=0)).run(3)
    assert [line.failed for line in history.rounds] == [
        {},
        {HONEST[0]: "answered round 1 when asked for round 2"},
        {},
    ]
