"""Pretrained weights fit the model, or one sentence names the reason why not."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from trustmix import TrustmixError
from trustmix.models import ModelFactory, bert_tiny, encoder, resnet18


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("executed",))


@pytest.mark.parametrize("form", ["safetensors", "pth", "folder"])
def test_resnet_takes_torchvisions_weights_in_half_precision_and_keeps_its_own_head(tmp_path: Path, form: str) -> None:
    torch.manual_seed(1)
    given = resnet18((3, 32, 32), 1000, stem="imagenet").state_dict()
    half = {name: value.half() if value.ndim > 1 else value for name, value in given.items()}
    file = tmp_path / ("w.pth" if form == "pth" else "model.safetensors")
    torch.save(half, file) if form == "pth" else safetensors.torch.save_file(half, file)
    model = resnet18((3, 32, 32), 10, stem="imagenet", weights=str(tmp_path if form == "folder" else file), enlarge=64)
    own = model.state_dict()
    torch.testing.assert_close(own["layer3.0.conv1.weight"], given["layer3.0.conv1.weight"], rtol=1e-3, atol=1e-4)
    assert own["fc.weight"].shape == (10, 512)
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_weights_of_another_architecture_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    safetensors.torch.save_file(resnet18((3, 32, 32), 10, stem="cifar").state_dict(), file)
    with pytest.raises(TrustmixError, match=r"another architecture: conv1.weight is \(64, 3, 3, 3\) instead of"):
        resnet18((3, 32, 32), 10, stem="imagenet", weights=str(file))
    with pytest.raises(TrustmixError, match=r"another architecture: embeddings.* is missing"):
        bert_tiny((16,), 10, weights=str(file))
    safetensors.torch.save_file({**resnet18((3, 32, 32), 10).state_dict(), "extra": torch.ones(1)}, file)
    with pytest.raises(TrustmixError, match="another architecture: the model has no extra"):
        resnet18((3, 32, 32), 10, weights=str(file))


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("w.safetensors", b"garbage", "is not a whole file of weights"),
        ("w.pth", b"garbage", "was not loaded|is not a whole file"),
        ("none.pth", None, "nothing of that name in .*none.pth, and it could not be fetched"),
    ],
)
def test_files_that_are_no_weights_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes | None, sentence: str
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(TrustmixError, match=sentence):
        resnet18((3, 32, 32), 10, weights=str(tmp_path / name))


def test_a_torch_file_is_loaded_without_executing_anything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"conv1.weight": Harmful()}, tmp_path / "w.pth")
    with pytest.raises(TrustmixError, match="holds more than tensors and was not loaded"):
        resnet18((3, 32, 32), 10, weights=str(tmp_path / "w.pth"))
    torch.save([torch.ones(1)], tmp_path / "w.pth")
    with pytest.raises(TrustmixError, match="is not a state dict"):
        resnet18((3, 32, 32), 10, weights=str(tmp_path / "w.pth"))
    assert "executed" not in capsys.readouterr().out


def save_encoder(folder: Path, **config: Any) -> Any:
    transformers: Any = importlib.import_module("transformers")
    network = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(**config))
    network.save_pretrained(folder)
    return network


def test_bert_tiny_and_encoder_take_the_weights_of_a_folder(tmp_path: Path) -> None:
    tiny = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}
    given = save_encoder(tmp_path / "bert", model_type="bert", **tiny)
    one, two = (build((16,), 10, weights=str(tmp_path / "bert")) for build in (bert_tiny, encoder))
    for model in (one, two):
        own = model.encoder.state_dict()  # type: ignore[union-attr]
        assert torch.equal(own["pooler.dense.weight"], given.state_dict()["pooler.dense.weight"])


@pytest.mark.parametrize("kind", ["distilbert", "roberta"])
def test_encoders_without_pooler_or_with_another_padding_ignore_padding(tmp_path: Path, kind: str) -> None:
    small: dict[str, Any] = {"vocab_size": 50}
    if kind == "distilbert":
        small |= {"dim": 32, "n_layers": 1, "n_heads": 2, "hidden_dim": 64}
    else:
        small |= {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    save_encoder(tmp_path / kind, model_type=kind, **small)
    model = encoder((16,), 3, weights=str(tmp_path / kind)).eval()
    tokens = torch.full((2, 16), -1, dtype=torch.int16)
    tokens[0, :4], tokens[1, :9] = 7, 8
    alone = torch.cat([model(tokens[:1, :4]), model(tokens[1:, :9])])
    torch.testing.assert_close(model(tokens), alone, rtol=1e-4, atol=1e-5)


def test_weights_saved_with_a_pretraining_head_are_taken_without_it(tmp_path: Path) -> None:
    own = bert_tiny((16,), 10).encoder.state_dict()  # type: ignore[union-attr]
    names = {f"bert.{name}": value.clone() for name, value in own.items()} | {"cls.predictions.bias": torch.ones(3)}
    safetensors.torch.save_file(names, tmp_path / "w.safetensors")
    model = bert_tiny((16,), 10, weights=str(tmp_path / "w.safetensors"))
    assert torch.equal(model.encoder.state_dict()["pooler.dense.weight"], own["pooler.dense.weight"])  # type: ignore[union-attr]
    with pytest.raises(TrustmixError, match=r"data.length is 1024; the weights of BERT-tiny take up to 512"):
        bert_tiny((1024,), 10, weights=str(tmp_path / "w.safetensors"))


def test_an_encoder_whose_file_lacks_layers_is_refused(tmp_path: Path) -> None:
    tiny = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 50}
    save_encoder(tmp_path / "bert", model_type="bert", num_hidden_layers=1, **tiny)
    config = json.loads((tmp_path / "bert/config.json").read_text())
    (tmp_path / "bert/config.json").write_text(json.dumps(config | {"num_hidden_layers": 2}))
    with pytest.raises(TrustmixError, match=r"another architecture: .*layer.1.* is missing"):
        encoder((16,), 3, weights=str(tmp_path / "bert"))
    (tmp_path / "bert/model.safetensors").write_bytes(b"cut")
    with pytest.raises(TrustmixError, match="is not an encoder of transformers"):
        encoder((16,), 3, weights=str(tmp_path / "bert"))


def test_a_padding_id_inside_a_text_does_not_cut_it() -> None:
    model = bert_tiny((8,), 3).eval()
    text = torch.tensor([[5, 0, 7, 9, -1, -1, -1, -1]])
    longer = torch.tensor([[5, 6, 7, 8, 9, 10, 11, 12]])
    together = model(torch.cat([text, longer]))[:1]
    torch.testing.assert_close(model(text), together, rtol=1e-4, atol=1e-5)


def test_a_folder_that_is_no_encoder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(TrustmixError, match="is not an encoder of transformers"):
        encoder((16,), 3, weights=str(tmp_path))


def test_the_same_weights_are_every_clients_start_but_heads_differ(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    safetensors.torch.save_file(resnet18((3, 32, 32), 1000).state_dict(), file)
    options = {"weights": str(file)}
    a, b = (ModelFactory("resnet18", None, options, (3, 32, 32), 10, client=c)().state_dict() for c in "ab")
    assert torch.equal(a["conv1.weight"], b["conv1.weight"])
    assert not torch.equal(a["fc.weight"], b["fc.weight"])
