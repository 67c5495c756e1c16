"""Uploads that are folded where clients run give the round of uploads that travel, whatever the workers."""

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn

import trustmix as tm
from trustmix.aggregation import Accumulator, Guard, Trust
from trustmix.federation import Callback, Client, Failure, Participation, Reply, Request
from trustmix.federation.folding import MakeFolder, PartialRound, UploadFolder
from trustmix.wire import MessageHeader, encode_upload

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


HEADER = MessageHeader("", 5, "0" * 16, samples=30, classes=3)


def reply(round_: int = 5, scores: Any = None, held: list[int] | None = None, **fields: Any) -> Reply:
    """The answer of client north in round 5, or in an earlier one."""
    q = torch.softmax(torch.randn(30, 3, generator=torch.Generator().manual_seed(round_)), 1)
    upload = tm.Upload.from_arrays("north", q, torch.arange(30.0) if scores is None else scores, class_counts=held)
    payload = encode_upload(upload, replace(HEADER, sender="north", round=round_), "float32")
    return Reply("north", round_, payload, **fields)


def test_scores_are_measured_on_the_public_samples_whose_labels_are_known() -> None:
    """The area under the curve is scikit-learn's; label 0 is a label, and -1 is none."""
    labels = torch.tensor([-1, 0, 1, 2, 0, 2]).repeat(5)
    scores = torch.randn(30, generator=torch.Generator().manual_seed(1))
    folder = UploadFolder(Accumulator(), HEADER, public_labels=labels, client_classes={"north": torch.tensor([0, 2])})
    folder.fold(reply(scores=scores))
    known = labels >= 0
    expected = roc_auc_score(labels[known] != 1, scores[known])
    assert folder.density_aucs == [pytest.approx(expected, abs=1e-9)]
    assert folder.result().density_aucs == folder.density_aucs


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (None, {"north": torch.tensor([0])}),
        (LABELS, {"south": torch.tensor([0])}),
        (LABELS, {"north": torch.tensor([0, 1, 2])}),
        (LABELS % 2, {"north": torch.tensor([2])}),
    ],
    ids=["no labels", "an unknown client", "all own", "none own"],
)
def test_scores_are_not_measured_where_there_is_nothing_to_tell_apart(
    labels: torch.Tensor | None, classes: dict[str, torch.Tensor]
) -> None:
    folder = UploadFolder(Accumulator(), HEADER, public_labels=labels, client_classes=classes)
    folder.fold(reply())
    assert folder.density_aucs == []
    assert folder.aggregator.n_clients == 1


@pytest.mark.parametrize("own", [1, 29])
def test_one_sample_of_either_side_is_enough_to_measure_scores(own: int) -> None:
    labels = (torch.arange(30) >= own).long()
    folder = UploadFolder(Accumulator(), HEADER, public_labels=labels, client_classes={"north": torch.tensor([0])})
    folder.fold(reply())  # the scores rise, and its own samples come first
    assert folder.density_aucs == [0.0]


@pytest.mark.parametrize(("round_", "weight"), [(5, 1.0), (4, 1 / 2), (3, 1 / 3), (2, 1 / 4)])
def test_an_upload_counts_by_its_age(round_: int, weight: float) -> None:
    assert UploadFolder(Accumulator(), HEADER).fold(reply(round_)).weight == pytest.approx(weight)


@pytest.mark.parametrize(
    ("settings", "kept"), [({}, True), ({"uses_label_sets": True}, True), ({"uses_label_sets": False}, False)]
)
def test_a_label_set_that_the_rule_does_not_use_is_put_aside(settings: dict[str, bool], kept: bool) -> None:
    found = UploadFolder(Trust(), HEADER, **settings).fold(reply(held=[4, 0, 7])).class_counts  # type: ignore[arg-type]
    assert (None if found is None else found.tolist()) == ([4, 0, 7] if kept else None)


@pytest.mark.parametrize(
    ("labels", "held", "sentence"),
    [
        ("none", [1, 0, 1], "has a label set, which was not asked for: wire.labels = none"),
        ("set", [1, 0, 2], "the label set has a count of 2; wire.labels = set is 1 for each class"),
        ("set", [1, 0, 1], None),
        ("counts", [9, 0, 1], None),
        (None, [9, 0, 1], None),
        ("none", None, None),
    ],
)
def test_no_more_of_a_label_set_is_taken_than_was_asked_for(labels: Any, held: Any, sentence: str | None) -> None:
    folder = UploadFolder(Trust(), HEADER, labels=labels)
    if sentence is None:
        folder.fold(reply(held=held))
    else:
        with pytest.raises(tm.TrustmixError, match=sentence):
            folder.fold(reply(held=held))
    assert folder.aggregator.n_clients == (1 if sentence is None else 0)


@pytest.mark.parametrize(
    ("answer", "folded"),
    [
        (reply(seconds={"train": 1.0, "distil": 1.0}), True),
        (reply(seconds={"train": 1.0, "distil": 1.5}), False),
        (reply(seconds={"train": 3.0}), False),
        (reply(4), False),
        (Reply("north", 5), False),
        (Reply("north", 5, b"nonsense"), False),
    ],
    ids=["in time", "late in all", "late", "of an earlier round", "without an upload", "refused"],
)
def test_a_worker_folds_what_is_in_time_and_leaves_the_rest_to_the_server(answer: Reply, folded: bool) -> None:
    folder = UploadFolder(Accumulator(), HEADER, deadline=2.0)
    found = folder.fold_here(answer, Request(5))
    assert found == (replace(answer, payload=None, folded=len(answer.payload or b"")) if folded else answer)
    assert folder.result().aggregator.n_clients == int(folded)


def test_without_a_deadline_no_answer_is_late() -> None:
    answer = reply(seconds={"train": 1e9})
    assert UploadFolder(Accumulator(), HEADER).fold_here(answer, Request(5)).payload is None
