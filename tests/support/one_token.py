"""PowerInfer's models on a sequence of one token, in numpy, from the description of the format.

An oracle that shares no code with ours: at position 0 attention returns the token's own values and
rotation turns nothing, so a whole forward is a page. The predictor's input can be chosen, for tests
that a wrong one would be noticed.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from powerinfer.gguf import GGUFFile

__all__ = ["INPUTS", "OneToken", "one_token"]

DoubleArray = npt.NDArray[np.float64]

INPUTS = {"llama": "residual", "bamboo": "residual", "opt": "residual", "falcon": "layer input"}
"""What the predictors of each architecture look at."""


@dataclass(frozen=True)
class OneToken:
    """What came out.

    Attributes:
        logits: f64[1, vocab_size].
        margin: distance from the threshold of the score that came closest to it.
        active_share: neurons that the predictors let pass.
    """

    logits: DoubleArray
    margin: float
    active_share: float


def one_token(
    file: GGUFFile, token_id: int, threshold: float, predictor_input: str | None = None
) -> OneToken:
    """Run one token at position 0.

    Args:
        file: a model with PowerInfer's predictors.
        token_id: the token.
        threshold: score at or above which a neuron is active.
        predictor_input: `residual`, `layer input` or `FFN input`; None for what the architecture
            says.
    """
    name = file.get_str("general.architecture")
    model = _Model(file, name)
    predictor_input = predictor_input or INPUTS[name]
    x = model.weight("token_embd")[token_id]
    if name == "opt":
        x = x + model.weight("position_embd")[2]
    margins, shares = [], []
    for layer in range(file.get_int(f"{name}.block_count")):
        block = model.block(layer)
        second = "attn_norm_2" if block.has("attn_norm_2") else "attn_norm"
        inputs = {"layer input": x, "residual": x + block.attention(block.norm(x, second))}
        normed = x if name == "falcon" else inputs["residual"]
        inputs["FFN input"] = block.norm(normed, "attn_norm" if name == "falcon" else "ffn_norm")
        hidden = np.maximum(block.weight("fc1") @ inputs[predictor_input], 0.0)
        scores = block.weight("fc2") @ hidden
        margins.append(float(np.abs(scores - threshold).min()))
        shares.append(float((scores >= threshold).mean()))
        x = inputs["residual"] + block.ffn(inputs["FFN input"], scores >= threshold)
    head = "output" if model.has("output") else "token_embd"
    logits = model.weight(head) @ model.norm(x, "output_norm")
    return OneToken(logits[None], min(margins), float(np.mean(shares)))


class _Model:
    """Tensors of a file, or of one block of it, by name."""

    def __init__(self, file: GGUFFile, architecture: str, prefix: str = "") -> None:
        self._file = file
        self._architecture = architecture
        self._prefix = prefix

    def block(self, layer: int) -> "_Model":
        return _Model(self._file, self._architecture, f"blk.{layer}.")

    def has(self, name: str) -> bool:
        return f"{self._prefix}{name}.weight" in self._file.tensors

    def weight(self, name: str) -> DoubleArray:
        return self._file.tensors[f"{self._prefix}{name}.weight"].decode().astype(np.float64)

    def bias(self, name: str) -> DoubleArray:
        tensor = self._file.tensors.get(f"{self._prefix}{name}.bias")
        return np.zeros(1) if tensor is None else tensor.decode().astype(np.float64)

    def norm(self, x: DoubleArray, name: str) -> DoubleArray:
        if self._architecture in ("llama", "bamboo"):
            normed: DoubleArray = x / np.sqrt(np.mean(x * x) + 1e-5)
            return normed * self.weight(name)
        normed = (x - x.mean()) / np.sqrt(np.var(x) + 1e-5)
        return normed * self.weight(name) + self.bias(name)

    def attention(self, x: DoubleArray) -> DoubleArray:
        num_heads = self._size("attention.head_count")
        num_kv_heads = self._size("attention.head_count_kv")
        kv_size = num_kv_heads * self._size("attention.key_length")
        name = "attn_qkv" if self.has("attn_qkv") else "attn_v"
        values = self.weight(name)[-kv_size:] @ x + self.bias(name)[-kv_size:]
        # The cache holds f16.
        heads = values.astype(np.float16).astype(np.float64).reshape(num_kv_heads, -1)
        mixed = np.repeat(heads, num_heads // num_kv_heads, axis=0).reshape(-1)
        return self.weight("attn_output") @ mixed + self.bias("attn_output")

    def ffn(self, x: DoubleArray, active: npt.NDArray[np.bool_]) -> DoubleArray:
        relu: Callable[[DoubleArray], DoubleArray] = lambda z: np.maximum(z, 0.0)  # noqa: E731
        up = self.weight("ffn_up") @ x + self.bias("ffn_up")
        if self._architecture == "llama":
            hidden = relu(self.weight("ffn_gate") @ x) * up
        elif self._architecture == "bamboo":
            hidden = relu(self.weight("ffn_gate") @ x) * relu(up)
        else:
            hidden = relu(up)
        return np.where(active, hidden, 0.0) @ self.weight("ffn_down_t") + self.bias("ffn_down_t")

    def _size(self, key: str) -> int:
        return self._file.get_int(f"{self._architecture}.{key}")
