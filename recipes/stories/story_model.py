"""The small dReLU transformer of the embedded default model, in torch.

It is the Llama shape (pre-norm, RMSNorm, rotary positions, grouped-query attention, gated FFN) with
the activation ``relu(gate x) * relu(up x)``, which leaves most FFN neurons exactly zero. Rotary
positions are applied to the two halves of a head, which torch does fastest; `export` reorders the
rows of q and k to the interleaved order that GGUF's ``llama`` architecture means.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (torch's own convention)

from powerinfer.train.autocast import working
from powerinfer.train.fused import DualReLU, GroupedAttention

NeuronObserver = Callable[[int, Tensor], None]
"""Called with (layer, neurons [batch, seq_len, intermediate_size]) for every FFN evaluated."""


@dataclass(frozen=True)
class StoryConfig:
    """Sizes of a story model; the defaults are those of the shipped model.

    Attributes:
        vocab_size: Number of token ids.
        hidden_size: Width of the residual stream; a multiple of 256 fits every quantized format.
        intermediate_size: Neurons of each FFN.
        num_layers: Transformer blocks.
        num_heads: Query heads.
        num_kv_heads: Key and value heads, a divisor of ``num_heads``.
        context_length: Longest sequence, in tokens.
        rope_base: Base of the rotary frequencies.
        norm_epsilon: Added to the mean square in RMSNorm.
        dropout: Probability of dropping an element of a block's output while training.
    """

    vocab_size: int = 4096
    hidden_size: int = 256
    intermediate_size: int = 1024
    num_layers: int = 6
    num_heads: int = 8
    num_kv_heads: int = 4
    context_length: int = 512
    rope_base: float = 10000.0
    norm_epsilon: float = 1e-5
    dropout: float = 0.05

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_heads


def rope_tables(config: StoryConfig) -> tuple[Tensor, Tensor]:
    """Cosines and sines of every position, f32[context_length, head_dim / 2] each."""
    half = config.head_dim // 2
    frequencies = config.rope_base ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(config.context_length, dtype=torch.float64)[:, None] * frequencies
    return angles.cos().float(), angles.sin().float()


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Turn the pairs (i, i + head_dim / 2) of x[batch, heads, seq_len, head_dim]."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1)


class Attention(nn.Module):
    """Causal grouped-query attention without biases."""

    def __init__(self, config: StoryConfig) -> None:
        """Create the four projections of one layer."""
        super().__init__()
        self.config = config
        kv_size = config.num_kv_heads * config.head_dim
        self.q = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.k = nn.Linear(config.hidden_size, kv_size, bias=False)
        self.v = nn.Linear(config.hidden_size, kv_size, bias=False)
        self.output = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """Map x[batch, seq_len, hidden_size] to the attention output of the same shape."""
        batch, seq_len, _ = x.shape
        heads = (batch, seq_len, -1, self.config.head_dim)
        cosines, sines = working(cosines), working(sines)
        q = rotate(self.q(x).view(heads).transpose(1, 2), cosines, sines)
        k = rotate(self.k(x).view(heads).transpose(1, 2), cosines, sines)
        v = self.v(x).view(heads).transpose(1, 2)
        merged: Tensor = self.output(self._mix(q, k, v).transpose(1, 2).reshape(batch, seq_len, -1))
        return merged

    def _mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if not self.training:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        batch, heads, seq_len, head_dim = q.shape
        groups = batch * k.shape[1]
        mask = q.new_full((seq_len, seq_len), float("-inf")).triu(1).repeat(heads // k.shape[1], 1)
        q = q.reshape(groups, -1, head_dim)
        k, v = k.reshape(groups, seq_len, head_dim), v.reshape(groups, seq_len, head_dim)
        mixed: Tensor = GroupedAttention.apply(q, k, v, mask)  # type: ignore[no-untyped-call]
        return mixed.view(batch, heads, seq_len, head_dim)


class FeedForward(nn.Module):
    """The dReLU FFN: ``down(relu(gate x) * relu(up x))``."""

    def __init__(self, config: StoryConfig) -> None:
        """Create the three projections of one layer."""
        super().__init__()
        self.gate = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def neurons(self, x: Tensor) -> Tensor:
        """Neuron values [batch, seq_len, intermediate_size]; exactly zero where inactive."""
        neurons: Tensor = DualReLU.apply(self.gate(x), self.up(x))  # type: ignore[no-untyped-call]
        return neurons


class Block(nn.Module):
    """One transformer layer."""

    def __init__(self, config: StoryConfig) -> None:
        """Create attention, FFN and their norms."""
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.hidden_size, eps=config.norm_epsilon)
        self.attention = Attention(config)
        self.ffn_norm = nn.RMSNorm(config.hidden_size, eps=config.norm_epsilon)
        self.ffn = FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor) -> tuple[Tensor, Tensor]:
        """Return the layer's output and its neuron values."""
        x = x + self.dropout(self.attention(working(self.attention_norm(x)), cosines, sines))
        neurons = self.ffn.neurons(working(self.ffn_norm(x)))
        return x + self.dropout(self.ffn.down(neurons)), neurons


class StoryModel(nn.Module):
    """Token ids to next-token logits, with one matrix for embedding and output."""

    cosines: Tensor
    sines: Tensor

    def __init__(self, config: StoryConfig) -> None:
        """Create a model whose weights come from torch's current random state."""
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.output_norm = nn.RMSNorm(config.hidden_size, eps=config.norm_epsilon)
        cosines, sines = rope_tables(config)
        self.register_buffer("cosines", cosines, persistent=False)
        self.register_buffer("sines", sines, persistent=False)
        self.observer: NeuronObserver | None = None
        self._initialise()

    @property
    def layers(self) -> "Iterable[Block]":
        """The blocks in their order, with their type, which `nn.ModuleList` forgets."""
        return cast("Iterable[Block]", self.blocks)

    def _initialise(self) -> None:
        # The two matrices that write to the residual stream start smaller, so that its variance
        # does not grow with depth.
        residual = 0.02 / (2 * self.config.num_layers) ** 0.5
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                writes = name.endswith(("attention.output.weight", "ffn.down.weight"))
                nn.init.normal_(parameter, std=residual if writes else 0.02)

    def forward(self, token_ids: Tensor) -> Tensor:
        """Logits [batch, seq_len, vocab_size] of token_ids i64[batch, seq_len]."""
        seq_len = token_ids.shape[1]
        cosines, sines = self.cosines[:seq_len], self.sines[:seq_len]
        x = self.embedding(token_ids)
        for layer, block in enumerate(self.layers):
            x, neurons = block(x, cosines, sines)
            if self.observer is not None:
                self.observer(layer, neurons)
        return F.linear(self.output_norm(x), self.embedding.weight)
