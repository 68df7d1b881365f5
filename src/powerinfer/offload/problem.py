"""Solver problems, made from a loaded CPU model and a memory budget."""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from powerinfer.calibration.sparsity import Sparsity
from powerinfer.errors import DeviceError, PlacementError, UnsupportedError
from powerinfer.gguf import GGUFFile, model_identity
from powerinfer.models import Model
from powerinfer.offload.device_speeds import Speeds, machine_speeds
from powerinfer.offload.devices import Device
from powerinfer.offload.model_sizes import (
    CODE_BYTES,
    CONTEXT_BYTES,
    SizeAssumptions,
    model_sizes,
)
from powerinfer.offload.progress import PlacementProgress
from powerinfer.offload.statistics import activation_statistics
from powerinfer.offload.weight_formats import WeightFormat, weight_formats
from powerinfer.ops.protocol import KVType
from powerinfer.options.options import EngineOptions
from powerinfer.options.vram_budget import MARGIN_BYTES
from powerinfer.placement.problem import PlacementProblem
from powerinfer.placement.solvers import get_solver
from powerinfer.store.memory import available_memory_bytes, format_bytes
from powerinfer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from powerinfer.ops.cpu.ops import NativeOps

__all__ = ["PlacementTask", "budget_bytes", "native_backend", "placement_task"]

# Predictions are made for the middle of an ordinary conversation.
_SEQ_LEN = 512

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PlacementTask:
    """A placement problem and what messages say about it."""

    problem: PlacementProblem
    speeds: Speeds
    file: GGUFFile
    formats: tuple[WeightFormat, ...] = ()
    driver_bytes: int = 0


def placement_task(
    sparsity: Sparsity,
    file: GGUFFile,
    tokenizer: Tokenizer,
    options: EngineOptions,
    device: Device | None,
    progress: PlacementProgress | None = None,
) -> PlacementTask:
    """Collect all inputs of a plan.

    Args:
        device: the GPU; None to assume one that is not here.

    Raises:
        DeviceError: there is no GPU here, and the budget is not an amount of memory.
        PlacementError: statistics of the model are damaged, or a library the solver needs is
            missing.
        UnsupportedError: the model runs on the CPU alone.
    """
    obstacle = sparsity.model.config.gpu_obstacle
    if obstacle is not None:
        raise UnsupportedError(
            f"{file.path}: {sparsity.model.config.architecture} models have {obstacle}, "
            "which run on the CPU alone for now; nothing can be placed on a GPU",
            remedy="run it without {device} and other options about a GPU",
        )
    if options.solver is not None:
        get_solver(options.solver)  # fails before anything is measured
    progress = progress or PlacementProgress()
    model, ops = sparsity.model, sparsity.model.ops
    cpu = native_backend(model)
    budget = budget_bytes(options, device)
    is_real = device is None or not device.is_interpreted
    driver_bytes = _driver_bytes(device)
    sizes = model_sizes(
        model,
        SizeAssumptions(
            kv_type=KVType(options.kv_type),
            seq_len=min(_SEQ_LEN, model.context_length),
            batch_size=options.batch_size,
            driver_bytes=driver_bytes,
            neurons_move=options.online or (options.online is None and is_real),
            kv_tokens=options.kv_tokens,
        ),
    )
    stats = activation_statistics(model, file, tokenizer, progress.statistics, sparsity.calibration)
    format_name = ops.matrix_format(model.weights.layers[0].ffn.up.matrix)
    speeds = machine_speeds(cpu, format_name, device, progress.speeds)
    problem = PlacementProblem(
        model_identity(file),
        sizes,
        stats,
        speeds.cost,
        budget,
        batch_tokens=min(options.batch_size, model.context_length),
    )
    return PlacementTask(problem, speeds, file, weight_formats(model), driver_bytes)


def native_backend(model: Model) -> "NativeOps":
    """Return a model's backend, which must be the native CPU one."""
    from powerinfer.ops.cpu.ops import NativeOps

    # For the type checker a model's backend is opaque.
    ops: object = model.ops
    if not isinstance(ops, NativeOps):
        raise PlacementError(
            f"only a model on the CPU's kernels can be placed, not on {model.ops.name}: leave the "
            "choice of kernels out"
        )
    return ops


def budget_bytes(options: EngineOptions, device: Device | None) -> int:
    """GPU memory to use in total, the driver's context included."""
    given = options.vram_budget
    if device is None:
        if given is None or given.num_bytes is None:
            raise DeviceError(
                "there is no GPU here whose memory could be taken or shared",
                remedy="give the budget as an amount, such as {vram_budget=8}",
            )
        return given.num_bytes
    free = _free_bytes(device)
    most = max(0, free - MARGIN_BYTES)
    if given is None:
        return most
    if given.num_bytes is not None and given.num_bytes > free:
        _log.warning(
            "you asked for %s, but %s has only %s free: using %s",
            format_bytes(given.num_bytes),
            device.title,
            format_bytes(free),
            format_bytes(most),
        )
        return most
    return given.of_free(free)


def _free_bytes(device: Device) -> int:
    """Free memory of a device, plus what our own context takes."""
    if device.is_interpreted:
        return available_memory_bytes() or 1 << 34
    from powerinfer.ops.gpu.devices import free_bytes
    from powerinfer.ops.gpu.memory import naming_gpu_failure

    with naming_gpu_failure():
        # First, as the query creates the context, which it leaves out; the budget includes it.
        context = _context_bytes(device)
        if context is None:
            _log.warning(
                "the driver's own memory on %s cannot be measured: %s are assumed",
                device.title,
                format_bytes(CONTEXT_BYTES),
            )
        return free_bytes(device.name) + (context or CONTEXT_BYTES)


def _driver_bytes(device: Device | None) -> int:
    """Count the driver's own memory, which is no part of the budget of interpreted kernels."""
    if device is not None and device.is_interpreted:
        return 0
    context = None if device is None else _context_bytes(device)
    return CODE_BYTES + (context or CONTEXT_BYTES)


def _context_bytes(device: Device) -> int | None:
    from powerinfer.ops.gpu.devices import context_bytes

    return context_bytes(device.name)
