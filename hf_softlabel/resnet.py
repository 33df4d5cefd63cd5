"""CIFAR ResNets: timm's ResNet with a stem for 32 x 32 images, as a transformers model.

A copy of this file is saved with each model, so that it also loads where hf_softlabel is not installed
(`trust_remote_code=True`). That is why it imports nothing from the package.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from timm.models.resnet import BasicBlock, ResNet
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import ImageClassifierOutputWithNoAttention

BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}


class CifarResNetConfig(PretrainedConfig):
    """
    Args:
        depth: 18 or 34.
        width: multiplies the stages' 64, 128, 256 and 512 channels; a multiple of 1/32.
        num_channels: of the input.
        image_size: what the network is meant for; it runs on other sizes too.
    """

    model_type = "cifar_resnet"

    depth: int = 18
    width: float = 1.0
    num_channels: int = 3
    image_size: int = 32

    def __post_init__(self, **kwargs):
        super().__post_init__(**kwargs)
        if self.depth not in BLOCKS:
            raise ValueError(f"depth must be one of {', '.join(map(str, BLOCKS))}, not {self.depth}.")
        if self.width <= 0 or 32 * self.width % 1:
            # Rounding to whole channels would train another network than the one that was asked for.
            raise ValueError(f"width must be a positive multiple of 1/32, not {self.width}.")


def cifar_resnet(config: CifarResNetConfig) -> ResNet:
    """timm's network with a 3 x 3 stem of stride 1 and no max-pooling, initialised by timm."""
    stem = int(64 * config.width)
    network = ResNet(
        BasicBlock,
        BLOCKS[config.depth],
        num_classes=config.num_labels,
        in_chans=config.num_channels,
        channels=tuple(stem * 2**stage for stage in range(4)),
        # timm fixes the plain stem at 64 channels. The deep one has 2 * stem_width, and so all that comes after it
        # gets the right shapes; its convolution is replaced below.
        stem_type="deep",
        stem_width=stem // 2,
    )
    network.conv1 = nn.Conv2d(config.num_channels, stem, kernel_size=3, padding=1, bias=False)
    network.maxpool = nn.Identity()
    network.init_weights()
    return network


class CifarResNetForImageClassification(PreTrainedModel):
    """`pixel_values` (N, num_channels, H, W), normalised -> `logits` (N, num_labels)."""

    config_class = CifarResNetConfig
    main_input_name = "pixel_values"
    # forward takes **kwargs, from which the Trainer would conclude that the loss scales itself for accumulation.
    accepts_loss_kwargs = False

    def __init__(self, config: CifarResNetConfig):
        super().__init__(config)
        self.network = cifar_resnet(config)
        self.post_init()

    def init_weights(self) -> None:
        """Called by `post_init`, which would replace timm's initialisation by transformers' N(0, 0.02)."""

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialise as timm does what a loaded checkpoint lacks: in practice the head, for other classes."""
        # `nn.init` is guarded here by transformers and leaves alone the tensors that were loaded.
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            module.reset_parameters()
        else:
            super()._init_weights(module)

    def features(self, pixel_values: Tensor) -> Tensor:
        """(N, num_channels, H, W) -> (N, D): what the last, linear layer sees."""
        return self.network.forward_head(self.network.forward_features(pixel_values), pre_logits=True)

    def forward(
        self,
        pixel_values: Tensor,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **kwargs,
    ) -> ImageClassifierOutputWithNoAttention | tuple[Tensor, ...]:
        """`labels` are (N,) int64 or (N, num_labels) floats that sum to 1; the loss is the batch mean.

        `hidden_states` are the stem's output and the four stages', each (N, D, H, W).
        """
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        hidden_states = None
        if output_hidden_states:
            last, hidden_states = self.network.forward_intermediates(pixel_values)
        else:
            last = self.network.forward_features(pixel_values)
        logits = self.network.forward_head(last)
        output = ImageClassifierOutputWithNoAttention(
            loss=None if labels is None else F.cross_entropy(logits, labels),
            logits=logits,
            hidden_states=None if hidden_states is None else tuple(hidden_states),
        )
        if return_dict is None:
            return_dict = self.config.return_dict
        return output if return_dict else output.to_tuple()
