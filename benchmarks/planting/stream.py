"""The tensors of a planted model in the order of its file, made layer by layer as they are asked.

A forward pass of random tokens goes along, so that offsets fit what each layer really receives.
"""

from collections.abc import Callable, Iterator

import numpy as np

from planting.attention import attend, normalise
from planting.neurons import plant
from planting.random_rows import ByteRows, FloatRows, Workshop
from planting.recipe import FFNInput, Knobs, PlantedFFN
from planting.shapes import OPT_POSITION_OFFSET, PlantedShape
from powerinfer.gguf import TensorSpec
from powerinfer.quant import QuantFormat

__all__ = ["PlantedStream"]

CALIBRATION_TOKENS = 128
HELD_OUT_TOKENS = 64
# Energy of the direction that all embeddings share; gives the FFN's input a strong mean.
_SHARED_ENERGY = 0.5
_FIRST_ORDINARY_TOKEN = 259
_EMBEDDING, _HEAD, _POSITIONS = 1 << 20, (1 << 20) + 1, (1 << 20) + 2


class PlantedStream:
    """Makes one model; `statistics` fills as layers are made.

    Attributes:
        statistics: per layer, measured on held-out tokens.
    """

    def __init__(
        self, shape: PlantedShape, knobs: Knobs, head_format: QuantFormat, seed: int
    ) -> None:
        self.statistics: list[dict[str, float]] = []
        self._shape, self._knobs, self._head_format = shape, knobs, head_format
        self._workshop = Workshop(seed)
        random = self._workshop.generator(0, 1)
        self._common = random.standard_normal(shape.hidden_size, np.float32)
        self._common *= np.float32(_SHARED_ENERGY**0.5)
        tokens = CALIBRATION_TOKENS + HELD_OUT_TOKENS
        low = min(_FIRST_ORDINARY_TOKEN, shape.vocab_size // 2)
        self._tokens = random.integers(low, shape.vocab_size, tokens)
        self._x: FloatRows = np.empty((tokens, shape.hidden_size), np.float32)
        self._layer: dict[str, ByteRows] = {}
        self._layer_number = -1

    def tensors(self) -> Iterator[TensorSpec]:
        """Every tensor of the PowerInfer file."""
        shape, chosen = self._shape, self._knobs.weight_format
        hidden = shape.hidden_size
        yield (
            "token_embd.weight",
            (shape.vocab_size, hidden),
            chosen.name,
            self._embedding,
        )
        if shape.architecture == "opt":
            rows = shape.context_length + OPT_POSITION_OFFSET
            yield "position_embd.weight", (rows, hidden), chosen.name, self._positions
        for number in range(shape.num_layers):
            for name, dims in self._layer_shapes().items():
                matrix_format = chosen.name if len(dims) == 2 else "f32"
                if name in ("fc1.weight", "fc2.weight"):
                    matrix_format = self._knobs.predictor_format.name
                yield f"blk.{number}.{name}", dims, matrix_format, self._of_layer(number, name)
        yield "output_norm.weight", (hidden,), "f32", np.ones(hidden, np.float32).view(np.uint8)
        if shape.is_layer_norm:
            yield "output_norm.bias", (hidden,), "f32", np.zeros(hidden, np.float32).view(np.uint8)
        if shape.architecture != "opt":
            yield "output.weight", (shape.vocab_size, hidden), self._head_format.name, self._head

    def _layer_shapes(self) -> dict[str, tuple[int, ...]]:
        """Tensors of a block, in file order."""
        shape = self._shape
        hidden, kv, neurons = shape.hidden_size, shape.kv_size, shape.intermediate_size
        norms = ["attn_norm"] + ["attn_norm_2"] * shape.has_two_norms
        norms += ["ffn_norm"] * (not shape.is_parallel)
        parts = ("weight", "bias") if shape.is_layer_norm else ("weight",)
        found: dict[str, tuple[int, ...]] = {f"{n}.{p}": (hidden,) for n in norms for p in parts}
        if shape.is_parallel:
            matrices = {"attn_qkv": (hidden + 2 * kv, hidden)}
        else:
            matrices = {"attn_q": (hidden, hidden), "attn_k": (kv, hidden), "attn_v": (kv, hidden)}
        matrices["attn_output"] = (hidden, hidden)
        ffn = ("ffn_gate", "ffn_up") if shape.is_gated else ("ffn_up",)
        matrices |= dict.fromkeys((*ffn, "ffn_down_t"), (neurons, hidden))
        for name, dims in matrices.items():
            found[f"{name}.weight"] = dims
            if shape.architecture == "opt":
                found[f"{name}.bias"] = (hidden,) if name == "ffn_down_t" else dims[:1]
        found["fc1.weight"] = (self._knobs.rank, hidden)
        found["fc2.weight"] = (neurons, self._knobs.rank)
        return found

    def _of_layer(self, number: int, name: str) -> Callable[[], list[ByteRows]]:
        def data() -> list[ByteRows]:
            while self._layer_number < number:
                self._layer_number += 1
                self._layer = self._make_layer(self._layer_number)
            return [self._layer.pop(name).reshape(-1)]

        return data

    def _embedding(self) -> Iterator[ByteRows]:
        """All rows; on the way the forward pass takes its tokens'."""
        shape, chosen = self._shape, self._knobs.weight_format

        def make(number: int, block: slice) -> ByteRows:
            std = (1 - _SHARED_ENERGY) ** 0.5
            rows = self._workshop.normal(
                (_EMBEDDING, number), block.stop - block.start, shape.hidden_size, std
            )
            encoded = chosen.encode(rows + self._common)
            wanted = (self._tokens >= block.start) & (self._tokens < block.stop)
            self._x[wanted] = chosen.decode(encoded[self._tokens[wanted] - block.start])
            return encoded

        return self._workshop.over_blocks(shape.vocab_size, make)

    def _positions(self) -> list[ByteRows]:
        rows = self._shape.context_length + OPT_POSITION_OFFSET
        encoded, values = self._workshop.matrix(
            (_POSITIONS,), rows, self._shape.hidden_size, 0.1, self._knobs.weight_format
        )
        for part in self._sequences():
            count = len(self._x[part])
            self._x[part] += values[OPT_POSITION_OFFSET : OPT_POSITION_OFFSET + count]
        return [encoded.reshape(-1)]

    def _sequences(self) -> tuple[slice, slice]:
        """Calibration and held-out tokens: a sequence each."""
        return slice(0, CALIBRATION_TOKENS), slice(CALIBRATION_TOKENS, len(self._x))

    def _make_layer(self, number: int) -> dict[str, ByteRows]:
        shape = self._shape
        made: dict[str, ByteRows] = {}
        norms: dict[str, FloatRows] = {}
        random = self._workshop.generator(number, 2)
        for name, dims in self._layer_shapes().items():
            if name.endswith(("norm.weight", "norm_2.weight")):
                norms[name] = 1 + np.float32(0.1) * random.standard_normal(dims, np.float32)
                made[name] = norms[name].view(np.uint8)
            elif name.endswith(".bias") and not name.startswith("ffn_up"):
                is_zero = "norm" in name
                values = random.standard_normal(dims, np.float32) * np.float32(
                    0 if is_zero else 0.02
                )
                made[name] = values.view(np.uint8)
        attention_norm = "attn_norm_2.weight" if shape.has_two_norms else "attn_norm.weight"
        layer_input = self._x
        mixed = self._attention(number, normed_by(layer_input, norms[attention_norm], shape), made)
        ffn_norm = norms["attn_norm.weight" if shape.is_parallel else "ffn_norm.weight"]
        raw = layer_input if shape.is_parallel else layer_input + mixed
        given = FFNInput(normed_by(raw, ffn_norm, shape), raw, ffn_norm, CALIBRATION_TOKENS)
        planted = plant(self._workshop, number, shape, self._knobs, given)
        made |= planted.tensors
        self._x = layer_input + mixed + planted.output
        if "ffn_down_t.bias" in made:
            self._x += made["ffn_down_t.bias"].view(np.float32)
        self.statistics.append(_statistics(number, planted))
        return made

    def _attention(self, number: int, normed: FloatRows, made: dict[str, ByteRows]) -> FloatRows:
        """Make the four projections; returns what attention adds to the stream."""
        shape, chosen = self._shape, self._knobs.weight_format
        hidden, kv = shape.hidden_size, shape.kv_size
        outs, encoded = [], []
        for tag, rows in enumerate((hidden, kv, kv)):
            data, values = self._workshop.matrix(
                (number, 3 + tag), rows, hidden, hidden**-0.5, chosen
            )
            bias = made.get(f"attn_{'qkv'[tag]}.bias")
            outs.append(normed @ values.T + (0 if bias is None else bias.view(np.float32)))
            encoded.append(data)
        if shape.is_parallel:
            made["attn_qkv.weight"] = np.concatenate(encoded)
        else:
            made |= {f"attn_{n}.weight": d for n, d in zip("qkv", encoded, strict=True)}
        stream = float((self._x**2).mean()) ** 0.5
        std = self._knobs.branch_size * stream * hidden**-0.5
        data, values = self._workshop.matrix((number, 6), hidden, hidden, std, chosen)
        made["attn_output.weight"] = data
        bias = made.get("attn_output.bias")
        out = np.empty_like(normed)
        for part in self._sequences():
            out[part] = attend(shape, *(value[part] for value in outs)) @ values.T
        return out if bias is None else out + bias.view(np.float32)

    def _head(self) -> Iterator[ByteRows]:
        """Rows without the mean direction: else a few tokens would always be the likeliest."""
        shape = self._shape
        normed = normed_by(self._x, np.ones(shape.hidden_size, np.float32), shape)
        mean = normed.mean(axis=0)
        mean /= np.linalg.norm(mean)

        def make(number: int, block: slice) -> ByteRows:
            count = block.stop - block.start
            rows = self._workshop.normal(
                (_HEAD, number), count, shape.hidden_size, 3 * shape.hidden_size**-0.5
            )
            rows -= np.outer(rows @ mean, mean)
            return self._head_format.encode(rows)

        return self._workshop.over_blocks(shape.vocab_size, make)


def normed_by(x: FloatRows, weight: FloatRows, shape: PlantedShape) -> FloatRows:
    """The shape's norm."""
    return normalise(x, weight, is_layer_norm=shape.is_layer_norm)


def _statistics(number: int, planted: PlantedFFN) -> dict[str, float]:
    fires, predicted = planted.fires, planted.predicted
    right = int((fires & predicted).sum())
    by_neuron = np.sort(fires.mean(axis=0))[::-1]
    reached = np.searchsorted(np.cumsum(by_neuron), 0.8 * by_neuron.sum())
    return {
        "layer": number,
        "density": float(fires.mean()),
        "gate_density": float(planted.gate_fires.mean()),
        "predicted_density": float(predicted.mean()),
        "recall": right / max(1, int(fires.sum())),
        "precision": right / max(1, int(predicted.sum())),
        "ffn_error": planted.error,
        "share_of_neurons_for_80_percent": float((reached + 1) / fires.shape[1]),
    }
