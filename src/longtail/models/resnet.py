"""Residual networks: He et al.'s small ones for CIFAR, and the large ones under torchvision's parameter names."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn.functional import max_pool2d, pad, relu

from .heads import Classifier, he_init, make_head


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions; the shortcut is ``downsample`` where given, else parameter-free (subsample, zero-pad)."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int = 1, downsample: nn.Module | None = None) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(inputs, width, 3, stride), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = _conv(width, width, 3), nn.BatchNorm2d(width)
        self.downsample = downsample
        self.stride, self.padding = stride, width - inputs

    def shortcut(self, x: Tensor) -> Tensor:
        if self.downsample is not None:
            shortcut: Tensor = self.downsample(x)
            return shortcut
        if self.stride > 1:
            x = x[:, :, :: self.stride, :: self.stride]
        half = self.padding // 2
        return pad(x, (0, 0, 0, 0, half, self.padding - half)) if self.padding else x

    def forward(self, x: Tensor) -> Tensor:
        y = relu(self.bn1(self.conv1(x)), inplace=True)
        return relu(self.bn2(self.conv2(y)) + self.shortcut(x), inplace=True)


class Bottleneck(nn.Module):
    """1×1, 3×3, 1×1 with four times the width at the end; the stride sits on the 3×3, as in torchvision."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int = 1, downsample: nn.Module | None = None) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(inputs, width, 1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = _conv(width, width, 3, stride), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = _conv(width, 4 * width, 1), nn.BatchNorm2d(4 * width)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        y = relu(self.bn1(self.conv1(x)), inplace=True)
        y = relu(self.bn2(self.conv2(y)), inplace=True)
        shortcut = x if self.downsample is None else self.downsample(x)
        return relu(self.bn3(self.conv3(y)) + shortcut, inplace=True)


class CifarResNet(Classifier):
    """He et al.'s ResNet for 32×32 images: 16-32-64 channels, ``blocks`` a stage, parameter-free shortcuts, K = 64.

    ``blocks=5`` is ResNet-32: 464,154 parameters with 10 classes, 470,004 with 100. Any image size from 4×4 on works.
    """

    embedding_size = 64

    def __init__(self, blocks: int, num_classes: int, channels: int = 3, head: str = "linear") -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(channels, 16, 3), nn.BatchNorm2d(16)
        self.layer1 = self._stage(16, 16, blocks, 1)
        self.layer2 = self._stage(16, 32, blocks, 2)
        self.layer3 = self._stage(32, 64, blocks, 2)
        self.head = make_head(head, self.embedding_size, num_classes)
        he_init(self)

    @staticmethod
    def _stage(inputs: int, width: int, blocks: int, stride: int) -> nn.Sequential:
        return nn.Sequential(BasicBlock(inputs, width, stride), *(BasicBlock(width, width) for _ in range(blocks - 1)))

    def embed(self, x: Tensor) -> Tensor:
        x = relu(self.bn1(self.conv1(x)), inplace=True)
        x = self.layer3(self.layer2(self.layer1(x)))
        return x.mean((2, 3))


class ResNet(Classifier):
    """ResNet-18/34 (K = 512) and 50/101 (K = 2048) for photographs, with torchvision's names: its weight files load.

    The last layer is ``fc`` among the parameters, and ``head`` to the rest of this package.
    """

    head_name = "fc"

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        blocks: Sequence[int],
        num_classes: int,
        channels: int = 3,
        head: str = "linear",
    ) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(64)
        inputs = 64
        for i, count in enumerate(blocks):
            width, stride = 64 * 2**i, 1 if i == 0 else 2
            setattr(self, f"layer{i + 1}", self._stage(block, inputs, width, count, stride))
            inputs = width * block.expansion
        self.embedding_size = inputs
        self.head = make_head(head, inputs, num_classes)
        he_init(self)

    @staticmethod
    def _stage(
        block: type[BasicBlock] | type[Bottleneck], inputs: int, width: int, count: int, stride: int
    ) -> nn.Sequential:
        outputs = width * block.expansion
        downsample = None
        if stride != 1 or inputs != outputs:
            downsample = nn.Sequential(_conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))
        return nn.Sequential(
            block(inputs, width, stride, downsample), *(block(outputs, width) for _ in range(count - 1))
        )

    def embed(self, x: Tensor) -> Tensor:
        x = max_pool2d(relu(self.bn1(self.conv1(x)), inplace=True), 3, stride=2, padding=1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return x.mean((2, 3))


# Blocks a stage; the name counts the layers with weights (6n + 2 in the small ones).
CIFAR_BLOCKS = {"resnet20": 3, "resnet32": 5, "resnet44": 7, "resnet56": 9}
LARGE_BLOCKS: dict[str, tuple[type[BasicBlock] | type[Bottleneck], tuple[int, ...]]] = {
    "resnet18": (BasicBlock, (2, 2, 2, 2)),
    "resnet34": (BasicBlock, (3, 4, 6, 3)),
    "resnet50": (Bottleneck, (3, 4, 6, 3)),
    "resnet101": (Bottleneck, (3, 4, 23, 3)),
}


def resnet(name: str, num_classes: int, channels: int = 3, head: str = "linear") -> CifarResNet | ResNet:
    """A residual network by name: 20, 32, 44, 56 are the CIFAR ones, 18, 34, 50, 101 the large ones."""
    if name in CIFAR_BLOCKS:
        return CifarResNet(CIFAR_BLOCKS[name], num_classes, channels, head)
    return ResNet(*LARGE_BLOCKS[name], num_classes, channels, head)
