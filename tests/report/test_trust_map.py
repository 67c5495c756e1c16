"""What runs record of trust, as the page reads it: bytes, images, and no more of them than a page holds."""

import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from trustmix import storage
from trustmix.callbacks.trust_log import RoundTrust
from trustmix.errors import TrustmixError
from trustmix.report import trust_map
from trustmix.report.load import load_study

Write = Callable[..., Any]


@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_png_files_that_pillow_reads(channels: int) -> None:
    image = torch.randint(256, (channels, 5, 7), dtype=torch.uint8)
    read = np.asarray(Image.open(io.BytesIO(trust_map.encode_png(image))))
    assert np.array_equal(read if channels == 3 else read[:, :, None], image.permute(1, 2, 0).numpy())


def decode(text: str, *shape: int) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), np.uint8).reshape(shape)


def test_the_page_gets_what_the_run_has_recorded(tmp_path: Path, run_directory: Write) -> None:
    run_directory(tmp_path / "run", ["clients=4", "rounds=3"])
    data = trust_map.build_trust_data(load_study([tmp_path / "run"]))
    assert data is not None
    (run,) = data["runs"]
    recorded = RoundTrust.load(tmp_path / "run" / "trust" / "000002.safetensors")
    rows = [list(recorded.clients).index(client) for client in run["clients"]]
    assert run["rounds"] == [1, 2, 3]
    assert run["held"] == sorted(run["held"])
    trust = decode(run["trust"], 3, 4, 10)[1] / 255
    assert np.allclose(trust, recorded.trust[rows].float().numpy(), atol=0.003)
    assert np.array_equal(decode(run["votes"], 3, 4, 60)[1], recorded.votes[rows].numpy())
    assert np.array_equal(decode(run["top"], 3, 60, 3)[1][:, 0], recorded.teacher.argmax(1).numpy())
    truth = [sample["truth"] for sample in data["samples"][0]]
    probability = recorded.teacher[torch.arange(60), torch.tensor(truth)].float().numpy()
    assert np.allclose(decode(run["truth"], 3, 60)[1] / 255, probability, atol=0.003)


def test_rounds_are_left_out_evenly_and_then_runs_where_all_would_be_too_large(
    tmp_path: Path, run_directory: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rule in ("avg", "suwa"):
        run_directory(tmp_path / rule, ["clients=4", "rounds=6", f"rule={rule}"])
    study = load_study([tmp_path / "avg", tmp_path / "suwa"])
    whole = trust_map.build_trust_data(study)
    assert whole is not None
    images = sum(len(str(samples)) for samples in whole["samples"])
    size = sum(len(run[key]) for run in whole["runs"] for key in ("trust", "shares", "votes", "top", "chance", "truth"))
    monkeypatch.setattr(trust_map, "MAX_BYTES", images + size // 2 + 100)
    half = trust_map.build_trust_data(study)
    assert half is not None
    assert [run["rounds"] for run in half["runs"]] == [[2, 4, 6], [2, 4, 6]]
    monkeypatch.setattr(trust_map, "MAX_BYTES", images + size // 12 + 100)
    fewer = trust_map.build_trust_data(study)
    assert fewer is not None
    assert [run["rounds"] for run in fewer["runs"]] == [[6]]


def test_a_file_that_describes_something_else_is_named_in_the_error(tmp_path: Path, run_directory: Write) -> None:
    run_directory(tmp_path / "run", ["clients=4", "rounds=1"])
    storage.write_tensors(tmp_path / "run" / "trust" / "samples.safetensors", {}, {})
    with pytest.raises(TrustmixError, match="does not describe public samples"):
        trust_map.build_trust_data(load_study([tmp_path / "run"]))
