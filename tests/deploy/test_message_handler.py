"""A node's side of a run: its folder is its memory, and errors become replies."""

from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'trustmix[flower]'")

import trustmix as tm
from trustmix.deploy.message_handler import MessageHandler
from trustmix.deploy.records import unpack_record

from .flower_link import PUBLIC_SET, RUN, RUN_INFO, make_handler, make_message

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
def test_a_runs_id_names_no_other_folder(tmp_path: Path, run: str) -> None:
    facts = reply_facts(make_handler("north", tmp_path), "query.hello", {**RUN_INFO.model_dump(), "run": run})
    assert "is not the id of a run" in str(facts["failure"])
    assert [file.name for file in (tmp_path / "north").iterdir()] == [".lock"]


def test_a_description_of_a_run_that_lacks_a_field_is_refused(tmp_path: Path) -> None:
    facts = reply_facts(make_handler("north", tmp_path), "query.hello", {"run": RUN, "classes": "a"})
    assert "the server's description of the run is not valid" in str(facts["failure"])
    assert [file.name for file in (tmp_path / "north").iterdir()] == [".lock"]


def test_an_error_of_a_clients_model_becomes_a_reply(tmp_path: Path) -> None:
    def broken(*_: object) -> tm.Client:
        raise ZeroDivisionError("a bad model")

    handler = MessageHandler("north", tmp_path, broken)
    reply_facts(handler, *MESSAGES[0])
    assert reply_facts(handler, *MESSAGES[1]) == {"client": "north", "failure": "ZeroDivisionError: a bad model"}


def test_a_message_of_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    facts = reply_facts(make_handler("north", tmp_path), "evaluate", {"run": RUN})
    assert facts["failure"] == 'messages of the kind "evaluate" are not known'
