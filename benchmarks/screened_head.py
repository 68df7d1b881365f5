r"""Measures the output head alone, exact against screened, and counts positions where they differ.

    python benchmarks/screened_head.py MODEL.gguf TEXT --format q8_0 -o out.json
    python benchmarks/screened_head.py MODEL.gguf TEXT --tokens 0 --positions 300000
    python benchmarks/screened_head.py MODEL.gguf TEXT --vocab 262144 --columns 640

States are those of the model on windows of the text, the head is the model's own in `--format`.
With `--vocab` or `--columns` it is made of the model's rows and columns again and again, each time
with noise: a stand-in for models with large vocabularies, whose logits are less far apart.

Timed calls are of one token, the head in turns with each setting; between two of them the caches
are filled with other memory. Counted positions are those where a logit that a setting wants is
missing, or one has other bits than that of the whole head; if there is none, no choice can differ.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from powerinfer import LLM
from powerinfer.bench.machine import describe_machine
from powerinfer.gguf import Tensor
from powerinfer.kvcache.state_slots import SLOTS_PER_SEQUENCE
from powerinfer.models.tensors.screened_head import ScreenedHead, copy_share
from powerinfer.ops.backend import Backend, SomeLinear
from powerinfer.ops.head_ops import UNWANTED_LOGIT
from powerinfer.ops.protocol import Linear, MatrixUse, WantedLogits
from powerinfer.quant import get_format
from powerinfer.values import FloatArray

SETTINGS = {
    "greedy": WantedLogits(1),
    "top-k 40": WantedLogits(40),
    "min-p 0.05": WantedLogits(1, -math.log(0.05)),
}
WHOLE = "whole"
_WINDOW = 512
# Positions of one call when positions are counted, and those that the copy is made for.
_ROWS, _TYPICAL = 32, 64
# More than the caches hold.
_OTHER_BYTES = 128 << 20
# Of the standard deviation of a row or of a column of states.
_NOISE = 0.5


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--format", default="q8_0", help="of the head")
    parser.add_argument("--vocab", type=int, help="rows of the head, default the model's")
    parser.add_argument("--columns", type=int, help="columns of the head, default the model's")
    parser.add_argument("--tokens", type=int, default=60, help="timed tokens; 0 for none")
    parser.add_argument("--positions", type=int, default=0, help="positions that are compared")
    parser.add_argument("--minutes", type=float, help="limit for these positions")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kernels", help="instruction set, default the best")
    parser.add_argument("-o", "--output", type=Path)
    return parser.parse_args()


@dataclass(frozen=True)
class Growth:
    """How rows and states become longer: columns again, with noise; nothing if none are wanted."""

    columns: int

    def grown(self, values: FloatArray, seed: int) -> FloatArray:
        """f32[n, columns] of f32[n, fewer]."""
        more = self.columns - values.shape[1]
        if more <= 0:
            return values
        random = np.random.default_rng(seed)
        again = values[:, np.arange(more) % values.shape[1]]
        noise = random.standard_normal(again.shape, np.float32) * (_NOISE * again.std())
        return np.concatenate([values, again + noise], axis=1)


def windows(llm: LLM, text: Path, growth: Growth) -> Iterator[FloatArray]:
    """Inputs of the head for each window of a text: f32[window, columns]."""
    model, tokenizer = llm.loaded.model, llm.loaded.tokenizer
    ids = np.array(tokenizer.encode(text.read_text(encoding="utf8")), np.int32)
    cache = model.new_cache(_WINDOW, num_slots=SLOTS_PER_SEQUENCE)
    for number, first in enumerate(range(0, len(ids) - _WINDOW + 1, _WINDOW)):
        cache.truncate(0, 0)
        batch = cache.batch([(0, ids[first : first + _WINDOW], 0)], [True])
        yield growth.grown(model.hidden_states(batch, cache), number)


def new_head(llm: LLM, options: argparse.Namespace, growth: Growth) -> SomeLinear:
    """The model's head in a format, with more rows and columns if they are wanted."""
    model, ops = llm.loaded.model, llm.loaded.model.ops
    matrix = model.weights.output.matrix
    own, _ = ops.matrix_shape(matrix)
    encode = get_format(options.format).encode
    parts, num_rows = [], options.vocab or own
    for number, first in enumerate(range(0, num_rows, own)):
        ids = np.arange(min(own, num_rows - first), dtype=np.int32)
        rows = growth.grown(ops.embed(matrix, ids), number)
        if number:
            random = np.random.default_rng(number)
            noise = random.standard_normal(rows.shape, np.float32)
            rows = rows + noise * (_NOISE * rows.std(axis=1, keepdims=True))
        parts.append(encode(rows).reshape(len(rows), -1).view(np.uint8))
    data = np.concatenate(parts).reshape(-1)
    tensor = Tensor("output.weight", (num_rows, growth.columns), options.format, data, Path("made"))
    return Linear(ops.matrix(tensor, MatrixUse.DENSE), None)


@dataclass
class Heads:
    """The head, whole and screened."""

    ops: Backend
    head: SomeLinear
    screened: ScreenedHead

    def whole(self, states: FloatArray) -> FloatArray:
        """All logits."""
        return np.asarray(self.ops.linear(states, (self.head,))[0])

    def few(self, states: FloatArray, wanted: WantedLogits) -> FloatArray:
        """Wanted logits."""
        return self.screened.logits(self.ops, self.head, states, [wanted] * len(states))

    def share_of(self, compute: Callable[[], object]) -> float:
        """Share of the head's rows that something computes."""
        self.screened.computed_rows = self.screened.screened_tokens = 0
        compute()
        return self.screened.computed_share or 0.0


def measure(heads: Heads, states: FloatArray) -> dict[str, dict[str, float]]:
    """Time one token at a time, the whole head and all settings in turns."""
    other = np.ones(_OTHER_BYTES // 8)
    times: dict[str, list[float]] = {name: [] for name in (WHOLE, *SETTINGS)}
    shares: dict[str, list[float]] = {name: [] for name in SETTINGS}
    for row in states:
        state = row[None].copy()
        for name, seconds in times.items():
            other += 1
            started = time.perf_counter()
            if name == WHOLE:
                heads.whole(state)
            else:
                heads.few(state, SETTINGS[name])
            seconds.append(time.perf_counter() - started)
        for name, wanted in SETTINGS.items():
            shares[name].append(heads.share_of(lambda: heads.few(state, wanted)))  # noqa: B023
    return {
        name: {
            "ms": statistics.median(seconds) * 1e3,
            "ms_min": min(seconds) * 1e3,
            "rows_computed": statistics.mean(shares.get(name, [1.0])),
        }
        for name, seconds in times.items()
    }


def num_different(whole: FloatArray, found: FloatArray, wanted: WantedLogits) -> int:
    """Number of positions where a wanted logit is missing, or one has other bits."""
    if wanted.count == 1:
        last = whole.max(axis=1, keepdims=True)
    else:
        last = np.partition(whole, -wanted.count, axis=1)[:, [-wanted.count]]
    last -= np.float32(wanted.margin)
    num_wanted, num_found = (np.count_nonzero(each >= last, axis=1) for each in (whole, found))
    is_different = num_wanted != num_found
    rows, columns = np.nonzero(found != UNWANTED_LOGIT)
    is_other = found[rows, columns].view(np.uint32) != whole[rows, columns].view(np.uint32)
    is_different[rows[is_other]] = True
    return int(np.count_nonzero(is_different))


def compare(
    heads: Heads, states: Iterator[FloatArray], count: int, minutes: float | None
) -> dict[str, Any]:
    """Count different positions among the first ones of a text, as far as text and time allow."""
    different, num_done = dict.fromkeys(SETTINGS, 0), 0
    end = math.inf if minutes is None else time.monotonic() + 60 * minutes
    for window in states:
        for first in range(0, min(len(window), count - num_done), _ROWS):
            rows = np.ascontiguousarray(window[first : first + min(_ROWS, count - num_done)])
            whole = heads.whole(rows)
            for name, wanted in SETTINGS.items():
                different[name] += num_different(whole, heads.few(rows, wanted), wanted)
            num_done += len(rows)
        if num_done >= count or time.monotonic() > end:
            break
    return {"positions": num_done, "different": different}


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and compare as the options want."""
    with LLM(options.model, threads=options.threads, kernels=options.kernels, device="cpu") as llm:
        ops = llm.loaded.model.ops
        _, own = ops.matrix_shape(llm.loaded.model.weights.output.matrix)
        growth = Growth(options.columns or own)
        head = new_head(llm, options, growth)
        first = next(windows(llm, options.text, growth))
        heads = Heads(ops, head, ScreenedHead.of(ops, head, first[:_TYPICAL]))
        found: dict[str, Any] = {
            "model": options.model.name,
            "shape": ops.matrix_shape(head.matrix),
            "format": options.format,
            "kernels": llm.loaded.kernels,
            "threads": options.threads,
            "copy_share": copy_share(ops, head),
            "head": measure(heads, first[-options.tokens :]) if options.tokens else {},
        }
        if options.positions:
            states = windows(llm, options.text, growth)
            found |= compare(heads, states, options.positions, options.minutes)
        return found


def main() -> None:
    """Command line."""
    options = _options()
    found = run(options)
    rows, columns = found["shape"]
    print(f"{rows} x {columns}, {found['format']}, copy {found['copy_share']:.2f} of its bytes")
    for name, each in found["head"].items():
        print(f"{name:12} {each['ms']:7.2f} ms (best {each['ms_min']:.2f})", end="")
        print(f"  {each['rows_computed']:.2%} of the rows")
    for name, count in found.get("different", {}).items():
        print(f"{name:12} differs at {count} of {found['positions']} positions")
    if options.output:
        report = {"machine": describe_machine(), "results": [found]}
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf8")


if __name__ == "__main__":
    main()
