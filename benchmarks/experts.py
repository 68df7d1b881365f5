r"""Writes mixtures of experts at real shapes as GGUF, for speed only: the text they make is noise.

    python benchmarks/experts.py --shape smallthinker-4b --format q4_0 -o 4b.gguf
    powerinfer pack 4b.gguf -o 4b.packed.gguf

Weights are random; one layer is made and written as often as the model has layers, so that every
byte is read from a place of its own. Where neurons are to fire with a given rate, number 0 of the
residual stream is the same for all tokens and no layer writes to it: column 0 of a gate is then a
bias, which sets the rate. Of dReLU gate and up look much the same way, as in planting/rates.py.
With `--rank` each expert has a predictor (`fc1_exps`, `fc2_exps`): the rows that decide (gate; up
of dReLU, which is cut higher) are made of `rank` directions that fc1 sees, and of some noise.

Routers choose every expert about equally often, so that none stays in a cache. The file has
llama.cpp's names: peers run the same file (Mixtral's with SiLU, as they know no dReLU), or that of
`--plain` where there are predictors, which llama.cpp refuses.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist

import numpy as np

from planting.random_rows import ByteRows, FloatRows, Workshop
from planting.rates import DRELU_CORRELATION, up_rate
from planting.recipe import format_named
from powerinfer.gguf import TensorSpec, write_gguf
from powerinfer.quant import QuantFormat
from synthetic import vocabulary

# What number 0 of the stream holds; the others are about 1. Enough for column 0 of a gate to be no
# larger than its other columns.
CONSTANT = 8.0
# Size of what attention and experts add, relative to the stream.
BRANCH_SIZE = 0.1
# Of the variance of rows that have a predictor.
NOISE = 0.02
# Of scores, towards recall, in deviations of a row's product.
MARGIN = 0.15


@dataclass(frozen=True)
class ExpertShape:
    """Sizes of one model.

    Attributes:
        architecture: `general.architecture`.
        hidden_size: width of the residual stream.
        expert_size: neurons of an expert.
        num_experts: of a layer.
        num_used: of them, for a token.
        num_layers: of the whole model.
        num_heads: query heads.
        num_kv_heads: key and value heads.
        head_dim: width of a head.
        vocab_size: rows of embedding and head.
        is_tied: the head is the embedding.
        gate_rate: how often a gate is above zero; None: activation without zeros.
        firing_rate: of dReLU how often gate and up both are; None: up is not cut.
        metadata: further keys, without the architecture's prefix.
    """

    architecture: str
    hidden_size: int
    expert_size: int
    num_experts: int
    num_used: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    is_tied: bool = False
    gate_rate: float | None = None
    firing_rate: float | None = None
    metadata: tuple[tuple[str, object], ...] = ()

    @property
    def q_size(self) -> int:
        """Width of all query heads."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads."""
        return self.num_kv_heads * self.head_dim

    @property
    def up_rate(self) -> float | None:
        """How often up is above zero; None where it is not cut."""
        if self.firing_rate is None or self.gate_rate is None:
            return None
        return up_rate(self.firing_rate, self.gate_rate)

    @property
    def has_biases(self) -> bool:
        """Every product has one, and every head a sink."""
        return self.architecture == "gpt-oss"


_THINKER = ("rope.freq_base", np.float32(1.5e6))
SHAPES = {
    "smallthinker-4b": ExpertShape(
        "smallthinker", 1536, 768, 32, 4, 32, 12, 2, 128, 151936, is_tied=True, gate_rate=0.4,
        metadata=(_THINKER, ("expert_gating_func", np.uint32(1))),
    ),
    "smallthinker-21b": ExpertShape(
        "smallthinker", 2560, 768, 64, 6, 52, 28, 4, 128, 151936, gate_rate=0.4,
        metadata=(
            _THINKER, ("expert_gating_func", np.uint32(2)),
            ("attention.sliding_window", np.uint32(4096)),
        ),
    ),
    "turbosparse-mixtral": ExpertShape(
        "llama", 4096, 14336, 8, 2, 32, 32, 8, 128, 32000, gate_rate=0.28, firing_rate=0.15,
    ),
    "qwen3moe-30b-a3b": ExpertShape(
        "qwen3moe", 2048, 768, 128, 8, 48, 32, 4, 128, 151936,
        metadata=(("rope.freq_base", np.float32(1e6)),),
    ),
    "gpt-oss-20b": ExpertShape(
        "gpt-oss", 2880, 2880, 32, 4, 24, 64, 8, 64, 201088,
        metadata=(
            ("rope.freq_base", np.float32(150000)), ("attention.sliding_window", np.uint32(128)),
        ),
    ),
    "tiny-smallthinker": ExpertShape(
        "smallthinker", 256, 64, 8, 2, 2, 4, 2, 64, 512, gate_rate=0.4,
        metadata=(("expert_gating_func", np.uint32(2)),),
    ),
    "tiny-mixtral": ExpertShape(
        "llama", 256, 128, 4, 2, 2, 4, 2, 64, 512, gate_rate=0.28, firing_rate=0.15
    ),
    "tiny-qwen3moe": ExpertShape("qwen3moe", 256, 64, 8, 2, 2, 4, 2, 64, 512),
    "tiny-gpt-oss": ExpertShape(
        "gpt-oss", 256, 128, 4, 2, 2, 4, 2, 64, 512,
        metadata=(("attention.sliding_window", np.uint32(16)),),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Formats:
    """Of the experts' matrices, of the other ones in layers, and of the head."""

    experts: QuantFormat
    others: QuantFormat
    head: QuantFormat


class ExpertModel:
    """The tensors of one model, in file order."""

    def __init__(self, shape: ExpertShape, formats: Formats, rank: int, seed: int) -> None:
        """Take what it is made from."""
        self._shape, self._formats, self._rank = shape, formats, rank
        self._workshop = Workshop(seed)
        self._tag = 0

    def tensors(self) -> Iterator[TensorSpec]:
        """All of them; the layer is made once, at its first use."""
        shape, formats = self._shape, self._formats
        table = formats.head if shape.is_tied else formats.others
        rows = self._rows(shape.vocab_size, shape.hidden_size, 1.0)
        rows[:, 0] = CONSTANT
        yield self._matrix("token_embd.weight", rows, table)
        layer = list(self._layer())
        for number in range(shape.num_layers):
            for name, dims, format_name, data in layer:
                yield f"blk.{number}.{name}", dims, format_name, data
        yield "output_norm.weight", (shape.hidden_size,), "f32", _ones(shape.hidden_size)
        if not shape.is_tied:
            head = self._rows(shape.vocab_size, shape.hidden_size, 3 * shape.hidden_size**-0.5)
            head[:, 0] = 0
            yield self._matrix("output.weight", head, formats.head)

    def _layer(self) -> Iterator[TensorSpec]:
        yield from self._attention()
        yield from self._router()
        yield from self._experts()

    def _attention(self) -> Iterator[TensorSpec]:
        shape, hidden = self._shape, self._shape.hidden_size
        ffn_norm = "post_attention_norm" if shape.has_biases else "ffn_norm"
        for name in ("attn_norm", ffn_norm):
            yield f"{name}.weight", (hidden,), "f32", _ones(hidden)
        if shape.architecture == "qwen3moe":
            for name in ("attn_q_norm", "attn_k_norm"):
                yield f"{name}.weight", (shape.head_dim,), "f32", _ones(shape.head_dim)
        sizes = {"attn_q": shape.q_size, "attn_k": shape.kv_size, "attn_v": shape.kv_size}
        for name, size in sizes.items():
            rows = self._rows(size, hidden, hidden**-0.5)
            yield self._matrix(f"{name}.weight", rows, self._formats.others)
        out = self._rows(hidden, shape.q_size, BRANCH_SIZE * shape.q_size**-0.5)
        out[0] = 0
        yield self._matrix("attn_output.weight", out, self._formats.others)
        if shape.has_biases:
            for name, size in (sizes | {"attn_output": hidden}).items():
                yield f"{name}.bias", (size,), "f32", _zeros(size)
            yield "attn_sinks.weight", (shape.num_heads,), "f32", _zeros(shape.num_heads)

    def _router(self) -> Iterator[TensorSpec]:
        shape = self._shape
        rows = self._rows(shape.num_experts, shape.hidden_size, shape.hidden_size**-0.5)
        rows[:, 0] = 0
        yield "ffn_gate_inp.weight", rows.shape, "f32", rows.view(np.uint8).reshape(-1)
        if shape.has_biases:
            yield "ffn_gate_inp.bias", (shape.num_experts,), "f32", _zeros(shape.num_experts)

    def _experts(self) -> Iterator[TensorSpec]:
        shape, made = self._shape, self._formats.experts
        parts: dict[str, list[ByteRows]] = {}
        for _ in range(shape.num_experts):
            for name, rows, chosen in self._expert():
                parts.setdefault(name, []).append(chosen.encode(rows).reshape(-1))
        dims = {
            "ffn_gate_exps": (shape.expert_size, shape.hidden_size),
            "ffn_up_exps": (shape.expert_size, shape.hidden_size),
            "ffn_down_exps": (shape.hidden_size, shape.expert_size),
            "fc1_exps": (self._rank, shape.hidden_size),
            "fc2_exps": (shape.expert_size, self._rank),
        }
        for name, pieces in parts.items():
            full = (shape.num_experts, *dims[name])
            yield f"{name}.weight", full, made.name, np.concatenate(pieces)
            if shape.has_biases:
                size = shape.num_experts * dims[name][0]
                yield f"{name}.bias", full[:2], "f32", _zeros(size)

    def _expert(self) -> Iterator[tuple[str, FloatRows, QuantFormat]]:
        """Gate, up and down of one expert, and its predictor."""
        shape, chosen = self._shape, self._formats.experts
        size, hidden = shape.expert_size, shape.hidden_size
        gate, up = (self._rows(size, hidden, hidden**-0.5) for _ in range(2))
        is_drelu = shape.firing_rate is not None
        decided, rate = (up, shape.up_rate) if is_drelu else (gate, shape.gate_rate)
        if self._rank:
            fc1, fc2 = self._predictor(decided, rate)
        if is_drelu:
            gate *= np.float32((1 - DRELU_CORRELATION**2) ** 0.5)
            gate += np.float32(DRELU_CORRELATION) * up
        gate[:, 0], up[:, 0] = _bias_for(shape.gate_rate), _bias_for(shape.up_rate)
        down = self._rows(hidden, size, BRANCH_SIZE * (shape.num_used**0.5) * size**-0.5)
        down[0] = 0
        yield "ffn_gate_exps", gate, chosen
        yield "ffn_up_exps", up, chosen
        yield "ffn_down_exps", down, chosen
        if self._rank:
            yield "fc1_exps", fc1, chosen
            yield "fc2_exps", fc2, chosen

    def _predictor(self, rows: FloatRows, rate: float | None) -> tuple[FloatRows, FloatRows]:
        """Replace rows by ones that `rank` directions tell most of; fc1 and fc2 that do."""
        size, hidden = rows.shape
        count = (self._rank - 1) // 2
        directions = self._rows(count, hidden, hidden**-0.5)
        shares = self._rows(size, count, ((1 - NOISE) / count) ** 0.5)
        rows *= np.float32(NOISE**0.5)
        rows += shares @ directions
        # relu(P x) and relu(-P x) hold P x; the last row sees the constant alone.
        fc1 = np.zeros((self._rank, hidden), np.float32)
        fc1[:count], fc1[count : 2 * count] = directions, -directions
        fc1[2 * count, 0] = hidden**-0.5
        fc2 = np.zeros((size, self._rank), np.float32)
        fc2[:, :count], fc2[:, count : 2 * count] = shares, -shares
        shift = _bias_for(rate) * CONSTANT + MARGIN
        fc2[:, 2 * count] = shift / (hidden**-0.5 * CONSTANT)
        return fc1, fc2

    def _rows(self, rows: int, columns: int, std: float) -> FloatRows:
        self._tag += 1
        tag = self._tag

        def make(number: int, block: slice) -> FloatRows:
            return self._workshop.normal((tag, number), block.stop - block.start, columns, std)

        return np.concatenate(list(self._workshop.over_blocks(rows, make)))

    def _matrix(self, name: str, rows: FloatRows, chosen: QuantFormat) -> TensorSpec:
        blocks = self._workshop.over_blocks(len(rows), lambda _, block: chosen.encode(rows[block]))
        return name, rows.shape, chosen.name, np.concatenate(list(blocks)).reshape(-1)


def _bias_for(rate: float | None) -> float:
    """Column 0 of rows that are above zero with a rate; 0 where there is none to be kept."""
    if rate is None:
        return 0.0
    return -NormalDist().inv_cdf(1 - rate) / CONSTANT


def _is_predictor(name: str) -> bool:
    return name.endswith(("fc1_exps.weight", "fc2_exps.weight"))


def _ones(size: int) -> ByteRows:
    return np.ones(size, np.float32).view(np.uint8)


def _zeros(size: int) -> ByteRows:
    return np.zeros(size, np.float32).view(np.uint8)


def expert_metadata(shape: ExpertShape, name: str, *, is_drelu: bool) -> dict[str, object]:
    """Hyper-parameters and a made-up vocabulary."""
    integers = {
        "context_length": 4096,
        "embedding_length": shape.hidden_size,
        "block_count": shape.num_layers,
        "feed_forward_length": shape.expert_size,
        "expert_feed_forward_length": shape.expert_size,
        "expert_count": shape.num_experts,
        "expert_used_count": shape.num_used,
        "attention.head_count": shape.num_heads,
        "attention.head_count_kv": shape.num_kv_heads,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "rope.dimension_count": shape.head_dim,
    }
    prefix = shape.architecture
    metadata: dict[str, object] = {"general.architecture": prefix, "general.name": name}
    metadata |= {f"{prefix}.{key}": np.uint32(value) for key, value in integers.items()}
    metadata[f"{prefix}.attention.layer_norm_rms_epsilon"] = np.float32(1e-5)
    metadata |= {f"{prefix}.{key}": value for key, value in shape.metadata}
    if is_drelu:
        metadata["powerinfer.ffn_activation"] = "drelu"
    if shape.gate_rate is not None:
        density = shape.gate_rate if shape.firing_rate is None else shape.firing_rate
        metadata["powerinfer.synthetic.density"] = np.float32(density)
        metadata["powerinfer.synthetic.gate_density"] = np.float32(shape.gate_rate)
    return metadata | vocabulary(shape.vocab_size)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=sorted(SHAPES), required=True)
    parser.add_argument("--layers", type=int, help="other than the shape has")
    parser.add_argument("--format", default="q4_0", help="of the experts: f16 q8_0 q4_0 mxfp4")
    parser.add_argument("--other-format", help="of attention and embedding, default: as --format")
    parser.add_argument("--head-format", default="q8_0")
    parser.add_argument("--rank", type=int, default=0, help="of a predictor in each expert")
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument(
        "--plain", type=Path, help="also write the file without predictors, for peers"
    )
    options = parser.parse_args()
    shape = SHAPES[options.shape]
    if options.layers:
        shape = replace(shape, num_layers=options.layers)
    names = options.format, options.other_format or options.format, options.head_format
    formats = Formats(*(format_named(name) for name in names))
    started = time.perf_counter()
    is_drelu = shape.firing_rate is not None
    model = ExpertModel(shape, formats, options.rank, options.seed)
    metadata = expert_metadata(shape, options.output.stem, is_drelu=is_drelu)
    tensors = list(model.tensors())
    write_gguf(options.output, metadata, tensors)
    if options.plain is not None:
        write_gguf(
            options.plain, metadata, [each for each in tensors if not _is_predictor(each[0])]
        )
    print(f"{options.output.name}  {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
