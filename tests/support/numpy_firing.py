"""Plain forward passes in numpy that note which neurons fire, written from the models' papers.

They share no code with ours but the reading of the file.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from numpy_smallthinker import SmallThinker
from powerinfer.gguf import GGUFFile

__all__ = ["count_firing"]

DoubleArray = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

_ACTIVATIONS: dict[str, Callable[[DoubleArray, DoubleArray | None], DoubleArray]] = {
    "relu": lambda gate, up: np.maximum(gate, 0) * (1 if up is None else up),
    "relu2": lambda gate, up: np.maximum(gate, 0) ** 2 * (1 if up is None else up),
    "drelu": lambda gate, up: np.maximum(gate, 0) * np.maximum(0 if up is None else up, 0),
}
_OWN = {"bamboo": "drelu", "opt": "relu", "arcee": "relu2", "llama": "relu"}


def count_firing(file: GGUFFile, windows: Sequence[Sequence[int]]) -> Counts:
    """Tokens for which each neuron fires: i64[num_layers, num_neurons of all experts]."""
    kind = str(file.metadata["general.architecture"])
    model = _SmallThinker(file) if kind == "smallthinker" else _Transformer(file, kind)
    for window in windows:
        model.run(list(window))
    return np.stack([model.counts[layer] for layer in range(file.get_int(f"{kind}.block_count"))])


class _SmallThinker(SmallThinker):
    """Counts in what its experts compute."""

    def __init__(self, file: GGUFFile) -> None:
        super().__init__(file)
        self.counts: dict[int, Counts] = {}

    def run(self, token_ids: list[int]) -> None:
        self.logits(token_ids)

    def _experts(self, block: str, y: DoubleArray, chosen: list[tuple[int, float]]) -> DoubleArray:
        gate, up = (self._weight(f"{block}ffn_{name}_exps") for name in ("gate", "up"))
        layer = int(block.split(".")[1])
        counts = self.counts.setdefault(layer, np.zeros(gate.shape[:2], np.int64).reshape(-1))
        for expert, _ in chosen:
            fires = np.maximum(gate[expert] @ y, 0.0) * (up[expert] @ y) != 0
            counts[expert * len(fires) : (expert + 1) * len(fires)] += fires
        return super()._experts(block, y, chosen)


class _Transformer:
    """Llama and Mixtral, and with other norms and positions OPT."""

    def __init__(self, file: GGUFFile, kind: str) -> None:
        self._file, self._kind = file, kind
        activation = file.metadata.get("powerinfer.ffn_activation", _OWN[kind])
        self._activation = _ACTIVATIONS[str(activation)]
        self.counts: dict[int, Counts] = {}

    def run(self, token_ids: list[int]) -> None:
        x = self._weight("token_embd.weight")[token_ids]
        if self._kind == "opt":
            x = x + self._weight("position_embd.weight")[2 : 2 + len(x)]
        for layer in range(self._size("block_count")):
            block = f"blk.{layer}."
            x = x + self._attention(block, self._norm(x, f"{block}attn_norm"))
            x = x + self._ffn(layer, block, self._norm(x, f"{block}ffn_norm"))

    def _ffn(self, layer: int, block: str, x: DoubleArray) -> DoubleArray:
        if f"{block}ffn_gate_inp.weight" in self._file.tensors:
            return self._experts(layer, block, x)
        gate = self._linear(f"{block}ffn_gate", x) if self._has(f"{block}ffn_gate") else None
        up = self._linear(f"{block}ffn_up", x)
        values = self._activation(up, None) if gate is None else self._activation(gate, up)
        counts = self.counts.setdefault(layer, np.zeros(values.shape[1], np.int64))
        counts += (values != 0).sum(axis=0)
        bias = f"{block}ffn_down.bias"
        return values @ self._down(f"{block}ffn_down").T + (
            self._weight(bias) if bias in self._file.tensors else 0
        )

    def _experts(self, layer: int, block: str, x: DoubleArray) -> DoubleArray:
        gate, up = (self._weight(f"{block}ffn_{name}_exps.weight") for name in ("gate", "up"))
        down = self._down(f"{block}ffn_down_exps")
        counts = self.counts.setdefault(layer, np.zeros(gate.shape[0] * gate.shape[1], np.int64))
        result = np.zeros_like(x)
        logits = x @ self._weight(f"{block}ffn_gate_inp.weight").T
        for token, row in enumerate(logits):
            ids = np.argsort(-row, kind="stable")[: self._size("expert_used_count")]
            shares = np.exp(row[ids] - row.max())
            for expert, share in zip(ids, shares / shares.sum(), strict=True):
                values = self._activation(gate[expert] @ x[token], up[expert] @ x[token])
                size = len(values)
                counts[expert * size : (expert + 1) * size] += values != 0
                result[token] += share * (down[expert] @ values)
        return result

    def _attention(self, block: str, x: DoubleArray) -> DoubleArray:
        num_heads, num_kv_heads = self._size("attention.head_count"), self._kv_heads()
        q, k, v = (
            self._linear(f"{block}attn_{name}", x).reshape(len(x), heads, -1)
            for name, heads in zip("qkv", (num_heads, num_kv_heads, num_kv_heads), strict=True)
        )
        if self._kind != "opt":
            q, k = self._rotated(q), self._rotated(k)
        # The cache holds f16.
        k, v = (part.astype(np.float16).astype(np.float64) for part in (k, v))
        is_seen = np.tril(np.ones((len(x), len(x)), bool))
        mixed = np.empty_like(q)
        for head in range(num_heads):
            own = head // (num_heads // num_kv_heads)
            scores = q[:, head] @ k[:, own].T / np.sqrt(q.shape[2])
            shares = np.exp(np.where(is_seen, scores - scores.max(), -np.inf))
            mixed[:, head] = shares / shares.sum(axis=1, keepdims=True) @ v[:, own]
        return self._linear(f"{block}attn_output", mixed.reshape(len(x), -1))

    def _rotated(self, x: DoubleArray) -> DoubleArray:
        """Neighbouring dimensions of a head turn together."""
        half = x.shape[2] // 2
        angles = np.arange(len(x))[:, None, None] * 10000.0 ** (-np.arange(half) / half)
        first, second = x[..., ::2], x[..., 1::2]
        turned = np.empty_like(x)
        turned[..., ::2] = first * np.cos(angles) - second * np.sin(angles)
        turned[..., 1::2] = second * np.cos(angles) + first * np.sin(angles)
        return turned

    def _norm(self, x: DoubleArray, name: str) -> DoubleArray:
        weight = self._weight(f"{name}.weight")
        if self._kind != "opt":
            normed: DoubleArray = x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + 1e-5)
            return normed * weight
        centred = x - x.mean(axis=1, keepdims=True)
        normed = centred / np.sqrt(np.mean(centred**2, axis=1, keepdims=True) + 1e-5)
        return normed * weight + self._weight(f"{name}.bias")

    def _linear(self, name: str, x: DoubleArray) -> DoubleArray:
        bias = f"{name}.bias"
        product = x @ self._weight(f"{name}.weight").T
        return product + self._weight(bias) if bias in self._file.tensors else product

    def _down(self, name: str) -> DoubleArray:
        if self._has(f"{name}_t"):
            return self._weight(f"{name}_t.weight").swapaxes(-1, -2)
        return self._weight(f"{name}.weight")

    def _has(self, name: str) -> bool:
        return f"{name}.weight" in self._file.tensors

    def _weight(self, name: str) -> DoubleArray:
        return self._file.tensors[name].decode().astype(np.float64)

    def _size(self, key: str) -> int:
        return self._file.get_int(f"{self._kind}.{key}")

    def _kv_heads(self) -> int:
        return self._size("attention.head_count_kv")
