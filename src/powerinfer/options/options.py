"""The options of `LLM`: one entry each, from which checks and command-line flags are made.

`LLMOptions` repeats the names with the types that Python may pass.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from powerinfer.errors import PromptError
from powerinfer.options import option_kinds as kinds
from powerinfer.options.llm_options import LLMOptions
from powerinfer.options.option import option, options_of, read_options
from powerinfer.options.vram_budget import VramBudget, read_vram_budget

__all__ = [
    "ContextOptions",
    "EngineOptions",
    "GPUOptions",
    "ModelOptions",
    "ParallelOptions",
    "SparsityOptions",
    "check_dials",
    "engine_options",
]

MAX_THREADS = 512
OFF, AUTO, CPU, REFERENCE = "off", "auto", "cpu", "reference"
_WITHOUT_DIAL = (OFF, "exact", "oracle")


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """How large the model's context is, and what computes it."""

    context_length: int | None = option(
        kinds.WholeNumber(1, 1 << 31),
        help="Context in tokens, prompt and answer together. [default: the model's, at most 4096]",
        flags="-c --context --ctx-size",
        metavar="N",
    )
    threads: int | None = option(
        kinds.WholeNumber(1, MAX_THREADS),
        help="Threads to compute with. [default: physical cores; two fewer beside a GPU]",
        flags="-t --threads",
        metavar="N",
    )
    kv_type: str = option(
        kinds.Choice("KV cache type", "f16", "q8_0"),
        default="f16",
        help="Element type of the KV cache.",
        flags="--kv-type",
    )
    activation: str | None = option(
        kinds.Text(kinds.read_activation),
        help="FFN activation, if the file does not name it: silu, gelu, relu, drelu, relu2 or "
        "fatrelu:THRESHOLD.",
        flags="--activation",
        metavar="NAME",
    )


@dataclass(frozen=True, kw_only=True)
class SparsityOptions:
    """Which neurons run."""

    sparsity: str | None = option(
        kinds.Text(kinds.read_sparsity),
        help="Which FFN neurons to compute. off: all. exact: all gates, then only the neurons that "
        "fire; nothing is lost. auto: what `powerinfer calibrate` chose, or a short calibration "
        "now. The name of a predictor, which guesses the neurons that fire: mlp, mlp:q8_0, "
        "mlp:q4_0 need a file of PowerInfer; lowbit:2, lowbit:3, lowbit:4, sign work on any "
        "ReLU-family model (lowbit means lowbit:2); up to three form a cascade, from cheap to "
        "precise, such as sign+lowbit:2; oracle is an upper bound, and slow. [default: the "
        "calibration, if the model has one; else mlp for a file of PowerInfer, exact for other "
        "ReLU-family models; off if the activation is never zero]",
        flags="--sparsity",
        metavar="MODE",
    )
    max_ffn_error: float | None = option(
        kinds.Share(),
        help="Relative error that predictors may cause in each layer's FFN output, such as 0.01, "
        "by the curves of the calibration. [default: as calibrated]",
        flags="--max-ffn-error",
        metavar="X",
    )
    recall: float | None = option(
        kinds.Share(),
        help="Share of the firing neurons that predictors must find, such as 0.99; replaces "
        "--max-ffn-error.",
        flags="--recall",
        metavar="X",
    )
    measure_recall: bool = option(
        kinds.Switch(),
        default=False,
        help="Also compute what predictors skip, and report recall, precision and FFN error of "
        "each layer. Speeds mean nothing then.",
        flags="--measure-recall",
    )

    @property
    def has_dial(self) -> bool:
        """Something may be lost, and how much is set."""
        return self.max_ffn_error is not None or self.recall is not None


@dataclass(frozen=True, kw_only=True)
class GPUOptions:
    """What runs on a GPU, and how much of it."""

    device: str = option(
        kinds.Text(kinds.read_device),
        default=AUTO,
        help="cpu, cuda, cuda:N, or auto: a GPU if torch is installed and sees one. torch calls "
        "AMD GPUs cuda too.",
        flags="--device",
        metavar="NAME",
    )
    vram_budget: VramBudget | None = option(
        kinds.Text(read_vram_budget),
        help="GPU memory to use for everything, the KV cache included: 8, 8G or 8GiB (2^30 "
        "bytes, fractions allowed), 512M, or 50% of what is free. [default: all that is free less "
        "256 MiB]",
        flags="--vram-budget",
        metavar="SIZE",
    )
    gpu_index: Path | None = option(
        kinds.FilePath(),
        help="Take the plan from this file instead of solving: a plan of `powerinfer plan` or a "
        "GPU index (.gpuidx) of PowerInfer.",
        flags="--gpu-index",
        metavar="FILE",
    )
    reset_gpu_index: bool = option(
        kinds.Switch(),
        default=False,
        help="Ignore the stored plan: solve again and overwrite it.",
        flags="--reset-gpu-index",
    )
    disable_gpu_index: bool = option(
        kinds.Switch(),
        default=False,
        help="Put no FFN neurons on the GPU, only attention, KV cache and output head.",
        flags="--disable-gpu-index",
    )
    online: bool | None = option(
        kinds.Switch(),
        help="Move neurons between GPU and CPU while decoding, as the text activates them. "
        "[default: if it measures faster]",
        flags="--online/--no-online",
    )
    solver: str | None = option(
        kinds.Text(kinds.read_solver),
        help=f"How to choose what goes to the GPU: {kinds.SOLVER_NAMES}. latency minimises the "
        "predicted time of a token, paper is PowerInfer's formulation, greedy takes the neurons "
        "that fire most often first. [default: latency]",
        flags="--solver",
        metavar="NAME",
    )

    @property
    def gpu_requests(self) -> tuple[str, ...]:
        """Names of the options given that mean nothing without a GPU."""
        names = (name for name in options_of(GPUOptions) if name != "device")
        return tuple(name for name in names if getattr(self, name) not in (None, False))

    @property
    def wants_gpu(self) -> bool:
        """A GPU was asked for, so that running without one would be a surprise."""
        return self.device not in (CPU, AUTO) or bool(self.gpu_requests)


@dataclass(frozen=True, kw_only=True)
class ContextOptions:
    """What happens to the tokens that a sequence already contains."""

    context_shift: bool = option(
        kinds.Switch(),
        default=False,
        help="When the context is full, drop its older half and continue.",
        flags="--context-shift",
    )
    keep_tokens: int = option(
        kinds.WholeNumber(0, 1 << 31),
        default=0,
        help="Tokens at the start that --context-shift keeps; it always keeps BOS.",
        flags="--keep",
        metavar="N",
    )
    reuse_prefix: bool = option(
        kinds.Switch(),
        default=False,
        help="Keep keys and values of the previous call for the first tokens that are the same and "
        "were given, not generated. Saves time where prompts begin alike; on a CPU no bit changes.",
    )


@dataclass(frozen=True, kw_only=True)
class ParallelOptions:
    """How many texts are computed side by side, and the room that all of them have."""

    parallel: int = option(
        kinds.WholeNumber(1, 1 << 16),
        default=8,
        help="Largest number of texts that are computed at once.",
    )
    kv_tokens: int | None = option(
        kinds.WholeNumber(1, 1 << 31),
        help="Tokens of all texts together whose keys and values there is memory for; None: as "
        "many as one context has.",
    )


@dataclass(frozen=True, kw_only=True)
class EngineOptions(ParallelOptions, ContextOptions, GPUOptions, SparsityOptions, ModelOptions):
    """All options, read and checked; `engine_options` builds it from a caller's arguments.

    Raises:
        PromptError: options contradict each other.
    """

    mmap: bool = option(
        kinds.Switch(),
        default=True,
        help="--no-mmap copies the weights into huge pages instead of using the mapped file: "
        "slower to start, faster to decode, sparse F16 models most of all. [default: --mmap]",
        flags="--mmap/--no-mmap",
    )
    kernels: str | None = option(
        kinds.Text(kinds.read_kernels),
        help="Instruction set of the kernels, or 'reference' for plain numpy. [default: the best "
        "that this machine has]",
        flags="--kernels",
        metavar="SET",
        variable="POWERINFER_KERNELS",
    )
    batch_size: int = option(
        kinds.WholeNumber(1, 1 << 20),
        default=512,
        help="Largest number of prompt tokens in one step.",
    )

    def __post_init__(self) -> None:
        check_dials(self.max_ffn_error, self.recall)
        if self.has_dial and self.sparsity in _WITHOUT_DIAL:
            raise PromptError(
                f"sparsity {self.sparsity} misses no neuron, so there is nothing to set",
                remedy="leave {max_ffn_error} and {recall} out, or set {sparsity} to auto or a "
                "predictor kind",
            )
        if self.gpu_index is not None and (self.reset_gpu_index or self.disable_gpu_index):
            clash = "reset_gpu_index" if self.reset_gpu_index else "disable_gpu_index"
            raise PromptError(
                remedy=f"{{gpu_index}} names a plan, {{{clash}}} says not to: give one"
            )
        self._check_gpu_fits()

    @property
    def may_use_gpu(self) -> bool:
        """Nothing here rules a GPU out."""
        return self.device != CPU and not self.measure_recall and self.kernels != REFERENCE

    @property
    def gpu_wish(self) -> str:
        """The option that asks for a GPU, as a remedy names it."""
        requests = self.gpu_requests
        return "{" + requests[0] + "}" if requests else f"{{device={self.device!r}}}"

    def _check_gpu_fits(self) -> None:
        wish = self.gpu_wish
        if self.device == CPU and self.gpu_requests:
            raise PromptError(
                remedy=f"{wish} is about a GPU, but {{device}} is cpu: leave one of them out"
            )
        if self.wants_gpu and not self.may_use_gpu:
            alone = "{measure_recall}" if self.measure_recall else "{kernels='reference'}"
            raise PromptError(remedy=f"{alone} runs on the CPU alone: leave it or {wish} out")


def check_dials(max_ffn_error: float | None, recall: float | None) -> None:
    """Refuse both dials at once.

    Raises:
        PromptError: both were given.
    """
    if max_ffn_error is not None and recall is not None:
        raise PromptError(remedy="give {max_ffn_error} or {recall}, not both")


def engine_options(**given: Unpack[LLMOptions]) -> EngineOptions:
    """Read every option once, from keyword arguments.

    Raises:
        UnsupportedError: an option or a name does not exist; names the nearest and all there are.
        PromptError: a value is out of its range, or options contradict each other.
    """
    return read_options(EngineOptions, EngineOptions, given, "option")
