"""A node's side of a run: its folder is its memory, and errors become replies."""

import stat
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'trustmix[flower]'")

import trustmix as tm
from trustmix.deploy.message_handler import MessageHandler
from trustmix.deploy.run_info import RunInfo
from trustmix.errors import TrustmixError
from trustmix.federation import Reply, Request
from trustmix.transport.flower_records import unpack_record
from trustmix.transport.refusal import DISK, FAILED, MESSAGE, STEP

from ..transport.flower_messages import make_message
from .flower_link import PUBLIC_SET, RUN, RUN_INFO, build_model, make_handler

MESSAGES: list[tuple[str, dict[str, object], bytes | None]] = [
    ("query.hello", RUN_INFO.model_dump(), None),
    ("query.public", {"run": RUN}, PUBLIC_SET),
    ("train", {"run": RUN, "round": 1, "train": True, "upload": True}, None),
    ("train", {"run": RUN, "round": 2, "train": True, "upload": True}, None),
]


def reply_facts(
    handler: MessageHandler, kind: str, facts: dict[str, object], payload: bytes | None = None
) -> dict[str, object]:
    return unpack_record(handler.handle(make_message(kind, facts, payload)).content)[0]


def test_one_process_per_message_gives_the_states_of_a_process_that_stays(tmp_path: Path) -> None:
    """As under `flwr run`, where the client continues from its own disk."""
    staying = make_handler("staying", tmp_path)
    for message in MESSAGES:
        assert "failure" not in reply_facts(staying, *message)
        assert "failure" not in reply_facts(make_handler("passing", tmp_path), *message)
    states = {name: sorted((tmp_path / name / RUN / "states").glob("*")) for name in ("staying", "passing")}
    names = {name: [file.name for file in files] for name, files in states.items()}
    assert names["staying"] == names["passing"] == ["000001.safetensors", "000002.safetensors"]


@pytest.mark.parametrize("run", ["../../etc", "", "0123456789ABCDEF", "0" * 15, "0" * 400])
def test_a_runs_id_names_no_other_folder(tmp_path: Path, run: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    facts = reply_facts(make_handler("north", tmp_path), "query.hello", {**RUN_INFO.model_dump(), "run": run})
    assert facts["failure"] == MESSAGE
    assert "is not the id of a run" in caplog.text
    assert [file.name for file in (tmp_path / "north").iterdir()] == [".lock"]


@pytest.mark.parametrize("change", [{"classes": "a"}, {"recipe": None}, {"recipe": "x" * 10**8}])
def test_a_description_of_a_run_that_lacks_a_field_or_is_endless_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: dict[str, object]
) -> None:
    caplog.set_level("INFO")
    facts = reply_facts(make_handler("north", tmp_path), "query.hello", {**RUN_INFO.model_dump(), **change})
    assert facts["failure"] == MESSAGE
    assert "the server's description of the run is not valid" in caplog.text
    assert [file.name for file in (tmp_path / "north").iterdir()] == [".lock"]


def test_others_cannot_enter_a_nodes_folder(tmp_path: Path) -> None:
    (tmp_path / "north").mkdir(mode=0o755)
    reply_facts(make_handler("north", tmp_path), *MESSAGES[0])
    assert stat.S_IMODE((tmp_path / "north").stat().st_mode) == 0o700


PRIVATE = "row 61 of /home/ann/patients.csv: diagnosis of Bob is HIV"


def test_the_server_gets_a_reason_of_a_fixed_list_and_the_nodes_log_the_details(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    def broken(*_: object) -> tm.Client:
        raise ZeroDivisionError(PRIVATE)

    handler = MessageHandler("north", tmp_path, broken)
    reply_facts(handler, *MESSAGES[0])
    assert reply_facts(handler, *MESSAGES[1]) == {"client": "north", "failure": FAILED}
    assert f"client north answers that {FAILED}: {PRIVATE}" in caplog.text


def test_the_reason_of_a_step_that_fails_is_of_the_fixed_list_too(tmp_path: Path) -> None:
    class BrokenClient(tm.Client):
        def step(self, request: Request) -> Reply:
            raise TrustmixError(PRIVATE)

    def build(_: RunInfo, public: tm.Public, __: Path) -> tm.Client:
        x, y = torch.rand(40, 4), torch.arange(40) % 2
        return BrokenClient.from_arrays("north", build_model, x, y, public=public)

    handler = MessageHandler("north", tmp_path, build)
    found = [reply_facts(handler, *message) for message in MESSAGES]
    assert [facts.get("failure") for facts in found] == [None, None, STEP, STEP]


def test_a_server_cannot_fill_the_nodes_disk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    handler = replace(make_handler("north", tmp_path), max_bytes=len(PUBLIC_SET) + 500)
    assert "failure" not in reply_facts(handler, *MESSAGES[0])
    assert "failure" not in reply_facts(handler, *MESSAGES[1])
    facts = reply_facts(handler, "query.public", {"run": "f" * 16}, PUBLIC_SET)
    assert facts["failure"] == DISK
    assert "more than allow.disk in the node's file" in caplog.text
    assert not (tmp_path / "north" / ("f" * 16)).exists()


def test_a_message_of_an_unknown_kind_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert reply_facts(make_handler("north", tmp_path), "evaluate", {"run": RUN})["failure"] == MESSAGE
    assert 'messages of the kind "evaluate" are not known' in caplog.text
