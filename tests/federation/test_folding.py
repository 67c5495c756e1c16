"""Uploads that are folded where clients run give the round of uploads that travel, whatever the workers."""

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pytest
import torch
from torch import nn

import trustmix as tm
from trustmix.aggregation import Guard
from trustmix.federation import Callback, Client, Failure, Participation, Reply, Request
from trustmix.federation.folding import MakeFolder, PartialRound

PUBLIC = tm.Public(torch.randn(30, 4, generator=torch.Generator().manual_seed(0)), classes=3)
LABELS = torch.arange(30) % 3


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def clients(count: int = 7) -> list[Client]:
    made = []
    for index in range(count):
        inputs = torch.randn(12, 4, generator=torch.Generator().manual_seed(index))
        labels = torch.tensor([index % 3, (index + 1) % 3]).repeat(6)
        made.append(Client.from_arrays(str(index), network, inputs, labels, public=PUBLIC))
    return made


@dataclass
class Workers:
    """An engine of workers that get their folder, and send what came of it, as bytes."""

    members: Sequence[Client]
    workers: int = 3
    dies: int | None = None
    tamper: Mapping[str, bytes] | None = None

    def __post_init__(self) -> None:
        self.local = tm.LocalEngine(self.members)

    @property
    def clients(self) -> Sequence[str]:
        return self.local.clients

    def close(self) -> None:
        self.local.close()

    def exchange(self, requests: Mapping[str, Request]) -> Iterator[Reply | Failure]:
        for answer in self.local.exchange(requests):
            changed = (self.tamper or {}).get(answer.client)
            yield replace(answer, payload=changed) if isinstance(answer, Reply) and changed else answer

    def exchange_folded(
        self, requests: Mapping[str, Request], make_folder: MakeFolder
    ) -> Iterator[Reply | Failure | PartialRound]:
        for worker in range(self.workers):
            share = {client: requests[client] for client in list(requests)[worker :: self.workers]}
            folder = pickle.loads(pickle.dumps(make_folder(list(share))))
            answers = [
                folder.fold_here(answer, share[answer.client]) if isinstance(answer, Reply) else answer
                for answer in self.exchange(share)
            ]
            if worker == self.dies:
                yield from (Failure(client, "its worker died") for client in share)
            else:
                yield pickle.loads(pickle.dumps(folder.result()))
                yield from answers


class Flat(Workers):
    """The same workers, whose uploads travel."""

    exchange_folded = None  # type: ignore[assignment]


def play(engine: Any, **settings: Any) -> list[dict[str, Any]]:
    held = {str(index): torch.tensor([index % 3, (index + 1) % 3]) for index in range(7)}
    with tm.Federation(
        clients=engine, public=PUBLIC, public_labels=LABELS, client_classes=held, **settings
    ) as federation:
        lines = federation.run(3).rounds
    return [asdict(line) for line in lines]


def near(found: Any) -> Any:
    if isinstance(found, dict):
        return {key: near(value) for key, value in found.items() if key != "seconds"}
    return pytest.approx(found, abs=1e-6) if isinstance(found, float) else found


def same(found: Sequence[dict[str, Any]], expected: Sequence[dict[str, Any]]) -> bool:
    """Up to the order of answers, times and 1e-6."""
    for one, other in zip(found, expected, strict=True):
        own = {key: value for key, value in one.items() if key != "seconds"}
        own["participants"], other = (
            sorted(own["participants"]),
            {**other, "participants": sorted(other["participants"])},
        )
        assert own == near(other)
    return True


@pytest.mark.parametrize("rule", ["avg", "uwa", "suwa", "trust"])
@pytest.mark.parametrize("workers", [1, 3])
def test_a_round_that_workers_fold_is_the_round_of_one_server(rule: str, workers: int) -> None:
    refused = {"4": b"nonsense"}
    found = play(Workers(clients(), workers, tamper=refused), rule=rule)
    assert same(found, play(Flat(clients(), workers, tamper=refused), rule=rule))
    assert [list(line["failed"]) for line in found] == [["4"]] * 3
    assert found[0]["failed"]["4"].startswith("upload refused: ")
    assert all(line["client_bytes_up"]["4"] == len(b"nonsense") for line in found)
    assert all(len(line["client_bytes_up"]) == 7 for line in found)


def test_nothing_of_a_worker_that_dies_is_in_the_teacher() -> None:
    found = play(Workers(clients(), dies=1), rule="avg", participation=Participation(quorum=0.1))
    assert all(set(line["failed"]) == {"1", "4"} for line in found[:-1])
    without = [client for client in clients() if client.id not in ("1", "4")]
    expected = play(tm.LocalEngine(without), rule="avg")
    assert found[0]["teacher_accuracy"] == expected[0]["teacher_accuracy"]
    assert found[0]["concentration"] == pytest.approx(1 / 5)


def test_a_late_upload_is_not_folded_and_the_server_says_that_it_is_late() -> None:
    engine = Workers(clients())
    with pytest.raises(tm.TrustmixError, match=r"answered after .* s, the deadline is 1e-09 s"):
        play(engine, rule="avg", participation=Participation(deadline=1e-9))


@pytest.mark.parametrize("settings", [{"guard": Guard()}, {"rule": "fedavg", "student": clients(1)[0]}])
def test_uploads_travel_where_the_rule_is_no_sum(settings: dict[str, Any]) -> None:
    with tm.Federation(clients=Workers(clients()), public=PUBLIC, **settings) as federation:
        assert federation.algorithm.make_folder(None) is None


def test_uploads_travel_where_a_callback_looks_at_them() -> None:
    class Watches(Callback):
        def on_upload(self, round_: int, upload: tm.Upload) -> None:
            seen.append(upload.client)

    seen: list[str] = []
    play(Workers(clients()), rule="avg", callbacks=[Watches()])
    assert len(seen) == 3 * 7


def test_an_answer_cannot_claim_that_it_was_folded() -> None:
    class Claims(Flat):
        def exchange(self, requests: Mapping[str, Request]) -> Iterator[Reply | Failure]:
            for answer in super().exchange(requests):
                if isinstance(answer, Reply) and answer.client == "0" and answer.payload is not None:
                    answer = replace(answer, payload=None, folded=10)
                yield answer

    found = play(Claims(clients()), rule="avg")
    assert all("upload refused" in line["failed"]["0"] for line in found)
