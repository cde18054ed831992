"""Face parsing: BiSeNet with a ResNet-18 context path, 19 classes. State-dict keys are those of `79999_iter.pth`.

Classes: 0 background, 1 skin, 2/3 brows, 4/5 eyes, 6 glasses, 7/8 ears, 9 earring, 10 nose, 11 mouth, 12/13 lips, 14 neck,
15 necklace, 16 cloth, 17 hair, 18 hat. Inference only. Source: spec/musetalk.md 2.5 and the published key list.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

N_CLASSES = 19


class _Residual(nn.Module):
    """ResNet's basic block: two 3x3 convolutions and a skip, which is projected where the shape changes."""

    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(c_out)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(c_out)
        self.downsample = None
        if stride != 1 or c_in != c_out:
            self.downsample = nn.Sequential(
                nn.Conv2d(c_in, c_out, 1, stride, bias=False), nn.BatchNorm2d(c_out)
            )

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(hidden + (x if self.downsample is None else self.downsample(x)))


class ResNet18(nn.Module):
    """Backbone: features at 1/8 (128 channels), 1/16 (256) and 1/32 (512)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        widths = (64, 64, 128, 256, 512)
        for level in range(1, 5):
            c_in, c_out = widths[level - 1], widths[level]
            blocks = nn.Sequential(_Residual(c_in, c_out, 1 if level == 1 else 2), _Residual(c_out, c_out, 1))
            setattr(self, f"layer{level}", blocks)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        feat8 = self.layer2(self.layer1(x))
        feat16 = self.layer3(feat8)
        return feat8, feat16, self.layer4(feat16)


class _ConvBlock(nn.Module):
    """Convolution without bias, batch norm, ReLU; keeps the size."""

    def __init__(self, c_in: int, c_out: int, kernel: int = 3) -> None:
        super().__init__()
        self.conv = nn.Conv2d(c_in, c_out, kernel, 1, kernel // 2, bias=False)
        self.bn = nn.BatchNorm2d(c_out)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)))


def _mean(x: Tensor) -> Tensor:
    return x.mean((2, 3), keepdim=True)


class _AttentionRefinement(nn.Module):
    """Features scaled by a gate per channel from their mean."""

    def __init__(self, c_in: int, c_out: int) -> None:
        super().__init__()
        self.conv = _ConvBlock(c_in, c_out)
        self.conv_atten = nn.Conv2d(c_out, c_out, 1, bias=False)
        self.bn_atten = nn.BatchNorm2d(c_out)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return x * self.bn_atten(self.conv_atten(_mean(x))).sigmoid()


class ContextPath(nn.Module):
    """Backbone and the way back up: features of the backbone at 1/8, refined ones at 1/8 and 1/16."""

    def __init__(self) -> None:
        super().__init__()
        self.resnet = ResNet18()
        self.arm16 = _AttentionRefinement(256, 128)
        self.arm32 = _AttentionRefinement(512, 128)
        self.conv_head32 = _ConvBlock(128, 128)
        self.conv_head16 = _ConvBlock(128, 128)
        self.conv_avg = _ConvBlock(512, 128, kernel=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        feat8, feat16, feat32 = self.resnet(x)
        whole = self.conv_avg(_mean(feat32))
        up16 = self.conv_head32(F.interpolate(self.arm32(feat32) + whole, feat16.shape[2:], mode="nearest"))
        up8 = self.conv_head16(F.interpolate(self.arm16(feat16) + up16, feat8.shape[2:], mode="nearest"))
        return feat8, up8, up16


class _FeatureFusion(nn.Module):
    """Backbone and refined features at 1/8 as one map, channels gated by their mean."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convblk = _ConvBlock(channels, channels, kernel=1)
        self.conv1 = nn.Conv2d(channels, channels // 4, 1, bias=False)
        self.conv2 = nn.Conv2d(channels // 4, channels, 1, bias=False)

    def forward(self, spatial: Tensor, context: Tensor) -> Tensor:
        x = self.convblk(torch.cat([spatial, context], 1))
        return x + x * self.conv2(F.relu(self.conv1(_mean(x)))).sigmoid()


class _Output(nn.Module):
    def __init__(self, c_in: int, hidden: int, n_classes: int) -> None:
        super().__init__()
        self.conv = _ConvBlock(c_in, hidden)
        self.conv_out = nn.Conv2d(hidden, n_classes, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv_out(self.conv(x))


class BiSeNet(nn.Module):
    """The parser. MuseTalk uses output 0 alone; the other two helped training."""

    def __init__(self, n_classes: int = N_CLASSES) -> None:
        super().__init__()
        self.cp = ContextPath()
        self.ffm = _FeatureFusion(256)
        self.conv_out = _Output(256, 256, n_classes)
        self.conv_out16 = _Output(128, 64, n_classes)
        self.conv_out32 = _Output(128, 64, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, 19, H, W) of pictures (B, 3, H, W), ImageNet normalised RGB, sides multiples of 32."""
        feat8, up8, _ = self.cp(self._checked(x))
        return self._full_size(self.conv_out(self.ffm(feat8, up8)), x)

    def all_outputs(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the output and the two of the training heads, each (B, 19, H, W)."""
        feat8, up8, up16 = self.cp(self._checked(x))
        heads = self.conv_out(self.ffm(feat8, up8)), self.conv_out16(up8), self.conv_out32(up16)
        return tuple(self._full_size(head, x) for head in heads)

    def labels(self, x: Tensor) -> Tensor:
        """Return the most likely class of every pixel: uint8 (B, H, W)."""
        return self(x).argmax(1).to(torch.uint8)

    @staticmethod
    def _checked(x: Tensor) -> Tensor:
        if x.ndim != 4 or x.shape[1] != 3 or x.shape[2] % 32 or x.shape[3] % 32:
            raise ValueError(
                f"BiSeNet needs pictures (batch, 3, H, W) with sides that divide by 32, got {tuple(x.shape)}"
            )
        return x

    @staticmethod
    def _full_size(logits: Tensor, x: Tensor) -> Tensor:
        return F.interpolate(logits, x.shape[2:], mode="bilinear", align_corners=True)
