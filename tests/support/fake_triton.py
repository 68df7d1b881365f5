"""Counts what decode steps and prompts do on a GPU that is not here; run by test_launches.

Models are placed and run as they are, on tensors of torch's cpu device; where a kernel would be
launched, it is counted and nothing happens. Numbers therefore mean nothing, but neither launches
nor Python calls depend on them. Every case runs with two and with three layers: the difference is
what a layer costs. Prints JSON: case to counts of one layer, by name.

Attributes of a case: model, state of all layers (see `placed_models.make_plan`), tokens of the
step, whether neurons may move.
"""

import json
import os
import sys

os.environ["TRITON_INTERPRET"] = "0"

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.jit import JITFunction

import powerinfer
from placed_models import NEURONS, load, make_plan, place
from powerinfer.models import Model
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.hybrid.migration import OnlineMode, OnlineSettings
from powerinfer.ops.hybrid.ops import HybridSettings
from tiny_models import TINY_MODELS, write_model

# What torch does on a device without launching anything: views, sizes, memory without contents.
_FREE = {
    "alias", "as_strided", "detach", "empty", "empty_like", "empty_strided", "expand", "new_empty",
    "permute", "reshape", "resize_", "select", "set_", "slice", "split", "split_with_sizes",
    "squeeze", "t", "transpose", "unbind", "unsqueeze", "view", "_reshape_alias", "_unsafe_view",
    "_local_scalar_dense", "lift_fresh",
}  # fmt: skip
_SOURCE = str(Path(powerinfer.__file__).parent)

Case = tuple[str, str, int, bool]
"""Model, state, tokens, whether neurons may move."""


class Counting(TorchDispatchMode):
    """Counts launches of kernels, torch's own among them, and Python calls within the package."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = function.overloadpacket.__name__
        if name not in _FREE:
            self.counts[f"torch {name}"] += 1
        return function(*args, **(kwargs or {}))

    @contextmanager
    def running(self) -> Iterator[None]:
        def profile(frame: FrameType, event: str, _argument: object) -> None:
            if event == "call" and frame.f_code.co_filename.startswith(_SOURCE):
                self.counts["Python calls"] += 1

        run = JITFunction.run

        def launch(kernel: Any, *_arguments: Any, **_options: Any) -> None:
            self.counts[f"triton {kernel.__name__}"] += 1

        JITFunction.run = launch
        sys.setprofile(profile)
        try:
            with self:
                yield
        finally:
            sys.setprofile(None)
            JITFunction.run = run


def _placed(
    name: str, state: str, num_layers: int, settings: HybridSettings, folder: Path
) -> Model:
    recipe = replace(
        TINY_MODELS[name], format="f16", intermediate_size=NEURONS, num_layers=num_layers
    )
    model = load(write_model(folder / f"{name}-{num_layers}.gguf", recipe), NativeOps(1))
    plan = make_plan(state * num_layers)
    if state == "S":
        # The same neurons everywhere, so that layers differ in nothing.
        hot = np.arange(0, NEURONS, 2, dtype=np.int32)
        plan = replace(plan, layers=tuple(replace(layer, hot=hot) for layer in plan.layers))
    return place(model, plan, settings)


def _counted(model: Model, num_tokens: int) -> Counter[str]:
    """Of a step, after one like it that may do what happens once."""
    cache = model.new_cache(256)
    counting = Counting()
    for position in (0, num_tokens):
        ids = np.arange(num_tokens, dtype=np.int32)
        batch = cache.batch([(0, ids, position)], [num_tokens > 1])
        counting.counts.clear()
        with counting.running():
            model.forward(batch, cache)
    return counting.counts


def count(case: Case, folder: Path) -> dict[str, int]:
    """What a layer of a case costs."""
    name, state, num_tokens, may_move = case
    # The round of moves is far away.
    online = OnlineSettings(mode=OnlineMode.ON if may_move else OnlineMode.OFF, interval=1000)
    settings = HybridSettings(prefill_crossover=9, online=online)
    two, three = (
        _counted(_placed(name, state, num_layers, settings, folder), num_tokens)
        for num_layers in (2, 3)
    )
    return {
        what: three[what] - two[what] for what in sorted(two | three) if three[what] != two[what]
    }


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    cases: list[Case] = [tuple(case) for case in json.loads(sys.argv[2])]
    print(json.dumps([count(case, folder) for case in cases]))


if __name__ == "__main__":
    main()
