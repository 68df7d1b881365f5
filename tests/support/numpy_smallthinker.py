"""SmallThinker in numpy, written from its description: transformers has none.

The model shares no code with ours but the reading of the file.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from powerinfer.gguf import GGUFFile

__all__ = ["TOKEN_IDS", "WINDOW", "SmallThinker"]

DoubleArray = npt.NDArray[np.float64]

TOKEN_IDS = [3, 17, 40, 2, 91, 5, 66, 28, 7, 80, 12, 54, 33, 9, 71, 20, 1, 45, 88, 60]
WINDOW = 6


class SmallThinker:
    """Runs a file; a text from its beginning, all at once."""

    def __init__(self, file: GGUFFile) -> None:
        self._file = file
        self._window = file.get_int("smallthinker.attention.sliding_window", default=0)
        self._is_sigmoid = file.get_int("smallthinker.expert_gating_func") == 2

    def logits(self, token_ids: list[int]) -> DoubleArray:
        """f64[tokens, vocab_size]."""
        x = self._weight("token_embd")[token_ids]
        for layer in range(self._size("block_count")):
            block = f"blk.{layer}."
            chosen = self._route(x @ self._weight(f"{block}ffn_gate_inp").T)
            x = x + self._attention(layer, self._norm(x, f"{block}attn_norm"))
            y = self._norm(x, f"{block}ffn_norm")
            x = x + np.stack(
                [self._experts(block, *token) for token in zip(y, chosen, strict=True)]
            )
        has_head = "output.weight" in self._file.tensors
        head = self._weight("output" if has_head else "token_embd")
        return self._norm(x, "output_norm") @ head.T

    def _route(self, logits: DoubleArray) -> Iterator[list[tuple[int, float]]]:
        """Of each token the experts chosen, with their weights."""
        for row in logits:
            ids = np.argsort(-row, kind="stable")[: self._size("expert_used_count")]
            if self._is_sigmoid:
                p = 1.0 / (1.0 + np.exp(-row[ids]))
                weights = p / max(p.sum(), 6.1e-5)
            else:
                p = np.exp(row[ids])
                weights = p / p.sum()
            yield list(zip(ids.tolist(), weights.tolist(), strict=True))

    def _experts(self, block: str, y: DoubleArray, chosen: list[tuple[int, float]]) -> DoubleArray:
        gate, up = (self._weight(f"{block}ffn_{name}_exps") for name in ("gate", "up"))
        result = np.zeros_like(y)
        for expert, weight in chosen:
            hidden = np.maximum(gate[expert] @ y, 0.0) * (up[expert] @ y)
            result += weight * (self._down(block)[expert] @ hidden)
        return result

    def _down(self, block: str) -> DoubleArray:
        if f"{block}ffn_down_exps_t.weight" in self._file.tensors:
            return self._weight(f"{block}ffn_down_exps_t").swapaxes(1, 2)
        return self._weight(f"{block}ffn_down_exps")

    def _attention(self, layer: int, x: DoubleArray) -> DoubleArray:
        is_global = not self._window or layer % 4 == 0
        has_rope = not self._window or layer % 4 != 0
        num_tokens = len(x)
        q, k, v = (
            (x @ self._weight(f"blk.{layer}.attn_{name}").T).reshape(num_tokens, heads, -1)
            for name, heads in zip("qkv", self._heads(), strict=True)
        )
        if has_rope:
            q, k = self._rotated(q), self._rotated(k)
        # The cache holds f16.
        k, v = (part.astype(np.float16).astype(np.float64) for part in (k, v))
        distances = np.arange(num_tokens)[:, None] - np.arange(num_tokens)
        is_seen = (distances >= 0) & (is_global | (distances < self._window))
        num_heads, num_kv_heads, _ = self._heads()
        mixed = np.empty_like(q)
        for head in range(num_heads):
            own = head // (num_heads // num_kv_heads)
            scores = q[:, head] @ k[:, own].T / np.sqrt(q.shape[2])
            shares = np.exp(np.where(is_seen, scores, -np.inf))
            mixed[:, head] = shares / shares.sum(axis=1, keepdims=True) @ v[:, own]
        return mixed.reshape(num_tokens, -1) @ self._weight(f"blk.{layer}.attn_output").T

    def _rotated(self, x: DoubleArray) -> DoubleArray:
        """Dimension i of a head turns with i + half."""
        half = x.shape[2] // 2
        base = self._file.get_float("smallthinker.rope.freq_base")
        angles = np.arange(len(x))[:, None, None] * base ** (-np.arange(half) / half)
        first, second = x[..., :half], x[..., half:]
        turned = (
            first * np.cos(angles) - second * np.sin(angles),
            second * np.cos(angles) + first * np.sin(angles),
        )
        return np.concatenate(turned, axis=2)

    def _heads(self) -> tuple[int, int, int]:
        """Of queries, keys and values."""
        num_kv_heads = self._size("attention.head_count_kv")
        return self._size("attention.head_count"), num_kv_heads, num_kv_heads

    def _norm(self, x: DoubleArray, name: str) -> DoubleArray:
        eps = self._file.get_float("smallthinker.attention.layer_norm_rms_epsilon")
        normed: DoubleArray = x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + eps)
        return normed * self._weight(name)

    def _weight(self, name: str) -> DoubleArray:
        return self._file.tensors[f"{name}.weight"].decode().astype(np.float64)

    def _size(self, key: str) -> int:
        return self._file.get_int(f"smallthinker.{key}")
