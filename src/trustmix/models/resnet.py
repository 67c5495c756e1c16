"""ResNet-18 (He et al. 2016), written out so that nothing but torch is needed.

Parameters have the names of torchvision's implementation, so that its weights can be loaded.
"""

import torch
from torch import nn
from torch.nn.functional import interpolate

from trustmix.errors import TrustmixError
from trustmix.models.pretrained import load_weights
from trustmix.models.registry import MODELS


class _BasicBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.downsample = (
            nn.Sequential(nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels))
            if stride != 1 or in_channels != out_channels
            else nn.Identity()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (N, in_channels, H, W) to (N, out_channels, H / stride, W / stride)."""
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.downsample(x))


class ResNet18(nn.Module):
    """The network.

    Parameters
    ----------
    channels
        Channels of an image.
    classes
        Number of classes.
    stem
        "cifar" (3 x 3 convolution, no pooling, for small images) or "imagenet" (7 x 7 convolution and pooling).
    enlarge
        Height and width in pixels to which images are scaled first, or None.
    width
        Channels of the first stage; each of the three later stages has twice as many as the one before.
    """

    def __init__(self, channels: int, classes: int, stem: str, enlarge: int | None, width: int = 64) -> None:
        super().__init__()
        self.enlarge = enlarge
        small = stem == "cifar"
        self.conv1 = nn.Conv2d(channels, width, 3 if small else 7, 1 if small else 2, 1 if small else 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, 2, 1)
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        for index in range(1, 5):
            first = _BasicBlock(widths[index - 1], widths[index], 1 if index == 1 else 2)
            self.add_module(f"layer{index}", nn.Sequential(first, _BasicBlock(widths[index], widths[index], 1)))
        self.fc = nn.Linear(8 * width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map images (N, channels, H, W) to logits (N, classes)."""
        if self.enlarge is not None:
            x = interpolate(x, size=(self.enlarge, self.enlarge), mode="bilinear", antialias=False)
        x = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
        for index in range(1, 5):
            x = self.get_submodule(f"layer{index}")(x)
        logits: torch.Tensor = self.fc(x.mean((2, 3)))
        return logits


@MODELS.register("resnet18")
def resnet18(
    shape: tuple[int, ...],
    classes: int,
    *,
    stem: str = "cifar",
    weights: str | None = None,
    enlarge: int | None = None,
    width: int = 64,
) -> nn.Module:
    """Build a ResNet-18 from scratch or from pretrained weights.

    Parameters
    ----------
    shape
        Shape of one image: channels, height, width.
    classes
        Number of classes.
    stem
        "cifar" for small images, "imagenet" for the stem of the paper, which pretrained weights have.
    weights
        A file, a folder or a name on the hub with weights under torchvision's names. The last layer of the weights
        may have any number of classes; it is not loaded if its size differs.
    enlarge
        Height and width in pixels to which images are scaled first, for networks that were trained on large images.
    width
        Channels of the first stage, 64 in the paper; half the width is about a quarter of the arithmetic.

    Returns
    -------
    nn.Module
        A network that maps floats (batch, channels, height, width) to logits (batch, classes).

    Raises
    ------
    TrustmixError
        If the inputs are not images, the stem is unknown, the width is no positive number, or the weights are of
        another architecture.

    Examples
    --------
    >>> sum(p.numel() for p in resnet18((3, 32, 32), 10).parameters())
    11173962
    >>> sum(p.numel() for p in resnet18((3, 32, 32), 10, width=16).parameters())
    701466
    >>> resnet18((3, 32, 32), 10)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    if len(shape) != 3:
        raise TrustmixError(f'The model "resnet18" takes images (channels, height, width), not {shape}.')
    if stem not in ("cifar", "imagenet"):
        raise TrustmixError(f'model.stem is "{stem}"; it must be "cifar" or "imagenet".')
    if width < 1:
        raise TrustmixError(f"model.width is {width}; it must be 1 or more.")
    network = ResNet18(shape[0], classes, stem, enlarge, width)
    if weights is not None:
        load_weights(network, weights, head=("fc.",))
    return network
