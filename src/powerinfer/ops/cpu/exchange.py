"""The CPU half of feed-forward blocks whose neurons lie on two devices.

The other device writes the input and the wanted neurons into buffers that both can access. This
half computes these neurons from the weights in CPU memory and writes the result into the same
buffers. If a layer has nothing on the other device, its predictor here decides instead.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from powerinfer import _core
from powerinfer.ops.cpu.handles import NativeFFN, add_stats
from powerinfer.ops.operands import FFNCounters
from powerinfer.values import FloatArray, IntArray

__all__ = ["WATCHDOG_S", "ExchangeBuffers", "NativeExchange", "WordArray"]

WordArray = npt.NDArray[np.uint32]

WATCHDOG_S = 20.0
"""Seconds after which a signal that does not come counts as lost, while the process runs."""


@dataclass(frozen=True, slots=True)
class ExchangeBuffers:
    """Host memory that both devices can access, used by one layer after the other.

    Attributes:
        x: f32[max_tokens, hidden_size], input of the block.
        cold: u32[max_tokens, words], words at least ceil(neurons / 32): bit i % 32 of word i / 32
            of a token's row says that neuron i is to be computed here. Bits beyond the last neuron
            are ignored.
        y: f32[max_tokens, hidden_size], the result.
        status: i32[1], 0 unless something failed.
        flags: u32[2, num_layers] of the memory-operation mode: row 0 "ready", written by the other
            device; row 1 "done", written here. None if that mode is not used.
        predictor_input: f32[max_tokens, hidden_size], input of predictors; None if no layer
            predicts here.
        router_input: f32[max_tokens, hidden_size], input of routers of layers that predict here;
            None if no such layer has experts.
        expert_weights: f32[max_tokens, num_experts], factors of the values of an expert's neurons;
            None without experts.
    """

    x: FloatArray
    cold: WordArray
    y: FloatArray
    status: IntArray
    flags: WordArray | None = None
    predictor_input: FloatArray | None = None
    router_input: FloatArray | None = None
    expert_weights: FloatArray | None = None


class NativeExchange:
    """Runs listed or predicted neurons of FFN layers on the CPU for another device.

    A layer is started by `run` from Python, or by a thread that the other device signals through
    memory (`start_step`, `finish_step`). Biases of down are not added here: the caller that adds
    the two halves adds them once; only those of experts that the CPU chooses itself are. One caller
    at a time.

    Keeps team, buffers and weights alive. If recorded work of the other device waits for flags,
    keep the exchange until that work is gone.
    """

    def __init__(
        self, team: _core.ThreadTeam, buffers: ExchangeBuffers, watchdog_s: float = WATCHDOG_S
    ) -> None:
        """Share buffers, which are C-contiguous.

        Args:
            team: the threads; operations of other callers on it wait while a layer runs.
            watchdog_s: seconds without a signal after which a step is abandoned, not counting the
                time in which the process was stopped or the machine asleep.

        Raises:
            ShapeError: the buffers do not fit each other.
        """
        self.buffers = buffers
        self._native = _core.Exchange(
            team,
            buffers.x,
            buffers.cold,
            buffers.y,
            buffers.flags,
            buffers.status,
            watchdog_s,
            buffers.predictor_input,
            buffers.router_input,
            buffers.expert_weights,
        )

    @property
    def max_tokens(self) -> int:
        """Rows of the buffers."""
        return self._native.max_tokens

    @property
    def num_layers(self) -> int:
        """Layers added so far."""
        return self._native.num_layers

    def add_layer(self, ffn: NativeFFN, *, is_predicting: bool = False) -> int:
        """Add a layer and return its number; not while a step runs.

        Args:
            ffn: prepared by `NativeOps.ffn_weights`.
            is_predicting: its predictor, on `predictor_input`, decides which of all its neurons
                are computed, and the cold bits are ignored: y has the bits of `NativeOps.ffn`,
                less the bias of down. Otherwise the cold bits decide, without a predictor.

        Raises:
            ShapeError: block or predictor do not fit the buffers or each other.
            ValueError: a layer that predicts has no predictor, or the buffers no input for one.
        """
        if not is_predicting:
            return self._native.add_layer(ffn.native)
        if ffn.predictor is None:
            raise ValueError("a layer without a predictor cannot predict")
        return self._native.add_layer(ffn.native, ffn.predictor.native)

    def run(self, layer: int, num_tokens: int) -> None:
        """Compute the wanted neurons of the first `num_tokens` rows, from this thread.

        Raises:
            IndexError: there is no such layer.
            ValueError: `num_tokens` is not in [1, max_tokens].
        """
        self._native.run(layer, num_tokens)

    def hold_awake(self) -> None:
        """Wake the threads, and let them spin through gaps of up to 2 ms until `let_sleep`.

        For steps whose layers follow each other through `run`, so that only the first wakes the
        threads. Steps of `start_step` do this themselves.
        """
        self._native.keep_awake(is_awake=True)

    def let_sleep(self) -> None:
        """Let the threads sleep after 50 us without work again."""
        self._native.keep_awake(is_awake=False)

    def start_step(self, layers: Sequence[int], num_tokens: int) -> None:
        """Let the thread wait for the signals of these layers, in this order, and run each.

        Call it before the other device starts. Per layer that device writes x and cold (or
        predictor_input), writes ``flags[0, layer] = 1``, waits for ``flags[1, layer] == 1`` and
        writes it back to 0.

        Raises:
            ValueError: the buffers have no flags, or `num_tokens` is not in [1, max_tokens].
            IndexError: a layer does not exist or has no flags.
            RuntimeError: the previous step has not been finished.
            DeviceError: this is a forked process, or the thread cannot be started: no step runs.
        """
        self._native.start_step(layers, num_tokens)

    def finish_step(self) -> None:
        """Wait until all layers of the step have run.

        Raises:
            DeviceError: as `raise_failure`. After an abandoned step, let the other device pass its
                waits, which all succeed, before the next step.
        """
        self._native.finish_step()

    def abort_step(self) -> None:
        """End the step now, whether the other device never began it or failed during it.

        The thread waits for no more signals. Layers not signalled yet do not run, and their done
        flags are set, so that work which the other device has queued passes its waits; its results
        are worthless. Returns once the thread is idle, after the layer that it runs, if any.
        Failures since the last `raise_failure` are dropped, since the caller knows what went wrong.
        Without a step, or after its end, only failures are dropped.

        Let the other device finish before the next step, which clears all flags.

        Raises:
            ValueError: the buffers have no flags.
            DeviceError: this is a forked process.
        """
        self._native.abort_step()

    def raise_failure(self) -> None:
        """Raise the first failure since the last call, if any, and reset the status.

        Raises:
            DeviceError: a layer failed, or a signal did not come within `watchdog_s`.
        """
        self._native.raise_failure()

    def collect(self, counters: FFNCounters) -> None:
        """Add the work since the last call; `total` counts all neurons of the layers."""
        add_stats(counters, self._native.stats())
