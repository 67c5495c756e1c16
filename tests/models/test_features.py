"""Features are the inputs of the last layer."""

import pytest
import torch
from torch import nn

from trustmix import TrustmixError
from trustmix.learners import DeviceConfig
from trustmix.learners.training import predict
from trustmix.models import ModelFactory, WithFeatures

IMAGES = torch.randint(0, 256, (300, 1, 28, 28), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


@pytest.mark.parametrize(("name", "last", "width"), [("mlp", "1.3", 64), ("cnn", "1.7", 32 * 7 * 7)])
def test_logits_are_the_last_layer_of_the_features(name: str, last: str, width: int) -> None:
    model = ModelFactory(name, shape=(1, 28, 28), classes=10, scale=((0.3,), (0.3,)))()
    both = predict(WithFeatures(model), IMAGES, DeviceConfig())
    logits, features = both[:, :10], both[:, 10:]
    assert features.shape == (300, width)
    assert torch.equal(logits, predict(model, IMAGES, DeviceConfig()))
    torch.testing.assert_close(model.get_submodule(last)(features), logits)


class Cosine(nn.Module):
    """A classifier whose last layer is no linear one, and comes first in its list of modules."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.CosineSimilarity(-1)
        self.body = nn.Linear(4, 3)
        self.other = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.body(x).unsqueeze(1), self.other.weight)
        return scores


class Own(nn.Module):
    """A classifier whose layers are not listed in the order they are used."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.add_module(name, nn.Linear(3, 2))
        self.body = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.get_submodule(self.name)(self.body(x))
        return logits


def test_a_module_called_head_is_the_last_layer_wherever_it_is_listed() -> None:
    model = Own("head")
    x = torch.rand(5, 4)
    torch.testing.assert_close(WithFeatures(nn.Sequential(model))(x)[:, 2:], model.body(x))


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten()), r"neither a linear layer nor a module called head"),
        (Own("top"), r"does not turn \(N, D\) into its logits .*; call the one that does `head`"),
        (Cosine(), r"does not turn \(N, D\) into its logits"),
    ],
)
def test_a_model_without_features_is_refused(model: nn.Module, sentence: str) -> None:
    x = torch.rand(5, 1, 2, 2) if isinstance(model, nn.Sequential) else torch.rand(5, 4)
    with pytest.raises(TrustmixError, match=sentence):
        WithFeatures(model)(x)
