"""What a caller may set when a model is loaded, checked once and passed down frozen."""

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from powerinfer import _plugins
from powerinfer.engine.vram_budget import parse_vram_budget
from powerinfer.errors import PromptError
from powerinfer.models import parse_activation
from powerinfer.ops.protocol import KVType
from powerinfer.predictors import parse_kind

__all__ = ["EngineOptions", "check_solver", "engine_options"]

MAX_THREADS = 512
OFF, AUTO, CPU, REFERENCE = "off", "auto", "cpu", "reference"
_GPU_OPTIONS = (
    "vram_budget",
    "gpu_index",
    "reset_gpu_index",
    "disable_gpu_index",
    "online",
    "solver",
)
_WITHOUT_DIAL = (OFF, "exact", "oracle")
_SOLVERS = "powerinfer.placement.solvers"
_DEVICE = re.compile(r"cpu|auto|cuda(:\d{1,3})?")


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options of `LLM`.

    Attributes:
        context_length: tokens of prompt and answer together; None takes the model's, at most 4096.
        threads: 1 to 512; None takes the physical cores, two fewer beside a GPU.
        kv_type: element type of the KV cache, `f16` or `q8_0`.
        activation: FFN activation that overrides the file's, such as `relu` or `fatrelu:0.01`.
        sparsity: `off` computes all neurons, `exact` skips those that do not fire, `auto` takes
            what was calibrated (and calibrates briefly where nobody did), the name of a predictor
            kind takes that. None: the predictors of a PowerInfer file, the calibration of a
            calibrated model, else exact where the activation allows it.
        max_ffn_error: relative error of every FFN's output that predictors may cause, on the
            calibration's text; None takes what was calibrated.
        recall: instead of `max_ffn_error`, share of the firing neurons that predictors must find.
        measure_recall: also compute what predictors skip, and report what they missed.
        kernels: instruction set of the native kernels, or `reference` for plain numpy; None takes
            the best this machine has.
        mmap: use weights where the file is mapped. False copies them into memory of our own, in
            huge pages: a slower start and faster decoding (Q4_0 is copied either way).
        batch_size: most tokens of a prompt computed in one step.
        context_shift: when the context is full, drop the older half instead of raising an error.
        keep_tokens: tokens at the start that a context shift keeps (BOS is always kept).
        reuse_prefix: keep keys and values of the previous call where the tokens agree. Saves time
            in a conversation; the last bits of the result may depend on what came before.
        device: `cpu`, `cuda`, `cuda:N`, or `auto`: the GPU where torch is installed and sees one.
        vram_budget: GPU memory to take, such as `8` (GiB), `8GiB` or `50%` of what is free; None
            takes all that is free less 256 MiB.
        gpu_index: a plan of ours or a GPU index of PowerInfer that says which neurons lie on the
            GPU; None takes the stored plan or solves for one.
        reset_gpu_index: solve again, whatever is stored.
        disable_gpu_index: no FFN neurons on the GPU: attention and the rest alone.
        online: move neurons between GPU and CPU while decoding; None where it measures faster.
        solver: of the placement; None takes `latency`.

    Raises:
        PromptError: a number is out of its range.
        UnsupportedError: a name is not one of those supported.
    """

    context_length: int | None = None
    threads: int | None = None
    kv_type: str = KVType.F16.value
    activation: str | None = None
    sparsity: str | None = None
    max_ffn_error: float | None = None
    recall: float | None = None
    measure_recall: bool = False
    kernels: str | None = None
    mmap: bool = True
    batch_size: int = 512
    context_shift: bool = False
    keep_tokens: int = 0
    reuse_prefix: bool = False
    device: str = AUTO
    vram_budget: str | None = None
    gpu_index: Path | str | None = None
    reset_gpu_index: bool = False
    disable_gpu_index: bool = False
    online: bool | None = None
    solver: str | None = None

    def __post_init__(self) -> None:
        _check_range("context_length", self.context_length, 1, 1 << 31)
        _check_range("threads", self.threads, 1, MAX_THREADS)
        _check_range("batch_size", self.batch_size, 1, 1 << 20)
        _check_range("keep_tokens", self.keep_tokens, 0, 1 << 31)
        if self.kv_type not in tuple(KVType):
            raise _plugins.unsupported("KV cache type", self.kv_type, tuple(KVType))
        if self.activation is not None:
            parse_activation(str(self.activation))
        for name in ("measure_recall", "mmap", "context_shift", "reuse_prefix"):
            _check_flag(name, getattr(self, name))
        if self.sparsity is not None:
            object.__setattr__(self, "sparsity", str(self.sparsity).strip().lower())
        if self.sparsity not in (None, OFF, AUTO):
            parse_kind(str(self.sparsity))
        _check_share("max_ffn_error", self.max_ffn_error)
        _check_share("recall", self.recall)
        self._check_dials()
        self._check_gpu()

    @property
    def gpu_requests(self) -> tuple[str, ...]:
        """Names of the options given that mean nothing without a GPU."""
        given = {name: getattr(self, name) for name in _GPU_OPTIONS}
        return tuple(name for name, value in given.items() if value not in (None, False))

    @property
    def wants_gpu(self) -> bool:
        """A GPU was asked for, so that running without one would be a surprise."""
        return self.device not in (CPU, AUTO) or bool(self.gpu_requests)

    @property
    def may_use_gpu(self) -> bool:
        """Nothing here rules a GPU out."""
        return self.device != CPU and not self.measure_recall and self.kernels != REFERENCE

    @property
    def has_dial(self) -> bool:
        """Something may be lost, and how much is set."""
        return self.max_ffn_error is not None or self.recall is not None

    def _check_dials(self) -> None:
        if self.max_ffn_error is not None and self.recall is not None:
            raise PromptError("give max_ffn_error or recall, not both")
        if self.has_dial and self.sparsity in _WITHOUT_DIAL:
            raise PromptError(
                f"sparsity {self.sparsity} misses no neuron, so there is nothing for max_ffn_error "
                "or recall to set: leave them out, or take auto or a predictor kind"
            )

    def _check_gpu(self) -> None:
        device = str(self.device).strip().lower()
        object.__setattr__(self, "device", device)
        if not _DEVICE.fullmatch(device):
            raise PromptError(f"device must be cpu, cuda, cuda:N or auto, got {device!r:.60}")
        for name in ("reset_gpu_index", "disable_gpu_index"):
            _check_flag(name, getattr(self, name))
        if self.online is not None:
            _check_flag("online", self.online)
        if self.vram_budget is not None:
            object.__setattr__(self, "vram_budget", str(self.vram_budget))
            parse_vram_budget(str(self.vram_budget))
        if self.solver is not None:
            check_solver(self.solver)
        if self.gpu_index is not None:
            _check_path("gpu_index", self.gpu_index)
        if self.gpu_index is not None and (self.reset_gpu_index or self.disable_gpu_index):
            clash = "reset_gpu_index" if self.reset_gpu_index else "disable_gpu_index"
            raise PromptError(f"gpu_index names a plan to use, {clash} says not to: give one")
        self._check_gpu_fits()

    def _check_gpu_fits(self) -> None:
        if self.device == CPU and self.gpu_requests:
            raise PromptError(
                f"{self.gpu_requests[0]} is about a GPU, but device is cpu: leave one of them out"
            )
        for name, clashes in (
            ("measure_recall", self.measure_recall),
            ("kernels reference", self.kernels == REFERENCE),
        ):
            if clashes and self.wants_gpu:
                wish = self.gpu_requests[0] if self.gpu_requests else f"device {self.device}"
                raise PromptError(f"{name} runs on the CPU alone: leave it or {wish} out")


def check_solver(name: str) -> str:
    """Check the name of a placement solver, from the file names alone; return it.

    Raises:
        UnsupportedError: there is no such solver.
    """
    known = _plugins.keys(_SOLVERS)
    if name not in known:
        raise _plugins.unsupported("solver", name, known)
    return name


def engine_options(options: dict[str, Any]) -> EngineOptions:
    """Build `EngineOptions` from keyword arguments.

    Raises:
        UnsupportedError: an option does not exist; names the nearest and all there are.
    """
    known = tuple(field.name for field in fields(EngineOptions))
    for name in options:
        if name not in known:
            raise _plugins.unsupported("option", name, known)
    return EngineOptions(**options)


def _check_range(name: str, value: object, low: int, high: int) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise PromptError(
            f"option {name} must be a whole number from {low} to {high}, got {value!r}"
        )


def _check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise PromptError(f"option {name} must be True or False, got {value!r:.60}")


def _check_path(name: str, value: object) -> None:
    # An empty path would mean the current folder.
    if not isinstance(value, str | Path) or value == "":
        raise PromptError(f"option {name} must be the path of a file, got {value!r:.60}")


def _check_share(name: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 1:
        raise PromptError(f"option {name} must be above 0 and at most 1, got {value!r}")
