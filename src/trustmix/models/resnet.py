"""ResNet-18 (He et al. 2016), written out so that nothing but torch is needed; tensors have torchvision's names."""

import torch
from torch import nn
from torch.nn.functional import interpolate

from trustmix.errors import TrustmixError
from trustmix.models.networks import MODELS
from trustmix.models.pretrained import load_weights


class _Block(nn.Module):
    """Two 3 x 3 convolutions and a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.downsample = (
            nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))
            if stride != 1 or inside != outside
            else nn.Identity()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, inside, H, W) to (N, outside, H / stride, W / stride)."""
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.downsample(x))


class ResNet18(nn.Module):
    """The network; `stem` is "cifar" (3 x 3, no pooling, for small images) or "imagenet" (7 x 7 and pooling)."""

    def __init__(self, channels: int, classes: int, stem: str, enlarge: int | None) -> None:
        super().__init__()
        self.enlarge = enlarge
        small = stem == "cifar"
        self.conv1 = nn.Conv2d(channels, 64, 3 if small else 7, 1 if small else 2, 1 if small else 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, 2, 1)
        widths = [64, 64, 128, 256, 512]
        for index in range(1, 5):
            first = _Block(widths[index - 1], widths[index], 1 if index == 1 else 2)
            self.add_module(f"layer{index}", nn.Sequential(first, _Block(widths[index], widths[index], 1)))
        self.fc = nn.Linear(512, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, channels, H, W) to logits (N, classes)."""
        if self.enlarge is not None:
            x = interpolate(x, size=(self.enlarge, self.enlarge), mode="bilinear", antialias=False)
        x = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
        for index in range(1, 5):
            x = self.get_submodule(f"layer{index}")(x)
        logits: torch.Tensor = self.fc(x.mean((2, 3)))
        return logits


@MODELS.register("resnet18")
def resnet18(
    shape: tuple[int, ...], classes: int, *, stem: str = "cifar", weights: str | None = None, enlarge: int | None = None
) -> nn.Module:
    """ResNet-18 from scratch, or from `weights` with torchvision's names, whatever their last layer's classes.

    `enlarge` scales images to that many pixels first, as networks trained on large images want them.

    >>> sum(p.numel() for p in resnet18((3, 32, 32), 10).parameters())
    11173962
    >>> resnet18((3, 32, 32), 10)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    if len(shape) != 3:
        raise TrustmixError(f'The model "resnet18" takes images (channels, height, width), not {shape}.')
    if stem not in ("cifar", "imagenet"):
        raise TrustmixError(f'model.stem is "{stem}"; it must be "cifar" or "imagenet".')
    network = ResNet18(shape[0], classes, stem, enlarge)
    if weights is not None:
        load_weights(network, weights, head=("fc.",))
    return network
