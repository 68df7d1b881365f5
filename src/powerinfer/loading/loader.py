"""Loading of a model from a path and options: file, backend, weights, tokenizer, KV cache."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from powerinfer.calibration.recall import LayerRecall, recall_meter
from powerinfer.calibration.sparsity import Sparsity, attach_sparsity, may_skip_neurons
from powerinfer.errors import DeviceError, NumericsError, PromptError
from powerinfer.gguf import GGUFFile
from powerinfer.kvcache import KVCache
from powerinfer.loading.draft_model import open_draft_model
from powerinfer.loading.memory_needs import kv_bytes, num_slots, weight_bytes
from powerinfer.loading.reading_speeds import use_measured_settings
from powerinfer.loading.screened import with_screened_head
from powerinfer.loading.turns import FairLock
from powerinfer.models import (
    Model,
    ModelFile,
    default_context,
    find_nonfinite_layer,
    prepare_model,
)
from powerinfer.offload.devices import find_device
from powerinfer.ops.backend import Backend, as_backend
from powerinfer.ops.protocol import KVType
from powerinfer.options.options import CPU, EngineOptions
from powerinfer.store.default_model import find_model
from powerinfer.store.memory import available_memory_bytes, format_bytes, total_memory_bytes
from powerinfer.store.threads import default_threads
from powerinfer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from powerinfer.offload.place import Placement
    from powerinfer.offload.progress import PlacementProgress
    from powerinfer.ops.cpu.ops import NativeOps

__all__ = [
    "WORKING_BYTES",
    "LoadedModel",
    "Progress",
    "load",
    "make_ops",
    "open_model",
]

Progress = Callable[[int, int], None]
"""Called with (bytes prepared, bytes in all) while weights are prepared."""

# Memory besides file and KV cache: interpreter, libraries, activations and scratch space.
WORKING_BYTES = 300 << 20
REFERENCE_KERNELS = "reference"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run.

    Attributes:
        path: the file, or the first part of a split file.
        kernels: instruction set in use, `reference` for numpy.
        dense_bytes: bytes that a step reads whatever fires.
        sparsity: the rule that selects neurons, with a line that describes it.
        placement: the parts on a GPU; None if no GPU was requested.
        draft: the model that guesses tokens for this one; None if no such model was named.
        steps: lock held during each step, as backends count, and keep the batch, of one at a time.
    """

    path: Path
    file: GGUFFile
    model: Model
    tokenizer: Tokenizer
    options: EngineOptions
    threads: int
    kernels: str
    load_s: float
    dense_bytes: int
    sparsity: Sparsity
    placement: "Placement | None" = None
    draft: "LoadedModel | None" = None
    steps: FairLock = field(default_factory=FairLock, repr=False, compare=False)

    @property
    def device(self) -> str:
        """Device it runs on: `cpu`, the name of the GPU, or `interpreted` in place of a GPU."""
        placement = self.placement
        if placement is None or not placement.plan.has_anything:
            return CPU
        return "interpreted" if placement.device.is_interpreted else placement.device.name

    @property
    def is_native_cpu(self) -> bool:
        """True if the CPU's kernels compute everything: no bit depends on what shares a step."""
        return self.placement is None and self.kernels != REFERENCE_KERNELS

    @property
    def predicted_tokens_per_s(self) -> float | None:
        """Decode speed by the cost model; None without a placement."""
        return None if self.placement is None else self.placement.predicted_tokens_per_s

    @property
    def recall(self) -> tuple[LayerRecall, ...] | None:
        """Recall of the predictors in all steps since loading, one copied entry per layer.

        None without `measure_recall`.
        """
        meter = recall_meter(self.model)
        return None if meter is None else tuple(replace(layer) for layer in meter.layers)

    @property
    def kv_type(self) -> KVType:
        """Element type of the KV cache."""
        return KVType(self.options.kv_type)

    def new_cache(self) -> KVCache:
        """Make the KV cache of all texts, or take the placement's if it is free."""
        cache = None if self.placement is None else self.placement.take_cache()
        if cache is None:
            options, config = self.options, self.model.config
            slots = num_slots(config, options, self.model.context_length)
            cache = self.model.new_cache(options.kv_tokens, kv_type=self.kv_type, num_slots=slots)
        return cache

    def explain_non_finite(
        self, token_ids: list[int], error: NumericsError, is_prompt: Sequence[bool] | None = None
    ) -> NumericsError:
        """Name the first layer that is not finite, found by a second pass that checks each.

        Args:
            is_prompt: one flag per token; None if all are prompt.
        """
        # The CPU has all weights, so damaged weights show there, too.
        model = self.model if self.placement is None else self.placement.cpu_model
        with self.steps.held():
            found = find_nonfinite_layer(model, token_ids, self.kv_type, is_prompt)
        where = (
            f"first produced by {found}"
            if found
            else "though a second pass on the CPU stayed finite"
        )
        return NumericsError(
            f"{error}, {where}: the weights in {self.path} are damaged, or the activation "
            f"{self.model.config.activation} is not the model's",
            remedy="name the right one with {activation}",
        )


def open_model(
    path: Path | str | None,
    options: EngineOptions,
    downloading: Progress | None = None,
) -> ModelFile:
    """Find, open and read the file of a model.

    Args:
        path: file, folder with one model, name, or None for the embedded model.
        downloading: called with (bytes downloaded, bytes in all) during a download.

    Raises:
        GGUFError: the file is missing or malformed.
        HubError: a model that is elsewhere cannot be found, chosen or downloaded.
        UnsupportedError: its architecture or activation is not implemented.
    """
    return ModelFile.open(find_model(path, downloading), options.activation)


def load(
    opened: ModelFile,
    options: EngineOptions,
    progress: Progress | None,
    calibrating: Progress | None = None,
    placing: "PlacementProgress | None" = None,
    *,
    joins_team: bool = False,
) -> LoadedModel:
    """Load a model.

    Args:
        calibrating: called with (layers done, layers in all) if the model is calibrated now.
        placing: notified of measurements of this machine and of the placement on a GPU.
        joins_team: without a GPU, share threads with the other models of this process that do;
            a draft model and its model always do.

    Raises:
        CalibrationError: the stored calibration is damaged or belongs to another model.
        GGUFError: the file is malformed.
        UnsupportedError: a tensor type or an option is not implemented.
        TokenizerError: the vocabulary cannot be used.
        DeviceError: the native extension, the requested instruction set or the GPU is missing.
        PlacementError: the named plan for the GPU cannot be used.
        PromptError: there is not enough memory for the requested context, or a context shift could
            drop nothing of it.
    """
    started = time.perf_counter()
    file = opened.file
    # Some models run on the CPU alone; `place` says so to those who ask for a GPU.
    is_placeable = opened.config.gpu_obstacle is None or options.wants_gpu
    device = find_device(options) if is_placeable else None
    _check_context(opened, options)
    draft = None
    if options.draft_model is not None:
        named, its_options = open_draft_model(opened, options)
        draft = load(named, its_options, None, joins_team=True)
    beside_gpu = device is not None and not device.is_interpreted
    threads = options.threads or default_threads(beside_gpu=beside_gpu)
    ops, kernels = make_ops(
        options.kernels,
        threads,
        in_place=options.mmap,
        repack=_fits_this_machine(file),
        joins_team=(joins_team or draft is not None) and device is None,
    )
    tokenizer = Tokenizer.from_gguf(file)
    model = prepare_model(
        opened,
        ops,
        skips_neurons=may_skip_neurons(opened.config, options),
        context_length=options.context_length,
        progress=progress,
    )
    if options.head == "screened":
        model = with_screened_head(model, tokenizer)
    sparsity = attach_sparsity(model, file, tokenizer, options, calibrating)
    placement = None
    if device is not None:
        from powerinfer.offload.place import place

        placement = place(sparsity, file, tokenizer, options, device, placing)
    if kernels != REFERENCE_KERNELS and (placement is None or not placement.plan.has_everything):
        use_measured_settings(
            cast("NativeOps", ops),
            file,
            in_place=options.mmap,
            progress=None if placing is None else placing.speeds,
        )
    return LoadedModel(
        path=file.path,
        file=file,
        model=sparsity.model if placement is None else placement.model,
        tokenizer=tokenizer,
        options=options,
        threads=threads,
        kernels=kernels,
        load_s=opened.read_s + time.perf_counter() - started,
        dense_bytes=model.dense_bytes,
        sparsity=sparsity,
        placement=placement,
        draft=draft,
    )


def make_ops(
    kernels: str | None,
    threads: int,
    *,
    in_place: bool = True,
    repack: bool = True,
    joins_team: bool = False,
) -> tuple[Backend, str]:
    """Make a backend, importing only this one.

    Args:
        kernels: instruction set, `reference` for numpy, None for the best one.
        in_place: use weights in the mapped file if the backend can.
        repack: copy weights into faster layouts if the backend has some.
        joins_team: share threads with the other backends of this process that do.

    Raises:
        DeviceError: the kernels do not run on this machine.
    """
    if kernels == REFERENCE_KERNELS:
        from powerinfer.ops.reference.ops import ReferenceOps

        return as_backend(ReferenceOps()), REFERENCE_KERNELS
    from powerinfer.ops.cpu.machine import machine_info
    from powerinfer.ops.cpu.ops import NativeOps

    available = machine_info().available_kernels
    if kernels and kernels not in available:
        raise DeviceError(
            f"kernels {kernels!r} do not run on this machine; available: {', '.join(available)}, "
            f"and {REFERENCE_KERNELS!r} for plain numpy",
            remedy="name one of them with {kernels}",
        )
    ops = NativeOps(threads, kernels or None, in_place=in_place, repack=repack, joins=joins_team)
    return as_backend(ops), ops.kernels


def _fits_this_machine(file: GGUFFile) -> bool:
    """Tell whether this machine can hold copies of all weights, else they stay in the mapped file.

    Counts all memory, not the free part: layouts sum in different orders, and logits must not
    depend on what else is running.
    """
    total = total_memory_bytes()
    fits = total is None or weight_bytes(file) + WORKING_BYTES <= total
    if not fits:
        _log.info("the weights exceed this machine's memory: they stay in the file's own layout")
    return fits


def _check_context(opened: ModelFile, options: EngineOptions) -> None:
    """Check memory and context shift before anything is prepared."""
    context_length = options.context_length or default_context(opened.config)
    if options.context_shift and opened.config.state_mixers:
        raise PromptError(
            f"a context of {opened.architecture.name} cannot be shifted: its layers have a state, "
            "from which no tokens can be dropped",
            remedy="leave {context_shift} out, or take a larger context ({context_length})",
        )
    # BOS is always kept, and half of the rest is dropped.
    most = context_length - 2
    if options.context_shift and max(options.keep_tokens, 1) > most:
        raise PromptError(
            f"a context of {context_length} tokens cannot be shifted while its first "
            f"{max(options.keep_tokens, 1)} are kept; at most {max(most, 0)} can be",
            remedy="keep fewer ({keep_tokens}) or take a larger context ({context_length})",
        )
    _check_memory(opened, context_length, options)


def _check_memory(opened: ModelFile, context_length: int, options: EngineOptions) -> None:
    """Warn if the model exceeds the free memory; refuse what it alone cannot hold.

    That is states, and a KV cache whose size was asked for.
    """
    available = available_memory_bytes()
    if available is None:
        return
    own_bytes = weight_bytes(opened.file)
    num_positions = options.kv_tokens or context_length
    cache_bytes = kv_bytes(opened.config, options, context_length)
    state_bytes = num_slots(opened.config, options, context_length) * opened.config.state_bytes
    states = f" and states of {format_bytes(state_bytes)}" if state_bytes else ""
    if options.kv_tokens and cache_bytes + state_bytes > available:
        fewer = " or of states ({state_cache})" if state_bytes else ""
        raise PromptError(
            f"keys and values of {num_positions} tokens take {format_bytes(cache_bytes)}{states} "
            f"of memory, but only {format_bytes(available)} are free",
            remedy=f"take fewer ({{kv_tokens}}){fewer}, a smaller context ({{context_length}}) or "
            "fewer texts at once ({parallel})",
        )
    fewer = "fewer texts at once ({parallel}) or of the kept states ({state_cache})"
    if options.context_length and cache_bytes + state_bytes > available:
        raise PromptError(
            f"a context of {context_length} tokens takes {format_bytes(cache_bytes)}{states} of "
            f"memory, but only {format_bytes(available)} are free",
            remedy="take a smaller one ({context_length})" + (f", {fewer}" if states else ""),
        )
    if state_bytes > available:
        raise PromptError(
            f"the states of texts take {format_bytes(state_bytes)} of memory, but only "
            f"{format_bytes(available)} are free",
            remedy=f"take {fewer}",
        )
    needed = own_bytes + cache_bytes + state_bytes + WORKING_BYTES
    if needed > available:
        _log.warning(
            "the model needs about %s (weights %s, KV cache for %d tokens %s%s) but only %s are "
            "free: weights will be read from disk or swapped again and again, which is very slow",
            format_bytes(needed),
            format_bytes(own_bytes),
            num_positions,
            format_bytes(cache_bytes),
            f", states {format_bytes(state_bytes)}" if state_bytes else "",
            format_bytes(available),
        )
