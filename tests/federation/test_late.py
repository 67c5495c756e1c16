"""Uploads that arrive after their round: used in the next one with less weight, or dropped."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import pytest
import torch

import trustmix as tm
from trustmix.aggregation import Upload
from trustmix.errors import TrustmixError
from trustmix.federation import Failure, Participation, Reply, Request
from trustmix.settings.recipe import Recipe
from trustmix.wire import encode_upload

PUBLIC = tm.Public(torch.rand(6, 4, generator=torch.Generator().manual_seed(0)), classes=3)
ROWS = {"quick": [0.7, 0.2, 0.1], "slow": [0.1, 0.1, 0.8]}
SMALL = ["clients=4", "rounds=4", "split.classes_per_client=5", "train.first_epochs=1", "engine.mode=sequential"]
LATE = ["participation.late=next", "faults.slow=0.25"]


class ScriptedEngine:
    """Two clients with fixed predictions; the answer of one of them arrives a round late, and then it is absent."""

    clients = ("quick", "slow")

    def __init__(self) -> None:
        self.teachers: dict[int, torch.Tensor] = {}

    def exchange(self, requests: Mapping[str, Request]) -> Iterator[Reply | Failure]:
        request = requests["quick"]
        if request.teacher is not None:
            self.teachers[request.round - 1] = PUBLIC.teacher(request.teacher, request.round - 1)
        yield self.reply("quick", request)
        late = self.reply("slow", Request(1)) if request.round == 3 else None
        yield Failure("slow", "no answer", kind="late", late=late)

    def reply(self, client: str, request: Request) -> Reply:
        rows = torch.tensor([ROWS[client]] * len(PUBLIC.inputs))
        upload = Upload.from_arrays(client, rows, torch.zeros(len(rows)))
        payload = encode_upload(upload, PUBLIC.header(client, request.round), "float32") if request.upload else None
        return Reply(client, request.round, payload, accuracy=0.25, seconds={"train": 1.0})

    def close(self) -> None:
        """There is nothing to release."""


def play(late: Literal["drop", "next"]) -> tuple[list[tm.Round], dict[int, torch.Tensor]]:
    engine = ScriptedEngine()
    federation = tm.Federation(clients=engine, public=PUBLIC, rule="avg", participation=Participation(late=late))
    return list(federation.run(4).rounds), engine.teachers


def test_an_upload_of_round_1_that_arrives_in_round_3_has_a_third_of_the_weight_there() -> None:
    lines, teachers = play("next")
    quick, slow = (torch.tensor(ROWS[client], dtype=torch.float64) for client in ("quick", "slow"))
    torch.testing.assert_close(teachers[3][0].double(), (quick + slow / 3) / (1 + 1 / 3), rtol=1e-6, atol=1e-6)
    for number in (1, 2, 4):
        torch.testing.assert_close(teachers[number][0].double(), quick, rtol=1e-6, atol=1e-6)
    third = lines[2]
    assert (third.participants, third.late, third.failed) == (["quick", "slow"], {"slow": 2}, {})
    assert third.accuracy == {"quick": 0.25}, "the figures of a late answer belong to another round"
    assert [line.absence for line in lines] == [{"slow": "late"}, {"slow": "late"}, {}, {"slow": "late"}]


def test_by_default_a_late_upload_is_dropped() -> None:
    lines, teachers = play("drop")
    assert all(line.participants == ["quick"] and not line.late for line in lines)
    assert torch.allclose(teachers[3][0].double(), torch.tensor(ROWS["quick"], dtype=torch.float64))


def test_a_slow_client_of_a_simulation_takes_part_in_every_other_round_and_a_resumed_run_has_the_same_numbers(
    tmp_path: Path,
) -> None:
    whole = tm.run(Recipe.load("demo", [*SMALL, *LATE]), out=tmp_path / "whole")
    assert [list(line.late.values()) for line in whole.rounds] == [[], [1], [], [1]]
    assert [len(line.participants) for line in whole.rounds] == [3, 4, 3, 4]

    class Stop(tm.Callback):
        def on_round_end(self, line: tm.Round) -> None:
            if line.round == 3:  # its late upload waits in the checkpoint for round 4
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tm.run(Recipe.load("demo", [*SMALL, *LATE]), out=tmp_path / "part", callbacks=[Stop()])
    resumed = tm.run(Recipe.load("demo", [*SMALL, *LATE]), out=tmp_path / "part", resume=True)
    assert [line.accuracy for line in resumed.rounds] == [line.accuracy for line in whole.rounds]
    assert [line.late for line in resumed.rounds] == [line.late for line in whole.rounds]


def test_settings_that_do_not_go_with_late_uploads_are_refused() -> None:
    with pytest.raises(TrustmixError, match=r"wire\.delta sends differences to the last teacher"):
        Recipe.load("demo", ["participation.late=next", "wire.delta=true"])
    with pytest.raises(TrustmixError, match="for methods that exchange predictions"):
        tm.run(Recipe.load("demo", ["participation.late=next", "rule=fedavg", *SMALL]))
