"""In every decode step whole models repeat what was recorded, and never wait.

There is no graph here: a replay runs the calls again, and what they would launch is compared with
what the record launched. Only addresses of memory made within a step may differ.
"""

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

from torch.utils._python_dispatch import (  # noqa: E402
    TorchDispatchMode,
    _disable_current_modes,
)

from powerinfer.gguf import open_gguf  # noqa: E402
from powerinfer.models import load_model  # noqa: E402
from powerinfer.offload.placing import place_model  # noqa: E402
from powerinfer.ops.cpu.ops import NativeOps  # noqa: E402
from powerinfer.ops.gpu.cache import DeviceBatch  # noqa: E402
from powerinfer.ops.gpu.memory import DeviceMemory  # noqa: E402
from powerinfer.ops.gpu.ops import TorchGPU  # noqa: E402
from powerinfer.ops.hybrid import blocks as hybrid_blocks  # noqa: E402
from powerinfer.ops.hybrid.ops import HybridOps  # noqa: E402
from powerinfer.placement.plan import LayerPlacement, PlacementPlan  # noqa: E402
from powerinfer.values import Batch, FloatArray  # noqa: E402
from repeating_recorder import graphs_of  # noqa: E402
from tiny_models import TINY_MODELS, write_model  # noqa: E402

# Of torch: what makes the host wait for a number of the device.
WAITING = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "item", "unique")


class Log(TorchDispatchMode):
    """Notes torch's operations and Triton's launches, with everything but numbers on the device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.entries: list[str] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = str(function)
        if any(word in name for word in WAITING):
            raise RuntimeError(f"{name} waits for the device")
        self.entries.append(f"{name} {_shown(args)} {_shown(kwargs)}")
        return function(*args, **(kwargs or {}))

    def launch(self, name: str, args: Any, kwargs: Any) -> None:
        self.entries.append(f"{name} {_shown(args)} {_shown(kwargs)}")


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{tuple(value.shape)}{value.stride()}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_shown, value))}]"
    if isinstance(value, dict):
        return ", ".join(f"{key}={_shown(one)}" for key, one in sorted(value.items()))
    return "" if callable(value) else repr(value)


class Repeater:
    """A `Recorder` that does the same calls again and compares what they launch."""

    def __init__(self, gpu: TorchGPU, patch: pytest.MonkeyPatch) -> None:
        self.gpu, self._patch = gpu, patch
        self.num_replays = 0

    def working(self) -> AbstractContextManager[None]:
        return nullcontext()

    def inputs(self, x: FloatArray, batch: Batch) -> DeviceBatch:
        return self.gpu.static_batch(batch, x.shape[1])

    def to_host(self, values: Any) -> FloatArray:
        return values if isinstance(values, np.ndarray) else self.gpu.to_host(values)

    def synchronize(self) -> None:
        pass

    def record(self, work: Callable[[], Any], shape: Any = None) -> "Repetition":
        return Repetition(self, work)

    @contextmanager
    def watched(self) -> Iterator[Log]:
        """Refuses what a graph cannot hold; yields the log of the rest."""
        import triton.runtime.interpreter as interpreter

        log, run = Log(), interpreter.InterpretedFunction.run

        def logged(function: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            log.launch(function.__name__, (grid, *args), kwargs)
            with _disable_current_modes():
                return run(function, *args, grid=grid, warmup=warmup, **kwargs)

        with self._patch.context() as patch:
            patch.setattr(interpreter.InterpretedFunction, "run", logged)
            for name in ("pinned", "to_device", "to_host", "synchronize"):
                patch.setattr(DeviceMemory, name, _refusing(name))
            with log:
                yield log


def _refusing(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"{name} cannot be recorded")

    return refuse


class Repetition:
    """A `Recording`."""

    def __init__(self, repeater: Repeater, work: Callable[[], Any]) -> None:
        self._repeater, self._work = repeater, work
        with repeater.watched() as log:
            self._output = work()
        self._entries = log.entries

    def replay(self) -> None:
        with self._repeater.watched() as log:
            self._output = self._work()
        assert log.entries == self._entries
        self._repeater.num_replays += 1

    def result(self) -> FloatArray:
        return self._repeater.to_host(self._output)

    def drop(self) -> None:
        pass


def _steps(patch: pytest.MonkeyPatch, made: list[Repeater]) -> Any:
    def make(gpu: TorchGPU, exchange: Any, *args: Any, counting: Any, **options: Any) -> Any:
        made.append(Repeater(gpu, patch))
        return graphs_of(made[-1], exchange, counting)

    return make


def _plan(model: Any, num_hot: int) -> PlacementPlan:
    num_neurons = model.config.intermediate_size
    hot = np.sort(np.random.default_rng(0).permutation(num_neurons)[:num_hot]).astype(np.int32)
    has_predictor = model.weights.layers[0].ffn.predictor is not None
    layers = (LayerPlacement(True, has_predictor, hot),) * model.config.num_layers
    return PlacementPlan("", "test", 0, num_neurons, True, layers)


@pytest.mark.parametrize(
    ("name", "share"),
    [("llama-powerinfer", 0.5), ("llama-relu", 1.0), ("falcon-powerinfer", 0.5), ("opt", 0.5)],
)
@pytest.mark.thorough
def test_decode_steps_do_the_same_whatever_the_numbers(
    name: str,
    share: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    made: list[Repeater] = []
    monkeypatch.setattr(hybrid_blocks, "make_step_graphs", _steps(monkeypatch, made))
    file = open_gguf(write_model(tmp_path / "model.gguf", TINY_MODELS[name]))
    native = NativeOps(2)
    cpu = load_model(file, native)
    plan = _plan(cpu, int(share * cpu.config.intermediate_size))
    ops = HybridOps(native, TorchGPU("cpu"), plan)
    placed = place_model(cpu, ops)
    caches = [model.new_cache(64, block_size=8) for model in (cpu, placed)]
    random = np.random.default_rng(1)
    position = 0
    # A prompt that ends within a block; decoding then crosses into the next.
    for count in (6, *[1] * 5):
        tokens = random.integers(0, cpu.config.vocab_size, count).astype(np.int32)
        logits = []
        for model, cache in zip((cpu, placed), caches, strict=True):
            batch = cache.batch([("sequence", tokens, position)], [count > 1])
            last = None if count == 1 else np.array([count - 1], np.int32)
            logits.append(model.forward(batch, cache, logits_for=last))
        np.testing.assert_allclose(logits[1], logits[0], rtol=2e-2, atol=2e-2)
        position += count
    assert not caplog.records
    assert made[0].num_replays == 4
