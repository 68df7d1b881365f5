"""Writes random models at real shapes as GGUF, for speed only: the text they make is noise.

Weights are drawn as blocks of the format itself (random codes, scales that keep activations near
unit size), so a file of several GB takes seconds and any format can be written, also those without
an encoder. Plain llama.cpp tensor names: every engine can open the file.

    python benchmarks/synthetic.py --shape llama-7b --layers 8 --format q4_0 -o 7b-8L-q4_0.gguf
"""

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

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


SHAPES = {
    "llama-7b": Shape(4096, 11008, 32, 32, 32),
    "mistral-7b": Shape(4096, 14336, 32, 32, 8),
    "llama-13b": Shape(5120, 13824, 40, 40, 40),
    "tiny": Shape(256, 512, 2, 4, 2, 512),
}


def _half(value: float) -> npt.NDArray[np.uint8]:
    return np.frombuffer(np.float16(value).tobytes(), np.uint8)


def _blocks(random: np.random.Generator, count: int, block_bytes: int) -> npt.NDArray[np.uint8]:
    return random.integers(0, 256, (count, block_bytes), np.uint8)


def _random_rows(
    random: np.random.Generator, weight_format: str, rows: int, columns: int
) -> npt.NDArray[np.uint8]:
    """`rows` of `columns` weights with standard deviation near 1/sqrt(columns), as u8."""
    std = 1 / math.sqrt(columns)
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
    random: np.random.Generator, weight_format: str, rows: int, columns: int, *, repeats: bool
) -> Iterator[npt.NDArray[np.uint8]]:
    chunk = None
    for start in range(0, rows, ROWS_PER_CHUNK):
        count = min(ROWS_PER_CHUNK, rows - start)
        if chunk is None or not repeats:
            chunk = _random_rows(random, weight_format, count, columns)
        yield chunk[:count]


def _tensors(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    kv_size = shape.hidden_size // shape.num_heads * shape.num_kv_heads
    hidden, intermediate = shape.hidden_size, shape.intermediate_size
    yield "token_embd.weight", (shape.vocab_size, hidden)
    for i in range(shape.num_layers):
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
    yield "output.weight", (shape.vocab_size, hidden)


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


def _metadata(shape: Shape, name: str, activation: str | None) -> dict[str, object]:
    integers = {
        "llama.context_length": 4096,
        "llama.embedding_length": shape.hidden_size,
        "llama.block_count": shape.num_layers,
        "llama.feed_forward_length": shape.intermediate_size,
        "llama.rope.dimension_count": shape.hidden_size // shape.num_heads,
        "llama.attention.head_count": shape.num_heads,
        "llama.attention.head_count_kv": shape.num_kv_heads,
    }
    metadata: dict[str, object] = {"general.architecture": "llama", "general.name": name}
    metadata |= {key: np.uint32(value) for key, value in integers.items()}
    metadata["llama.attention.layer_norm_rms_epsilon"] = np.float32(1e-5)
    if activation is not None:
        metadata["powerinfer.ffn_activation"] = activation
    return metadata | vocabulary(shape.vocab_size)


def write_synthetic(
    path: Path,
    shape: Shape,
    weight_format: str,
    *,
    head_format: str | None = None,
    activation: str | None = None,
    repeats: bool = False,
    seed: int = 1234,
) -> None:
    """Write one model.

    Args:
        path: of the file.
        shape: sizes of the model.
        weight_format: of all matrices.
        head_format: of the output matrix instead.
        activation: value of `powerinfer.ffn_activation`.
        repeats: every matrix repeats its first 1024 rows, which is written ten times as fast.
        seed: of the weights.
    """
    random = np.random.Generator(np.random.SFC64(seed))
    entries: list[TensorSpec] = []
    for name, dims in _tensors(shape):
        chosen = "f32" if len(dims) == 1 else weight_format
        if name == "output.weight" and head_format is not None:
            chosen = head_format
        if len(dims) == 1:
            entries.append((name, dims, chosen, np.ones(dims, np.float32).view(np.uint8)))
        else:
            entries.append(
                (name, dims, chosen, _chunks(random, chosen, dims[0], dims[1], repeats=repeats))
            )
    write_gguf(path, _metadata(shape, path.stem, activation), entries)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=sorted(SHAPES), default="llama-7b")
    parser.add_argument("--layers", type=int, help="fewer layers than the shape has")
    parser.add_argument("--format", default="q4_0", help="f32 f16 q8_0 q4_0 q4_k q6_k")
    parser.add_argument("--head-format", help="format of the output matrix")
    parser.add_argument("--activation", help="value of powerinfer.ffn_activation")
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    shape = SHAPES[options.shape]
    if options.layers:
        shape = replace(shape, num_layers=options.layers)
    write_synthetic(
        options.output,
        shape,
        options.format,
        head_format=options.head_format,
        activation=options.activation,
        seed=options.seed,
    )


if __name__ == "__main__":
    main()
