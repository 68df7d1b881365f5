"""Compiles every Triton kernel for a GPU that is not here; run by scripts/gpu-ahead.

Launchers run as they are, on tensors of torch's cpu device whose contents do not matter, with
shapes of real models; in place of a launch the kernel is compiled for the types, the divisibility
and the constants that it was launched with. Argument: compute capability, for example 90.

Prints a line for each, separated by tabs: name, registers of a thread, bytes of a thread's stack
(spilled registers), bytes of shared memory, constants. Fails where one is above the limits below,
and where nothing here launches a kernel.
"""

import os
import re
import subprocess
import sys
import tempfile

from patience import PATIENCE_S

os.environ["TRITON_INTERPRET"] = "0"

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from powerinfer.ops.gpu import kernels
from powerinfer.ops.gpu.ffn import (
    HotNeurons,
    hot_ffn,
)
from powerinfer.ops.gpu.kernels import handover, norm, overlap
from powerinfer.ops.gpu.kernels.listing import write_cold
from powerinfer.ops.gpu.kernels.matvec import matvec
from powerinfer.ops.gpu.kernels.packing import PACKED_AT_ONCE, pack_rows
from powerinfer.ops.gpu.kernels.prompts import decoded, halved, select_values
from powerinfer.ops.gpu.kernels.route import choose_experts
from powerinfer.ops.gpu.matrix import DeviceMatrix, empty_matrix
from powerinfer.ops.gpu.ops import TorchGPU
from powerinfer.ops.gpu.selection import predict
from powerinfer.ops.operands import HeadNorms, KVType, NeuronPredictor, RopeTable, ScoreStage
from powerinfer.quant import get_format
from powerinfer.values import Activation, ActivationKind, Batch

_TYPES = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
}
_OPTIONS = ("num_warps", "num_stages", "maxnreg")
_HIDDEN, _NEURONS = 4096, 11008
_PACKED_BLOCKS = (("q8_0", 1), ("q4_0", 2), ("q4_k", 1), ("q5_k", 8), ("q6_k", 1))
# What a program may have on consumer GPUs since Ampere; data centre GPUs have more.
_SHARED_BYTES = 99 << 10
# Of a thread, where it is not 0. Attention of prompts has all 255 registers: it spilled 48 bytes on
# sm_90, whose tensor cores read from shared memory; 1,128 on sm_120 and 1,384 on sm_80, with Q8_0
# keys and Triton 3.4. Other tiles spill less, see its kernel: to be lowered with times of a GPU.
_STACK_BYTES: dict[tuple[str, int | None], int] = {
    ("many_tokens_kernel", 90): 64,
    ("many_tokens_kernel", None): 1408,
    # Soft caps take registers; with Q8_0 keys it spilled 120 bytes on sm_90.
    ("many_tokens_kernel, capped", 90): 128,
    ("many_tokens_kernel, capped", None): 1408,
    # One number or address, stored and loaded outside loops, of 56 to 168 registers: the assembler
    # gains a step of occupancy by it. In this order: heads of 256 numbers with norms; F16 and BF16
    # with a bias; values in Q8_0, and in F16 of eight tokens; down in Q4_K, and all rows in Q5_K.
    ("rope_and_store_kernel", 90): 8,  # Triton 3.6
    ("matvec_kernel", 120): 8,  # Triton 3.4
    ("value_kernel", 80): 8,  # Triton 3.4
    ("value_kernel", 120): 8,  # Triton 3.6
    ("down_kernel", 120): 16,  # Triton 3.6
}
_USAGE = re.compile(r"Function \w*_kernel\w*:\s+REG:(\d+) STACK:(\d+)")


class Compiler:
    """Stands in for launching."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)
        self._seen: set[Any] = set()
        self.names: set[str] = set()
        self.too_large: list[str] = []

    def launch(self, kernel: Any, arguments: dict[str, Any]) -> None:
        """Compile `kernel` for these arguments, unless that was done."""
        options = {name: arguments.pop(name) for name in _OPTIONS if name in arguments}
        types: dict[str, str] = {}
        constants: dict[str, Any] = {}
        attributes: dict[tuple[int], list[list[Any]]] = {}
        for number, parameter in enumerate(kernel.params):
            value = arguments.get(parameter.name, parameter.default)
            types[parameter.name], is_aligned = _type_of(value, parameter)
            if types[parameter.name] == "constexpr":
                constants[parameter.name] = value
            elif is_aligned:
                attributes[number,] = [["tt.divisibility", 16]]
        key = (kernel.__name__, str(types), str(constants), str(attributes), str(options))
        if key in self._seen:
            return
        self._seen.add(key)
        self.names.add(kernel.__name__)
        source = ASTSource(kernel, types, constexprs=constants, attrs=attributes)
        compiled = triton.compile(source, target=self._target, options=options)
        if not compiled.asm["cubin"]:
            raise RuntimeError(f"{kernel.__name__} became nothing")
        registers, stack = _usage(compiled.asm["cubin"])
        shared = compiled.metadata.shared
        line = f"{kernel.__name__}\t{registers}\t{stack}\t{shared}\t{constants} {options}"
        sys.stdout.write(f"{line}\n")
        name, arch = kernel.__name__, self._target.arch
        if constants.get("IS_CAPPED"):
            name += ", capped"
        allowed = _STACK_BYTES.get((name, arch), _STACK_BYTES.get((name, None), 0))
        if stack > allowed or shared > _SHARED_BYTES:
            self.too_large.append(line)


def _written() -> set[str]:
    """Names of all kernels, by their definitions."""
    texts = [path.read_text("utf-8") for path in Path(kernels.__file__).parent.glob("*.py")]
    return {name for text in texts for name in re.findall(r"^def (\w+_kernel)\(", text, re.M)}


def _usage(cubin: bytes) -> tuple[int, int]:
    """Registers and bytes of stack of a thread."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        told = subprocess.run(
            [tool, "--dump-resource-usage", file.name],
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE_S,
        )
    found = _USAGE.search(told.stdout)
    if found is None:
        raise RuntimeError(f"cuobjdump told nothing of the kernel: {told.stdout}")
    return int(found[1]), int(found[2])


def _type_of(value: Any, parameter: Any) -> tuple[str, bool]:
    """Type as a launch would see it, and whether it is known to be a multiple of 16."""
    if parameter.is_constexpr or value is None:
        return "constexpr", False
    if isinstance(value, torch.Tensor):
        return f"*{_TYPES[value.dtype]}", True
    if isinstance(value, bool):
        return "i1", False
    if isinstance(value, int):
        return ("constexpr", False) if value == 1 else ("i32", value % 16 == 0)
    return "fp32", False


def _empty(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.zeros(shape, dtype=dtype)


def _neurons(name: str, kind: ActivationKind, *, is_gated: bool, is_exact: bool) -> HotNeurons:
    def matrix() -> DeviceMatrix:
        return empty_matrix(name, _NEURONS, _HIDDEN, "cpu")

    bias = None if is_gated else _empty(_NEURONS)
    return HotNeurons(
        matrix() if is_gated else None,
        matrix(),
        matrix(),
        _empty(_NEURONS, dtype=torch.int32),
        _empty(_NEURONS, dtype=torch.int32),
        Activation(kind),
        is_exact,
        up_bias=bias,
        down_bias=None if is_gated else _empty(_HIDDEN),
        counters=_empty(3, dtype=torch.int64),
    )


def _products() -> None:
    for name in ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_k", "q5_k", "q6_k"):
        for num_tokens in (1, 8) if name != "f16" else (1, 2, 4, 8):
            matrix = empty_matrix(name, _HIDDEN, _HIDDEN, "cpu")
            matvec(_empty(num_tokens, _HIDDEN), matrix, _empty(_HIDDEN))
        if matrix.bits:
            matvec(_empty(2, 11008), empty_matrix(name, _HIDDEN, 11008, "cpu"))
    # Widths that no tile divides, and rows that begin at odd addresses.
    matvec(_empty(1, 1001), empty_matrix("f16", 77, 1001, "cpu"))


def _prompts() -> None:
    for name in ("q8_0", "q4_0", "lowbit2", "sign"):
        decoded(empty_matrix(name, _HIDDEN, _HIDDEN, "cpu"))
    for name in PACKED_AT_ONCE:
        packed = empty_matrix(name, _HIDDEN, _HIDDEN, "cpu")
        encoded = _empty(_HIDDEN, get_format(name).num_bytes(_HIDDEN), dtype=torch.uint8)
        pack_rows(encoded, name, packed.values, _empty(_HIDDEN, 144, dtype=torch.float16))
    halved(_empty(512, _HIDDEN), 1024.0)
    values, mask = _empty(512, _NEURONS), _empty(512, _NEURONS, dtype=torch.uint8)
    table, counters = _empty(_NEURONS, dtype=torch.int32), _empty(3, dtype=torch.int64)
    for neurons, counted in ((table, counters), (None, counters), (table, None)):
        select_values(values, neurons, mask, counted)
        select_values(values, neurons, None, counted)


def _predictors() -> None:
    for name, num_tokens in (("f16", 1), ("q4_0", 2), ("lowbit2", 1), ("lowbit3", 8)):
        first: Any = ScoreStage(empty_matrix("sign", _NEURONS, _HIDDEN, "cpu"), None, 0.5)
        second = ScoreStage(empty_matrix(name, _NEURONS, _HIDDEN, "cpu"), _empty(_NEURONS), 0.0)
        centred = NeuronPredictor(None, _empty(_HIDDEN), (first, second))
        predict(_empty(num_tokens, _HIDDEN), centred)
    stage: Any = ScoreStage(empty_matrix("f16", _NEURONS, 1024, "cpu"), None, 0.5)
    predict(
        _empty(1, _HIDDEN),
        NeuronPredictor(empty_matrix("f16", 1024, _HIDDEN, "cpu"), None, (stage,)),
    )


def _routers() -> None:
    for num_experts, num_used in ((8, 2), (128, 8)):
        for is_sigmoid in (False, True):
            for is_normalized in (False, True):
                rule = {"is_sigmoid": is_sigmoid, "is_normalized": is_normalized}
                choose_experts(_empty(2, num_experts), num_used, **rule)


def _blocks() -> None:
    for name, num_tokens in (("f16", 1), ("f16", 8), ("bf16", 4), *_PACKED_BLOCKS):
        x, mask = _empty(num_tokens, _HIDDEN), _empty(num_tokens, _NEURONS, dtype=torch.uint8)
        hot = _neurons(name, ActivationKind.RELU, is_gated=True, is_exact=True)
        hot_ffn(x, hot, mask)
        hot_ffn(x, hot, None)
        # All rows of down, without a list.
        hot_ffn(x, _neurons(name, ActivationKind.SILU, is_gated=True, is_exact=True), None)
    x, mask = _empty(1, _HIDDEN), _empty(1, _NEURONS, dtype=torch.uint8)
    for kind in ActivationKind:
        hot_ffn(x, _neurons("f16", kind, is_gated=True, is_exact=True), mask)
        hot_ffn(x, _neurons("f16", kind, is_gated=False, is_exact=False), None)
    hot = _neurons("f16", ActivationKind.RELU, is_gated=True, is_exact=True)
    for weights in (_empty(1, 8), _empty(1, _NEURONS)):
        hot_ffn(x, hot, mask, weights)
        hot_ffn(x, hot, None, weights)
    words = _empty(1, _NEURONS // 32, dtype=torch.int32)
    write_cold(mask, hot.slot_of_neuron, words)
    write_cold(None, hot.slot_of_neuron, words)


def _dense(gpu: TorchGPU) -> None:
    x, weight = _empty(2, _HIDDEN), _empty(_HIDDEN)
    for is_rounded in (False, True):
        norm.rms_norm(x, weight, 1e-5, is_rounded=is_rounded)
        norm.layer_norm(x, weight, weight, 1e-5, is_rounded=is_rounded)
    gpu.has_packed = True
    handover.copy_to_host(x, _empty(2, _HIDDEN))
    handover.add_to(x, _empty(2, _HIDDEN))
    handover.update_scores(_empty(_NEURONS), _empty(2, _NEURONS, dtype=torch.uint8), 0.9)


def _attention(gpu: TorchGPU) -> None:
    angles = np.zeros((4096, 64), np.float32)
    for num_heads, num_kv_heads, head_dim, kv_type in (
        (32, 32, 128, KVType.F16),
        (32, 8, 128, KVType.Q8_0),
        (128, 8, 64, KVType.F16),
        (4, 2, 256, KVType.F16),
    ):
        (cache,) = gpu.new_kv_layers(1, 16, 256, num_kv_heads, head_dim, kv_type)
        norms = HeadNorms(_empty(head_dim), _empty(head_dim), 1e-6)
        for num_tokens in (1, 64):
            q = _empty(num_tokens, num_heads * head_dim)
            k, v = (_empty(num_tokens, num_kv_heads * head_dim) for _ in range(2))
            batch = _batch(num_tokens)
            for is_interleaved in (True, False):
                half = angles[:, : head_dim // 2]
                table = RopeTable(half, half, is_interleaved)
                gpu.rope_and_store(q, k, v, cache, batch, table)
                gpu.rope_and_store(q, k, v, cache, batch, table, norms)
            gpu.rope_and_store(q, k, v, cache, batch, None)
            gpu.rope_and_store(q, k, v, cache, batch, None, norms)
            gpu.attention(q, cache, batch, 0.1)
            gpu.attention(q, cache, batch, 0.1, 1024)
            gpu.attention(q, cache, batch, 0.1, sinks=_empty(num_heads), soft_cap=50.0)


def _batch(num_tokens: int) -> Batch:
    return Batch(
        np.zeros(num_tokens, np.int32),
        np.arange(num_tokens, dtype=np.int32),
        np.zeros(num_tokens, np.int32),
        np.arange(16, dtype=np.int32)[None, :],
    )


def _everything() -> Iterator[Callable[[], None]]:
    gpu = TorchGPU("cpu")
    yield _products
    yield _prompts
    yield _predictors
    yield _routers
    yield _blocks
    yield lambda: _dense(gpu)
    yield lambda: _attention(gpu)


def main() -> None:
    """Compile all."""
    compiler = Compiler(int(sys.argv[1]))
    overlap.OVERLAPS = triton.language.constexpr(int(sys.argv[1]) >= 90)

    def run(kernel: Any, *args: Any, grid: Any, warmup: bool = False, **options: Any) -> None:
        compiler.launch(kernel, {**dict(zip(kernel.arg_names, args, strict=False)), **options})

    JITFunction.run = run
    for work in _everything():
        work()
    written = _written()
    if not written or written - compiler.names:
        raise SystemExit(f"kernels that nothing here launches: {sorted(written - compiler.names)}")
    if compiler.too_large:
        raise SystemExit(
            "above the limits of tests/support/triton_ahead.py for stack or shared memory:\n"
            + "\n".join(compiler.too_large)
        )


if __name__ == "__main__":
    main()
