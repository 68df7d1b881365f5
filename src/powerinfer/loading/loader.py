"""Loads a model from a path and options: file, backend, weights, tokenizer, KV cache."""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from powerinfer.calibration.recall import LayerRecall, recall_meter
from powerinfer.calibration.sparsity import Sparsity, attach_sparsity, may_skip_neurons
from powerinfer.errors import DeviceError, NumericsError, PromptError
from powerinfer.gguf import GGUFFile
from powerinfer.kvcache import KVCache
from powerinfer.loading.reading_speeds import use_measured_settings
from powerinfer.loading.step import TokenSequence
from powerinfer.loading.turns import FairLock
from powerinfer.models import (
    Model,
    ModelFile,
    default_context,
    find_nonfinite_layer,
    kv_bytes_per_position,
    prepare_model,
)
from powerinfer.offload.devices import find_device
from powerinfer.ops.protocol import KVType
from powerinfer.ops.some_backend import SomeOps, some_ops
from powerinfer.options.options import CPU, EngineOptions
from powerinfer.store.default_model import find_model
from powerinfer.store.memory import available_memory_bytes, format_bytes, total_memory_bytes
from powerinfer.store.threads import default_threads
from powerinfer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from powerinfer.offload.place import Placement
    from powerinfer.offload.progress import PlacementProgress
    from powerinfer.ops.cpu.ops import NativeOps

__all__ = ["LoadedModel", "Progress", "load", "make_ops", "open_model"]

Progress = Callable[[int, int], None]
"""Called with (bytes prepared, bytes in all) while weights are prepared."""

# Interpreter, libraries, activations and scratch memory; what a process may take over file and KV.
WORKING_BYTES = 300 << 20
REFERENCE_KERNELS = "reference"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run.

    Attributes:
        path: the file (of a split file its first part).
        file: the open file; the weights are views of it.
        model: configuration and weights.
        tokenizer: of the same file.
        options: as given.
        threads: really used.
        kernels: instruction set really used, `reference` for numpy.
        load_s: seconds it took.
        dense_bytes: bytes a step reads whatever fires.
        sparsity: what decides which neurons run, with a line that says so.
        placement: what lies on a GPU; None where the CPU runs alone because no GPU was requested.
        steps: held during each step: backends count, and keep the current batch, for one at a time.
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
    steps: FairLock = field(default_factory=FairLock, repr=False, compare=False)

    @property
    def device(self) -> str:
        """Where it runs: `cpu`, the name of the GPU beside it, or `interpreted` in its place."""
        placement = self.placement
        if placement is None or not placement.plan.has_anything:
            return CPU
        return "interpreted" if placement.device.is_interpreted else placement.device.name

    @property
    def predicted_tokens_per_s(self) -> float | None:
        """Decode speed by the cost model; None where there is no placement to predict."""
        return None if self.placement is None else self.placement.predicted_tokens_per_s

    @property
    def recall(self) -> tuple[LayerRecall, ...] | None:
        """What predictors missed in all steps since loading, layer by layer.

        None without `measure_recall`. The figures are a copy, which later steps do not change.
        """
        meter = recall_meter(self.model)
        return None if meter is None else tuple(replace(layer) for layer in meter.layers)

    @property
    def kv_type(self) -> KVType:
        """Element type of the KV cache."""
        return KVType(self.options.kv_type)

    def new_pool(self) -> KVCache:
        """Room for the keys and values of all texts; that made with a placement, if it is free."""
        cache = None if self.placement is None else self.placement.take_cache()
        if cache is None:
            cache = self.model.new_cache(self.options.kv_tokens, kv_type=self.kv_type)
        return cache

    def new_sequence(self, reading: Progress | None = None) -> TokenSequence:
        """An empty sequence with room for one full context.

        Its keys and values are those made with a placement, if they are not in use.

        Args:
            reading: called with (tokens computed, tokens in all) while several are computed.
        """
        return self.sequence_on(self.new_pool(), reading)

    def sequence_on(
        self,
        cache: KVCache,
        reading: Progress | None = None,
        exclusive: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> TokenSequence:
        """An empty sequence that takes room of a cache as it grows.

        Args:
            cache: of keys and values.
            reading: see `new_sequence`.
            exclusive: entered where the cache is used, where others use it, too.
        """
        return TokenSequence(
            self.model,
            cache,
            self.options.batch_size,
            self.steps,
            reading,
            watches_layers=self.placement is None,
            exclusive=exclusive,
        )

    def explain_non_finite(
        self, token_ids: list[int], error: NumericsError, is_prompt: Sequence[bool] | None = None
    ) -> NumericsError:
        """Find what first was not finite, with a second pass that checks every layer.

        Args:
            token_ids: of the sequence.
            error: what was noticed.
            is_prompt: of each token whether it is prompt; None if all are.
        """
        # The CPU has all weights: what is damaged there is damaged everywhere.
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
        path: file, folder with one model, `hf:ORG/NAME[:QUANT]`, or None for the embedded model.
        options: checked options, which may name the activation.
        downloading: called with (bytes that are there, bytes in all) while a model is fetched.

    Raises:
        GGUFError: the file is missing or malformed.
        HubError: a model on the Hub cannot be found, chosen or fetched.
        UnsupportedError: its architecture or activation is not implemented.
    """
    return ModelFile.open(find_model(path, downloading), options.activation)


def load(
    opened: ModelFile,
    options: EngineOptions,
    progress: Progress | None,
    calibrating: Progress | None = None,
    placing: "PlacementProgress | None" = None,
) -> LoadedModel:
    """Load a model.

    Args:
        opened: the file of the model, see `open_model`.
        options: checked options.
        progress: told how far it is.
        calibrating: told (layers done, layers in all) where the model has to be calibrated now.
        placing: told where the speeds of this machine are measured, and whatever else a GPU needs.

    Raises:
        CalibrationError: what was calibrated before is damaged or belongs to another model.
        GGUFError: the file is malformed.
        UnsupportedError: a tensor type or an option is not implemented.
        TokenizerError: its vocabulary cannot be used.
        DeviceError: the native extension, the asked-for instruction set or the GPU is missing.
        PlacementError: the plan that was named for the GPU cannot be used.
        PromptError: there is not memory enough for the context asked for, or more of it is to be
            kept than it can do without.
    """
    started = time.perf_counter()
    file = opened.file
    device = find_device(options)
    _check_context(opened, options)
    beside_gpu = device is not None and not device.is_interpreted
    threads = options.threads or default_threads(beside_gpu=beside_gpu)
    ops, kernels = make_ops(
        options.kernels, threads, in_place=options.mmap, repack=_fits_this_machine(file)
    )
    tokenizer = Tokenizer.from_gguf(file)
    model = prepare_model(
        opened,
        ops,
        skips_neurons=may_skip_neurons(opened.config.activation, options),
        context_length=options.context_length,
        progress=progress,
    )
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
    )


def make_ops(
    kernels: str | None, threads: int, *, in_place: bool = True, repack: bool = True
) -> tuple[SomeOps, str]:
    """Make a backend; each is imported only where it is used.

    Args:
        kernels: instruction set, `reference` for numpy, nothing for the best there is.
        threads: to compute with.
        in_place: use weights where the file is mapped, where the backend can.
        repack: copy weights into faster layouts, where the backend has some.

    Returns:
        The backend and the name of its kernels.

    Raises:
        DeviceError: this machine has no such kernels.
    """
    if kernels == REFERENCE_KERNELS:
        from powerinfer.ops.reference.ops import ReferenceOps

        return some_ops(ReferenceOps()), REFERENCE_KERNELS
    from powerinfer.ops.cpu.machine import machine_info
    from powerinfer.ops.cpu.ops import NativeOps

    available = machine_info().available_kernels
    if kernels and kernels not in available:
        raise DeviceError(
            f"kernels {kernels!r} do not run on this machine; available: {', '.join(available)}, "
            f"and {REFERENCE_KERNELS!r} for plain numpy",
            remedy="name one of them with {kernels}",
        )
    ops = NativeOps(threads=threads, kernels=kernels or None, in_place=in_place, repack=repack)
    return some_ops(ops), ops.kernels


def _fits_this_machine(file: GGUFFile) -> bool:
    """Whether copies of all weights may stay in memory; if not, they stay in the mapped file.

    It asks for all the memory there is, not for what is free now: layouts sum in different orders,
    and logits must not depend on what else is running.
    """
    total = total_memory_bytes()
    fits = total is None or _weight_bytes(file) + WORKING_BYTES <= total
    if not fits:
        _log.info("the weights exceed this machine's memory: they stay in the file's own layout")
    return fits


def _weight_bytes(file: GGUFFile) -> int:
    return sum(tensor.data.nbytes for tensor in file.tensors.values())


def _check_context(opened: ModelFile, options: EngineOptions) -> None:
    """Check what depends on the context's length before anything is prepared.

    Raises:
        PromptError: there is not memory enough for the context, or nothing of it can be dropped.
    """
    context_length = options.context_length or default_context(opened.config)
    # BOS is always kept, and of the others half is dropped.
    most = context_length - 2
    if options.context_shift and max(options.keep_tokens, 1) > most:
        raise PromptError(
            f"a context of {context_length} tokens cannot be shifted while its first "
            f"{max(options.keep_tokens, 1)} are kept; at most {max(most, 0)} can be",
            remedy="keep fewer ({keep_tokens}) or take a larger context ({context_length})",
        )
    _check_memory(opened, context_length, options)


def _check_memory(opened: ModelFile, context_length: int, options: EngineOptions) -> None:
    """Warn where weights, KV cache and working memory do not fit what is free.

    Raises:
        PromptError: the context asked for alone is more than is free.
    """
    available = available_memory_bytes()
    if available is None:
        return
    weight_bytes = _weight_bytes(opened.file)
    num_positions = options.kv_tokens or context_length
    kv_bytes = num_positions * kv_bytes_per_position(opened.config, KVType(options.kv_type))
    if options.kv_tokens and kv_bytes > available:
        raise PromptError(
            f"keys and values of {num_positions} tokens take {format_bytes(kv_bytes)} of memory, "
            f"but only {format_bytes(available)} are free",
            remedy="take fewer ({kv_tokens}), a smaller context ({context_length}) or fewer texts "
            "at once ({parallel})",
        )
    if options.context_length and kv_bytes > available:
        raise PromptError(
            f"a context of {context_length} tokens takes {format_bytes(kv_bytes)} of memory, but "
            f"only {format_bytes(available)} are free",
            remedy="take a smaller one ({context_length})",
        )
    needed = weight_bytes + kv_bytes + WORKING_BYTES
    if needed > available:
        _log.warning(
            "the model needs about %s (weights %s, KV cache for %d tokens %s) but only %s are "
            "free: weights will be read from disk or swapped again and again, which is very slow",
            format_bytes(needed),
            format_bytes(weight_bytes),
            num_positions,
            format_bytes(kv_bytes),
            format_bytes(available),
        )
