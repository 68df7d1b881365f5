"""Placing a CPU model on a GPU by a plan, and by a smaller one if memory runs out."""

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import numpy as np

from powerinfer.calibration.sparsity import Sparsity
from powerinfer.errors import DeviceError, OutOfDeviceMemoryError, PlacementError
from powerinfer.gguf import GGUFFile
from powerinfer.kvcache import KVCache
from powerinfer.models import Model
from powerinfer.offload.choose_plan import ChosenPlan, choose_plan
from powerinfer.offload.devices import Device
from powerinfer.offload.model_sizes import CHUNK_BYTES, SPARE_NEURONS
from powerinfer.offload.plan_files import save_plan
from powerinfer.offload.problem import PlacementTask, native_backend, placement_task
from powerinfer.offload.progress import PlacementProgress
from powerinfer.ops.protocol import KVType
from powerinfer.options.options import EngineOptions
from powerinfer.placement.cost_model import CostModel
from powerinfer.placement.plan import PlacementPlan
from powerinfer.placement.problem import PlacementProblem
from powerinfer.placement.step_time import hot_neurons, step_s
from powerinfer.store.memory import format_bytes
from powerinfer.tokenizer import Tokenizer

__all__ = ["Placement", "give_memory_back", "place", "prefill_crossover", "stream_crossover"]

# Factor for the placed bytes after a plan that fitted the budget did not fit the memory.
_SHRINK = 0.9
# Bounds on the prompt length that moves prefill to the GPU: longer than one decode step, and short
# of where the CPU's time for a token no longer matters.
_LEAST_CROSSOVER, _MOST_CROSSOVER = 9, 512
# Prompt tokens that the CPU computes in the time of reading the weights, 11 (Q4_0) to 26 (F16) with
# 14 threads of a server; and as many again, because gathering and unpacking halve the speed of
# transfers. Steps of `HybridSettings.max_texts` texts stay below the least.
_PROMPT_GAIN, _LEAST_STREAMED = 40, 64
# Eager steps before recording, the recorded step, and its first replay.
_TRIED_STEPS = 5
# Kernels that these steps and a prompt run, about.
_NUM_KERNELS = 30

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Placement:
    """A placed model and its predicted speed.

    Attributes:
        model: model that runs; on the CPU alone if the plan is empty.
        cpu_model: the CPU model it was placed from, still complete.
        caches: KV cache for one full context, allocated with the model to be sure it fits, until
            `take_cache` hands it out.
    """

    device: Device
    task: PlacementTask
    chosen: ChosenPlan
    model: Model
    cpu_model: Model
    caches: list[KVCache]

    @property
    def plan(self) -> PlacementPlan:
        """The chosen plan."""
        return self.chosen.plan

    @property
    def problem(self) -> PlacementProblem:
        """The problem solved by the plan."""
        return self.task.problem

    @property
    def predicted_tokens_per_s(self) -> float | None:
        """Predicted tokens/s; None if the GPU's speeds are assumed."""
        return None if self.task.speeds.is_gpu_assumed else 1 / step_s(self.problem, self.plan)

    @property
    def gpu_bytes(self) -> int:
        """GPU memory taken by the plan, overhead included."""
        return self.problem.sizes.placed_bytes(self.plan)

    @property
    def gpu_share(self) -> float:
        """Share of the expected activations that the GPU covers."""
        return self.problem.stats.covered_share(self.plan)

    def take_cache(self) -> KVCache | None:
        """Hand out the preallocated KV cache once; None afterwards."""
        return self.caches.pop() if self.caches else None

    @property
    def asks_python(self) -> bool:
        """A layer on the GPU has a predictor written in Python, so steps cannot be recorded."""
        pairs = zip(self.model.weights.layers, self.plan.layers, strict=True)
        predictors = [layer.predictor for layer, plan in pairs if plan.has_attention]
        return any(found is not None and found.active_ids is not None for found in predictors)

    @property
    def handoff(self) -> str | None:
        """Method that hands layers to the CPU; None if the CPU runs alone."""
        return self.model.ops.handoff_name


def place(
    sparsity: Sparsity,
    file: GGUFFile,
    tokenizer: Tokenizer,
    options: EngineOptions,
    device: Device,
    progress: PlacementProgress | None = None,
) -> Placement | None:
    """Place a model by the plan its options ask for.

    A plan that does not fit after all is replaced by one for less memory, with a warning. If
    nothing fits, the CPU runs alone, with a warning.

    Returns:
        The placed model; None, with a warning, if a GPU that nobody asked for failed.

    Raises:
        DeviceError: the GPU failed for another reason than lack of memory, and was asked for.
        PlacementError: the named plan cannot be used.
    """
    try:
        return _place(sparsity, file, tokenizer, options, device, progress)
    except DeviceError as error:
        if options.wants_gpu:
            raise
        _log.warning("%s: the CPU runs alone", error.message)
    give_memory_back(device)
    return None


def _place(
    sparsity: Sparsity,
    file: GGUFFile,
    tokenizer: Tokenizer,
    options: EngineOptions,
    device: Device,
    progress: PlacementProgress | None,
) -> Placement:
    task = placement_task(sparsity, file, tokenizer, options, device, progress)
    model = sparsity.model
    while True:
        chosen = choose_plan(task, options)
        if not chosen.plan.has_anything:
            _explain_empty_plan(task, options)
            return Placement(device, task, chosen, model, model, [])
        try:
            with _showing_kernels(progress):
                placed, cache = _placed(task, model, chosen.plan, options, device)
            _keep(task, chosen)
            return Placement(device, task, chosen, placed, model, [cache])
        except OutOfDeviceMemoryError as error:
            task = _smaller(task, error)
            # The plan that did not fit may be a named or stored one: do not use it again.
            options = replace(options, gpu_index=None, reset_gpu_index=True)
        give_memory_back(device)


def _placed(
    task: PlacementTask, model: Model, plan: PlacementPlan, options: EngineOptions, device: Device
) -> tuple[Model, KVCache]:
    """Place the model and allocate its cache; a trial step makes sure that everything fits."""
    from powerinfer.offload.placing import place_model
    from powerinfer.ops.gpu.memory import naming_gpu_failure
    from powerinfer.ops.gpu.ops import TorchGPU
    from powerinfer.ops.hybrid.migration import OnlineMode, OnlineSettings
    from powerinfer.ops.hybrid.ops import HybridOps, HybridSettings

    cpu = native_backend(model)
    # The interpreter's times do not show whether moving neurons pays off.
    by_default = OnlineMode.OFF if device.is_interpreted else OnlineMode.TRIAL
    modes = {None: by_default, True: OnlineMode.ON, False: OnlineMode.OFF}
    settings = HybridSettings(
        prefill_crossover=prefill_crossover(task.problem, plan),
        stream_crossover=stream_crossover(task.problem.cost),
        online=OnlineSettings(mode=modes[options.online], max_moves=SPARE_NEURONS),
        chunk_bytes=CHUNK_BYTES,
    )
    ops = HybridOps(cpu, TorchGPU(device.name), plan, settings)
    if not device.is_interpreted:
        ops.pin()
    try:
        with naming_gpu_failure():
            placed = place_model(model, ops)
            cache = placed.new_cache(options.kv_tokens, kv_type=KVType(options.kv_type))
            if not device.is_interpreted:
                with ops.trial():
                    _try_out(placed, cache, options.batch_size)
    except DeviceError as error:
        with suppress(RuntimeError):  # a lost device gives nothing back
            ops.release()
        # Traceback frames keep uploaded weights alive.
        raise error.with_traceback(None) from None
    return placed, cache


@contextmanager
def _showing_kernels(progress: PlacementProgress | None) -> Iterator[None]:
    """Report the kernels that the body compiles: at a first start that takes half a minute."""
    from powerinfer.ops.gpu.kernels import counting_compiled

    report = None if progress is None else progress.kernels
    if report is None:
        yield
        return
    with counting_compiled(lambda count: report(count, max(_NUM_KERNELS, count + 1))):
        yield
    report(_NUM_KERNELS, _NUM_KERNELS)


def prefill_crossover(problem: PlacementProblem, plan: PlacementPlan) -> int:
    """Prompt length from which streaming the cold weights beats computing them on the CPU.

    The CPU's time grows with the tokens; streaming costs the same for any number of tokens.
    """
    sizes = problem.sizes
    cpu_s, send_s = 0.0, 0.0
    for number, (layer, placement) in enumerate(zip(sizes.layers, plan.layers, strict=True)):
        num_cold = sizes.num_neurons - len(placement.hot)
        cpu_s += float(hot_neurons(problem, plan, number).cold_s()[0])
        send_s += layer.neuron_bytes * num_cold / problem.cost.transfer_bytes_per_s
    if not cpu_s:
        return _LEAST_CROSSOVER
    return max(_LEAST_CROSSOVER, min(_MOST_CROSSOVER, math.ceil(send_s / cpu_s)))


def stream_crossover(cost: CostModel) -> int:
    """Prompt length from which sending the weights of a layer beats computing it on the CPU."""
    sent_per_read = cost.cpu.read_bytes_per_s / cost.transfer_bytes_per_s
    wanted = math.ceil(_PROMPT_GAIN * sent_per_read)
    return max(_LEAST_STREAMED, min(_MOST_CROSSOVER, wanted))


def _try_out(model: Model, cache: KVCache, batch_size: int) -> None:
    """Run a full-size prompt and some decode steps, to compile kernels and allocate memory."""
    length = max(1, min(batch_size, model.context_length - _TRIED_STEPS))
    owner = object()
    ids = np.arange(length, dtype=np.int32) % model.config.vocab_size
    last = np.array([length - 1], np.int32)
    model.forward(cache.batch([(owner, ids, 0)], [True]), cache, logits_for=last)
    for position in range(length, min(length + _TRIED_STEPS, model.context_length)):
        model.forward(cache.batch([(owner, ids[:1], position)], [False]), cache)
    cache.truncate(owner, 0)


def _smaller(task: PlacementTask, error: Exception) -> PlacementTask:
    problem = task.problem
    overhead = problem.sizes.overhead_bytes
    placed = min(problem.budget_bytes, problem.sizes.full_bytes) - overhead
    budget = overhead + int(_SHRINK * placed)
    _log.warning(
        "GPU memory ran out (%s): placing the model again, within %s instead of %s",
        str(error),  # text only: a logged error would keep its frames, and uploads, alive
        format_bytes(budget),
        format_bytes(problem.budget_bytes),
    )
    return replace(task, problem=replace(problem, budget_bytes=budget))


def _keep(task: PlacementTask, chosen: ChosenPlan) -> None:
    """Store a newly solved plan that fits. Failures only mean that it is solved again.

    Plans for an assumed GPU are not stored: they would be used on a real one.
    """
    if chosen.is_solved and not task.speeds.is_gpu_assumed:
        try:
            save_plan(task.file, chosen.plan)
        except PlacementError as error:
            _log.warning("the plan was not stored: %s", error)


def _explain_empty_plan(task: PlacementTask, options: EngineOptions) -> None:
    """Log why the CPU runs alone, as a warning if a GPU was requested."""
    level = logging.WARNING if options.wants_gpu else logging.INFO
    problem = task.problem
    layer = problem.sizes.layers[0]
    needed = layer.attention_bytes + layer.kv_bytes
    if problem.budget_bytes < problem.sizes.overhead_bytes + needed:
        _log.log(
            level,
            "a GPU memory budget of %s holds nothing of the model (using the GPU at all takes "
            "about %s, a layer's attention %s more): the CPU runs alone",
            format_bytes(problem.budget_bytes),
            format_bytes(problem.sizes.overhead_bytes),
            format_bytes(needed),
        )
        return
    _log.log(
        level,
        "the plan puts nothing on the GPU, because the CPU alone is predicted to be faster: the "
        "CPU runs alone (the solver greedy uses the GPU anyway)",
    )


def give_memory_back(device: Device) -> None:
    """Release GPU memory that torch still caches for a model no longer used."""
    if not device.is_interpreted:
        from powerinfer.ops.gpu.memory import release_cached

        with suppress(RuntimeError):  # the device may be lost
            release_cached()
