"""ResNet-18 and BERT-tiny: the networks they claim to be."""

import subprocess
import sys
from typing import Any

import pytest
import torch

import trustmix as tm
from trustmix import TrustmixError
from trustmix.engines.local import ExecutionPlan, LocalEngine
from trustmix.models import bert_tiny, resnet18


def test_resnet18_has_the_size_of_the_paper_and_torchvisions_names() -> None:
    model = resnet18((3, 224, 224), 1000, stem="imagenet")
    assert sum(p.numel() for p in model.parameters()) == 11_689_512
    names = set(model.state_dict())
    assert {
        "conv1.weight",
        "bn1.running_var",
        "layer2.0.downsample.0.weight",
        "layer4.1.conv2.weight",
        "fc.bias",
    } <= names
    assert len(names) == 122
    assert model(torch.zeros(1, 3, 64, 64)).shape == (1, 1000)


def test_bert_tiny_has_the_size_of_the_paper_and_ignores_padding() -> None:
    torch.manual_seed(0)
    model = bert_tiny((32,), 10).eval()
    encoder = sum(p.numel() for name, p in model.named_parameters() if name.startswith("encoder."))
    assert encoder == 4_385_920
    tokens = torch.zeros(3, 32, dtype=torch.int32)
    tokens[0, :5], tokens[1, :9], tokens[2, :3] = 7, 11, 13
    together = model(tokens)
    alone = torch.cat([model(row[None, : int((row != 0).sum())]) for row in tokens])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_padding_that_no_text_of_a_batch_needs_costs_nothing() -> None:
    model = bert_tiny((512,), 10).eval()
    lengths: list[int] = []
    model.encoder.register_forward_pre_hook(  # type: ignore[union-attr]
        lambda _, __, kwargs: lengths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    tokens = torch.zeros(4, 512, dtype=torch.int32)
    tokens[:, :17] = 5
    model(tokens)
    assert lengths == [17]


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: resnet18((64,), 10), "takes images"),
        (lambda: resnet18((3, 32, 32), 10, stem="mnist"), 'must be "cifar" or "imagenet"'),
        (lambda: bert_tiny((3, 32, 32), 10), "takes token ids"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(build: object, sentence: str) -> None:
    with pytest.raises(TrustmixError, match=sentence):
        build()  # type: ignore[operator]


def test_without_transformers_the_sentence_says_what_to_install() -> None:
    code = "import sys; sys.modules['transformers'] = None\nfrom trustmix.models import bert_tiny\nbert_tiny((8,), 2)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert 'needs transformers: pip install "trustmix[text]"' in result.stderr


def test_deep_models_learn_together_in_worker_processes() -> None:
    labels = torch.arange(16) % 2
    images = torch.rand(16, 1, 8, 8) + labels.view(-1, 1, 1, 1)
    public = tm.Public(images, classes=2)

    def deep() -> torch.nn.Module:
        torch.manual_seed(0)
        return resnet18((1, 8, 8), 2)

    training = tm.Training(first_epochs=1, batch=8)
    settings: dict[str, Any] = {"public": public, "training": training, "test": tm.Labelled(images, labels)}
    clients = [tm.Client.from_arrays(str(i), deep, images, labels, **settings) for i in range(2)]
    engine = LocalEngine(clients, ExecutionPlan("processes", 2))
    history = tm.Federation(clients=engine, public=public).run(1)
    engine.close()
    assert history.rounds[0].failed == {}
    assert set(history.rounds[0].accuracy) == {"0", "1"}
