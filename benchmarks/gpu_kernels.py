"""Times kernels of decoding on a GPU, beside a copy: us, GB/s and their share of its speed.

    python benchmarks/gpu_kernels.py -o gpu-kernels.json
    python benchmarks/gpu_kernels.py --device cpu          # interprets tiny shapes: does it run?

A row is the median of replays of a CUDA graph that calls a kernel with one matrix after the other,
more than caches hold. GB/s count the bytes of weights that a call must read, the launch included.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gpu_check.replays import copy_speed
from gpu_machine import describe_gpu

_FORMATS = "f16,q8_0,q4_0,q4_k,q5_k,q6_k"
_ACTIVE_SHARE = 0.12
_REPEATS = 9


@dataclass(frozen=True)
class _Sizes:
    """Widths of a model, and bytes that no cache holds."""

    hidden: int
    heads: int
    neurons: int
    rank: int
    output: int
    cold_bytes: int


_OF_7B = _Sizes(4096, 4096, 11008, 1024, 32000, 1 << 28)
_TINY = _Sizes(256, 8, 16, 256, 8, 0)


@dataclass(frozen=True)
class _Row:
    """One call of a kernel, or of a few in a row."""

    kernel: str
    shape: str
    format: str
    seconds: float
    num_bytes: int


class _Bench:
    """Makes matrices and times calls on a device."""

    def __init__(self, device: str, sizes: _Sizes) -> None:
        import torch

        from powerinfer.ops.gpu.devices import open_device

        self.device, self.sizes = open_device(device), sizes
        self.is_cuda = self.device.type == "cuda"
        torch.manual_seed(0)

    def numbers(self, *shape: int) -> Any:
        import torch

        return torch.randn(shape, device=self.device)

    def matrices(self, format_name: str, rows: int, columns: int) -> list[Any]:
        """Make as many matrices as no cache holds, of random numbers."""
        from powerinfer.ops.gpu.formats import device_bytes

        num_bytes = device_bytes(format_name, rows, columns)
        count = max(2, math.ceil(self.sizes.cold_bytes / num_bytes))
        return [self._matrix(format_name, rows, columns) for _ in range(count)]

    def _matrix(self, format_name: str, rows: int, columns: int) -> Any:
        from powerinfer.ops.gpu.matrix import empty_matrix

        matrix = empty_matrix(format_name, rows, columns, self.device)
        if not matrix.bits:
            matrix.values.normal_()
        else:
            matrix.values.random_(-(2**31), 2**31 - 1)
            matrix.scales.fill_(2**-10)
        return matrix

    def seconds(self, calls: Sequence[Callable[[], object]]) -> float:
        """Measure the median time of a call among these."""
        return self._replayed_s(calls) if self.is_cuda else _wall_s(calls[0])

    def _replayed_s(self, calls: Sequence[Callable[[], object]]) -> float:
        import torch

        for call in calls:
            call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in calls:
                call()
        times: list[float] = []
        for _ in range(_REPEATS):
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            # Keeps the device busy while the timed replay is being queued.
            graph.replay()
            first.record()
            graph.replay()
            last.record()
            torch.cuda.synchronize()
            times.append(first.elapsed_time(last) * 1e-3 / len(calls))
        return statistics.median(times)


def _wall_s(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _small(bench: _Bench) -> Iterator[_Row]:
    """What lies between products."""
    from powerinfer.ops.gpu.kernels.blocks import quantized
    from powerinfer.ops.gpu.kernels.norm import rms_norm

    hidden = bench.sizes.hidden
    weight = bench.numbers(hidden)
    for num_tokens in (1, 8):
        x = bench.numbers(num_tokens, hidden)
        shape = f"{num_tokens} x {hidden}"
        work: dict[str, Callable[[], object]] = {
            "rms_norm": partial(rms_norm, x, weight, 1e-5),
            "quantize": partial(quantized, x),
        }
        for kernel, call in work.items():
            seconds = bench.seconds([call] * 16)
            yield _Row(kernel, shape, "f32", seconds, x.numel() * 4)


def _products(bench: _Bench, format_name: str) -> Iterator[_Row]:
    """Inputs that are rounded beforehand, as one rounding serves several products."""
    from powerinfer.ops.gpu.kernels.matvec import input_blocks, matvec

    sizes = bench.sizes
    shapes = (
        (sizes.heads, sizes.hidden),
        (3 * sizes.heads, sizes.hidden),
        (sizes.output, sizes.hidden),
    )
    for rows, columns in shapes:
        matrices = bench.matrices(format_name, rows, columns)
        for num_tokens in (1, 8):
            x = bench.numbers(num_tokens, columns)
            blocks = input_blocks(x, matrices[0])
            seconds = bench.seconds([partial(matvec, x, one, blocks=blocks) for one in matrices])
            shape = f"{num_tokens} x {columns} -> {rows}"
            yield _Row("matvec", shape, format_name, seconds, matrices[0].nbytes)


def _predictors(bench: _Bench, format_name: str) -> Iterator[_Row]:
    """The input's rounding is part of it."""
    from powerinfer.ops.gpu.kernels.predict import score_mask

    rows, columns = bench.sizes.neurons, bench.sizes.rank
    matrices = bench.matrices(format_name, rows, columns)
    x = bench.numbers(1, columns)
    seconds = bench.seconds([partial(score_mask, x, one, None, 0.0) for one in matrices])
    yield _Row("mask", f"1 x {columns} -> {rows}", format_name, seconds, matrices[0].nbytes)


def _neurons(bench: _Bench, format_name: str) -> Iterator[_Row]:
    """A gated block over some listed neurons: their values, then their sum; all in `ffn`."""
    import torch

    from powerinfer.ops.gpu import ffn
    from powerinfer.ops.gpu.kernels.listing import list_predicted
    from powerinfer.values import Activation, ActivationKind

    hidden, neurons = bench.sizes.hidden, bench.sizes.neurons
    ids = torch.arange(neurons, dtype=torch.int32, device=bench.device)
    triples = [[bench._matrix(format_name, neurons, hidden) for _ in range(3)] for _ in range(2)]
    row_bytes = triples[0][0].row_bytes
    while 3 * len(triples) * neurons * row_bytes < 8 * bench.sizes.cold_bytes:
        triples.append([bench._matrix(format_name, neurons, hidden) for _ in range(3)])
    # Nothing is skipped, so that it is known how much is read.
    activation = Activation(ActivationKind.RELU)
    hots = [
        ffn.HotNeurons(gate, up, down, ids, ids, activation, is_exact_sparse=False)
        for gate, up, down in triples
    ]
    x = bench.numbers(1, hidden)
    masks = [
        (torch.rand((1, neurons), device=bench.device) < _ACTIVE_SHARE).to(torch.uint8)
        for _ in hots
    ]
    num_rows = sum(int(mask.sum()) for mask in masks) / len(masks)
    lists = [list_predicted(mask, ids) for mask in masks]
    values = [torch.rand((1, neurons), device=bench.device) + 0.5 for _ in hots]

    def value(number: int) -> object:
        return ffn._slot_values(x, hots[number], masks[number], None, lists[number])

    def add_up(number: int) -> object:
        return ffn._sum_down(values[number], hots[number], lists[number])

    def whole(number: int) -> object:
        return ffn.hot_ffn(x, hots[number], masks[number])

    for kernel, work, parts in (("value", value, 2), ("down", add_up, 1), ("ffn", whole, 3)):
        seconds = bench.seconds([partial(work, number) for number in range(len(hots))])
        shape = f"1 x {hidden}, {num_rows:.0f} of {neurons} rows"
        yield _Row(kernel, shape, format_name, seconds, int(num_rows * parts * row_bytes))


def _rows(bench: _Bench, formats: Sequence[str]) -> Iterator[_Row]:
    yield from _small(bench)
    for format_name in formats:
        for kind in (_products, _predictors, _neurons):
            yield from kind(bench, format_name)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--formats", default=_FORMATS, help=f"default: {_FORMATS}")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    formats = options.formats.split(",")
    if unknown := set(formats) - set(_FORMATS.split(",")):
        parser.error(f"--formats: {', '.join(sorted(unknown))}; there are {_FORMATS}")
    try:
        machine = describe_gpu(options.device)
    except (ImportError, RuntimeError, AssertionError) as error:
        parser.error(f"no usable device {options.device!r}: {error}")
    bench = _Bench(options.device, _OF_7B if options.device != "cpu" else _TINY)
    copied = copy_speed() if bench.is_cuda else math.nan
    print(f"{machine['gpu']}; a copy reads and writes {copied * 1e-9:.0f} GB/s\n")
    print("| kernel | shape | format | us | GB/s | of a copy |\n|---|---|---|---|---|---|")
    rows = []
    for row in _rows(bench, formats):
        speed = row.num_bytes / row.seconds
        rows.append(vars(row) | {"share_of_copy": speed / copied})
        print(
            f"| {row.kernel} | {row.shape} | {row.format} | {row.seconds * 1e6:.1f} "
            f"| {speed * 1e-9:.0f} | {speed / copied:.0%} |",
            flush=True,
        )
        if options.output:
            report = {"machine": machine, "copy_bytes_per_s": copied, "rows": rows}
            options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
