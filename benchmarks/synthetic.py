"""Writes random models at real shapes as GGUF, for speed only: the text they make is noise.

Weights are drawn as blocks of the format itself (random codes, scales that keep activations near
unit size), so a file of several GB takes seconds and any format can be written, also those without
an encoder. Plain llama.cpp tensor names: every engine can open the file.

    python benchmarks/synthetic.py --shape llama-7b --layers 8 --format q4_0 -o 7b-8L-q4_0.gguf
    python benchmarks/synthetic.py --shape qwen35-9b --layers 8 -o qwen35-9b-8L-q4_0.gguf
    python benchmarks/synthetic.py --shape qwen35-9b --layers 8 --vocab 512 -o qwen35-9b-trunk.gguf
    python benchmarks/synthetic.py --shape nemotron-3-nano-30b --layers 12 --zeros 0.9 -o nano.gguf

Llama's shapes apart, models are those of `families/`: a head (or an embedding that is also the
head) in Q6_K, or in Q8_0 if its rows are no whole blocks, as llama.cpp's Q4_0 has; true
vocabularies in size; in F32 what llama.cpp quantizes but `powerinfer convert` does not (`ssm_alpha`
and `ssm_beta`). `--vocab` cuts the vocabulary: what remains is the trunk, whose speed is measured
without that of the head. `--zeros` lets neurons of Nemotron-H be zero as often as in the trained
model.
"""

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from families.family import FamilyShape
from families.gemma4 import Gemma4Shape
from families.lfm2 import LFM2Shape
from families.nemotron_h import NemotronHShape
from families.nemotron_zeros import PlantedZeros
from families.qwen35 import Qwen35Shape
from powerinfer.gguf import TensorSpec, write_gguf

ROWS_PER_CHUNK = 1024


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama-shaped model."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    vocab_size: int = 32000

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Names and shapes, outermost dimension first."""
        kv_size = self.hidden_size // self.num_heads * self.num_kv_heads
        hidden, intermediate = self.hidden_size, self.intermediate_size
        yield "token_embd.weight", (self.vocab_size, hidden)
        for i in range(self.num_layers):
            yield f"blk.{i}.attn_norm.weight", (hidden,)
            yield f"blk.{i}.attn_q.weight", (hidden, hidden)
            yield f"blk.{i}.attn_k.weight", (kv_size, hidden)
            yield f"blk.{i}.attn_v.weight", (kv_size, hidden)
            yield f"blk.{i}.attn_output.weight", (hidden, hidden)
            yield f"blk.{i}.ffn_norm.weight", (hidden,)
            yield f"blk.{i}.ffn_gate.weight", (intermediate, hidden)
            yield f"blk.{i}.ffn_up.weight", (intermediate, hidden)
            yield f"blk.{i}.ffn_down.weight", (hidden, intermediate)
        yield "output_norm.weight", (hidden,)
        yield "output.weight", (self.vocab_size, hidden)

    def metadata(self, name: str) -> dict[str, object]:
        """Sizes and a vocabulary."""
        integers = {
            "llama.context_length": 4096,
            "llama.embedding_length": self.hidden_size,
            "llama.block_count": self.num_layers,
            "llama.feed_forward_length": self.intermediate_size,
            "llama.rope.dimension_count": self.hidden_size // self.num_heads,
            "llama.attention.head_count": self.num_heads,
            "llama.attention.head_count_kv": self.num_kv_heads,
        }
        metadata: dict[str, object] = {"general.architecture": "llama", "general.name": name}
        metadata |= {key: np.uint32(value) for key, value in integers.items()}
        metadata["llama.attention.layer_norm_rms_epsilon"] = np.float32(1e-5)
        return metadata | vocabulary(self.vocab_size)


_NEMOTRON_H_8B = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
_NEMOTRON_3_NANO = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
SHAPES: dict[str, Shape | FamilyShape] = {
    "llama-7b": Shape(4096, 11008, 32, 32, 32),
    "mistral-7b": Shape(4096, 14336, 32, 32, 8),
    "llama-13b": Shape(5120, 13824, 40, 40, 40),
    "lfm2-1.2b": LFM2Shape(2048, 8192, 16, 32, 8, 64, 65536, (2, 5, 8, 10, 12, 14)),
    "qwen35-9b": Qwen35Shape(4096, 12288, 32, 16, 4, 256, 248320, 16, 32, 128),
    "qwen35-35b-a3b": Qwen35Shape(2048, 512, 40, 16, 2, 256, 248320, 16, 32, 128, 256),
    "nemotron-h-8b": NemotronHShape(
        *(4096, 21504, 52, 32, 8, 128, 131072, _NEMOTRON_H_8B, 128, 64),
    ),
    "nemotron-3-nano-30b": NemotronHShape(
        *(2688, 1856, 52, 32, 2, 128, 131072, _NEMOTRON_3_NANO, 64, 64),
        num_experts=128,
        shared_size=3712,
    ),
    "gemma4-e4b": Gemma4Shape(
        *(2560, 10240, 42, 8, 2, 256, 262144, 512, 2, 512), num_shared=18, per_layer_size=256
    ),
    "gemma4-26b-a4b": Gemma4Shape(
        *(2816, 2112, 30, 16, 8, 256, 262144, 512, 2, 1024), num_experts=128, expert_size=704
    ),
    "tiny": Shape(256, 512, 2, 4, 2, 512),
    "tiny-lfm2": LFM2Shape(256, 512, 2, 4, 2, 64, 512, (1,)),
    "tiny-qwen35": Qwen35Shape(256, 512, 4, 4, 2, 64, 512, 2, 4, 32),
    "tiny-qwen35moe": Qwen35Shape(256, 256, 4, 4, 2, 64, 512, 2, 4, 32, 8, 2),
    "tiny-nemotron-h": NemotronHShape(256, 512, 4, 4, 2, 64, 512, "M*M-", 4, 64, 2, 32),
    "tiny-nemotron-h-moe": NemotronHShape(
        *(256, 256, 4, 4, 2, 64, 512, "ME*E", 4, 64, 2, 32),
        num_experts=8,
        num_used=2,
        shared_size=256,
    ),
    "tiny-gemma4": Gemma4Shape(
        *(256, 512, 7, 4, 2, 64, 512, 128, 2, 16), num_shared=1, per_layer_size=64
    ),
    "tiny-gemma4-moe": Gemma4Shape(
        *(256, 512, 7, 4, 2, 64, 512, 128, 1, 16), num_experts=8, num_used=2, expert_size=64
    ),
}
# Matrices that stay F32: routers, kernels of convolutions, and what decides about states.
_PLAIN = ("ffn_gate_inp.weight", "conv1d.weight", "conv.weight", "alpha.weight", "beta.weight")


_PLANTED_NORMS = (".attn_norm.weight", "output_norm.weight")
# Parameters that stay F32 though they have two dimensions.
_VECTORS = ("ssm_a", "ssm_d", "ssm_norm.weight")


def _half(value: float) -> npt.NDArray[np.uint8]:
    return np.frombuffer(np.float16(value).tobytes(), np.uint8)


def _blocks(random: np.random.Generator, count: int, block_bytes: int) -> npt.NDArray[np.uint8]:
    return random.integers(0, 256, (count, block_bytes), np.uint8)


def _random_rows(
    random: np.random.Generator, weight_format: str, rows: int, columns: int, std: float
) -> npt.NDArray[np.uint8]:
    """`rows` of `columns` weights with about this standard deviation, as u8."""
    if weight_format in ("f32", "f16"):
        values = random.standard_normal((rows, columns), np.float32) * np.float32(std)
        return values.astype(np.float32 if weight_format == "f32" else np.float16).view(np.uint8)
    if weight_format == "q8_0":
        blocks = _blocks(random, rows * columns // 32, 34)
        blocks[:, :2] = _half(std / 74)
    elif weight_format == "q4_0":
        blocks = _blocks(random, rows * columns // 32, 18)
        blocks[:, :2] = _half(std / 4.6)
    elif weight_format == "q4_k":
        blocks = _blocks(random, rows * columns // 256, 144)
        blocks[:, 0:2] = _half(std / 200)
        blocks[:, 2:4] = _half(7.5 * std / 200)
    elif weight_format == "q6_k":
        blocks = _blocks(random, rows * columns // 256, 210)
        # Small sub-block scales, or the super-block scale would be a subnormal half.
        scales = random.integers(-8, 9, (len(blocks), 16), np.int8)
        blocks[:, 192:208] = scales.view(np.uint8)
        blocks[:, 208:210] = _half(std / (5 * 18.5))
    else:
        known = "f32 f16 q8_0 q4_0 q4_k q6_k"
        raise SystemExit(f"error: no random blocks for {weight_format!r}, only {known}")
    return blocks.reshape(rows, -1)


def _chunks(
    random: np.random.Generator,
    weight_format: str,
    name: str,
    dims: tuple[int, ...],
    *,
    repeats: bool,
    zeros: PlantedZeros | None,
) -> Iterator[npt.NDArray[np.uint8]]:
    rows, columns, chunk = math.prod(dims[:-1]), dims[-1], None
    std = 1 / math.sqrt(columns) if zeros is None else zeros.std(name, columns)
    for start in range(0, rows, ROWS_PER_CHUNK):
        count = min(ROWS_PER_CHUNK, rows - start)
        if chunk is None or not repeats:
            chunk = _random_rows(random, weight_format, count, columns, std)
        if zeros is not None:
            zeros.change_rows(name, start, chunk)
        yield chunk[:count]


def _vector(random: np.random.Generator, name: str, size: int) -> npt.NDArray[np.float32]:
    """Ones for norms; what makes a state forget in about ten tokens; a gate of about one half.

    Biases are zeros.
    """
    if name.endswith("ssm_a"):
        return np.full(size, -0.15, np.float32)
    if name.endswith(".bias"):
        return np.zeros(size, np.float32)
    if name == "rope_freqs.weight":
        # A quarter of the pairs rotates.
        return np.where(np.arange(size) < size // 4, 1.0, 1e30).astype(np.float32)
    if name.endswith("ffn_gate_inp_shexp.weight"):
        return random.standard_normal(size, np.float32) * np.float32(size**-0.5)
    return np.ones(size, np.float32)


def vocabulary(size: int) -> dict[str, object]:
    """A SentencePiece-style vocabulary of `size` made-up pieces with byte fallback."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    tokens += [f"\u2581{i:x}" for i in range(size - len(tokens))]
    others = range(len(tokens) - 259)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": np.array([0.0] * 259 + [-float(i) for i in others], "f4"),
        "tokenizer.ggml.token_type": np.array([2, 3, 3] + [6] * 256 + [1] * len(others), np.int32),
        "tokenizer.ggml.bos_token_id": np.uint32(1),
        "tokenizer.ggml.eos_token_id": np.uint32(2),
        "tokenizer.ggml.unknown_token_id": np.uint32(0),
    }


def write_synthetic(  # noqa: PLR0913  the options of the command
    path: Path,
    shape: Shape | FamilyShape,
    weight_format: str,
    *,
    head_format: str | None = None,
    activation: str | None = None,
    repeats: bool = False,
    zeros: float | None = None,
    seed: int = 1234,
) -> None:
    """Write one model.

    Args:
        path: of the file.
        shape: sizes of the model.
        weight_format: of all matrices.
        head_format: of the output matrix instead, or of an embedding that is also the head.
        activation: value of `powerinfer.ffn_activation`.
        repeats: every matrix repeats its first 1024 rows, which is written ten times as fast.
        zeros: share of neurons to be zero for a token, of Nemotron-H in Q4_0.
        seed: of the weights.
    """
    planted = None
    if zeros is not None:
        if not isinstance(shape, NemotronHShape) or weight_format != "q4_0":
            raise SystemExit("error: zeros can be planted in shapes of Nemotron-H in q4_0 only")
        planted = PlantedZeros(shape, zeros)
    random = np.random.Generator(np.random.SFC64(seed))
    named = list(shape.tensors())
    head = "output.weight"
    if head not in dict(named):
        head = "token_embd.weight"
    entries: list[TensorSpec] = []
    for name, dims in named:
        if len(dims) == 1 or name.endswith(_VECTORS):
            if planted is not None and name.endswith(_PLANTED_NORMS):
                numbers = planted.norm(name)
            else:
                numbers = _vector(random, name, math.prod(dims))
            entries.append((name, dims, "f32", numbers.view(np.uint8)))
            continue
        chosen = "f32" if name.endswith(_PLAIN) else weight_format
        if name == head and head_format is not None:
            # As llama.cpp does where rows are no whole blocks of 256.
            is_whole = head_format != "q6_k" or dims[-1] % 256 == 0
            chosen = head_format if is_whole else "q8_0"
        rows = _chunks(random, chosen, name, dims, repeats=repeats, zeros=planted)
        entries.append((name, dims, chosen, rows))
    metadata = shape.metadata(path.stem)
    if activation is not None:
        metadata["powerinfer.ffn_activation"] = activation
    if zeros is not None:
        metadata["powerinfer.synthetic.density"] = np.float32(1 - zeros)
    write_gguf(path, metadata, entries)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=sorted(SHAPES), default="llama-7b")
    parser.add_argument("--layers", type=int, help="fewer layers than the shape has")
    parser.add_argument("--format", default="q4_0", help="f32 f16 q8_0 q4_0 q4_k q6_k")
    parser.add_argument(
        "--head-format", help="format of the output matrix, default q6_k with state, else --format"
    )
    parser.add_argument("--vocab", type=int, help="tokens other than the shape has")
    parser.add_argument("--activation", help="value of powerinfer.ffn_activation")
    parser.add_argument("--zeros", type=float, help="share of neurons of Nemotron-H that are zero")
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    shape = SHAPES[options.shape]
    if options.layers:
        shape = replace(shape, num_layers=options.layers)
    if options.vocab:
        shape = replace(shape, vocab_size=options.vocab)
    write_synthetic(
        options.output,
        shape,
        options.format,
        head_format=options.head_format or ("q6_k" if isinstance(shape, FamilyShape) else None),
        activation=options.activation,
        zeros=options.zeros,
        seed=options.seed,
    )


if __name__ == "__main__":
    main()
