"""ResNet-18 has the layers and the parameter names of the published network."""

from typing import Any

import pytest
import torch

import trustmix as tm
from trustmix import TrustmixError
from trustmix.engines.local import ExecutionPlan, LocalEngine
from trustmix.models import resnet18


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


def test_a_thin_network_has_the_same_layers_with_fewer_channels() -> None:
    full, thin = (resnet18((3, 32, 32), 10, width=width).state_dict() for width in (64, 16))
    assert list(full) == list(thin)
    for name, tensor in full.items():
        fixed = {3, 10} if name in ("conv1.weight", "fc.weight", "fc.bias") else set()
        expected = [size if size in {*fixed, 1, 3} else size // 4 for size in tensor.shape]
        assert list(thin[name].shape) == expected, name
    with pytest.raises(TrustmixError, match=r"model\.width is 0; it must be 1 or more"):
        resnet18((3, 32, 32), 10, width=0)


@pytest.mark.parametrize(
    ("shape", "stem", "sentence"),
    [((64,), "cifar", "takes images"), ((3, 32, 32), "mnist", 'must be "cifar" or "imagenet"')],
)
def test_inputs_and_stems_that_do_not_fit_are_refused(shape: tuple[int, ...], stem: str, sentence: str) -> None:
    with pytest.raises(TrustmixError, match=sentence):
        resnet18(shape, 10, stem=stem)


def test_residual_networks_learn_together_in_worker_processes() -> None:
    labels = torch.arange(16) % 2
    images = torch.rand(16, 1, 8, 8) + labels.view(-1, 1, 1, 1)
    public = tm.Public(images, classes=2)

    def network() -> torch.nn.Module:
        torch.manual_seed(0)
        return resnet18((1, 8, 8), 2)

    training = tm.Training(first_epochs=1, batch=8)
    settings: dict[str, Any] = {"public": public, "training": training, "test": tm.Labelled(images, labels)}
    clients = [tm.Client.from_arrays(str(i), network, images, labels, **settings) for i in range(2)]
    engine = LocalEngine(clients, ExecutionPlan("processes", 2))
    history = tm.Federation(clients=engine, public=public).run(1)
    engine.close()
    assert history.rounds[0].failed == {}
    assert set(history.rounds[0].accuracy) == {"0", "1"}
