"""The options of `LLM`: one field each, from which its command-line flag is built as well.

`LLMOptions` repeats the names with the types that Python callers may pass.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Unpack

from powerinfer.errors import PromptError
from powerinfer.options import option_kinds as kinds
from powerinfer.options.llm_options import LLMOptions
from powerinfer.options.option import Option, OptionTable
from powerinfer.options.vram_budget import VramBudget, read_vram_budget

__all__ = ["MOST_KV_TOKENS", "EngineOptions", "check_dials", "engine_options"]

MAX_THREADS = 512
MOST_KV_TOKENS = 1 << 31
OFF, AUTO, CPU, REFERENCE = "off", "auto", "cpu", "reference"
_WITHOUT_DIAL = (OFF, "exact", "oracle")
_FOR_GPU = ("vram_budget", "gpu_index", "reset_gpu_index", "disable_gpu_index", "online", "solver")


@dataclass(frozen=True, kw_only=True)
class EngineOptions(OptionTable):
    """All options of `LLM`, checked and converted; call `engine_options` to create them.

    Raises:
        PromptError: options contradict each other.
    """

    context_length: Annotated[
        int | None,
        Option(
            kinds.WholeNumber(1, 1 << 31),
            "-c --context --ctx-size N",
            "Context length in tokens, prompt and answer together. [default: the model's, at "
            "most 4096]",
        ),
    ] = None
    threads: Annotated[
        int | None,
        Option(
            kinds.WholeNumber(1, MAX_THREADS),
            "-t --threads N",
            "CPU threads. [default: physical cores, two fewer with a GPU]",
        ),
    ] = None
    kv_type: Annotated[
        str,
        Option(
            kinds.Choice("KV cache type", ("f16", "q8_0")),
            "--kv-type",
            "Element type of the KV cache.",
        ),
    ] = "f16"
    activation: Annotated[
        str | None,
        Option(
            kinds.read_activation,
            "--activation NAME",
            "FFN activation, if the file does not name it: silu, gelu, relu, drelu, relu2 or "
            "fatrelu:THRESHOLD.",
        ),
    ] = None

    sparsity: Annotated[
        str | None,
        Option(
            kinds.read_sparsity,
            "--sparsity MODE",
            "Which FFN neurons to compute. off: all. exact: every gate, then only the neurons "
            "that fire; lossless. auto: as `powerinfer calibrate` chose, or after a short "
            "calibration now. Or a predictor, which guesses the neurons that fire: mlp, "
            "mlp:q8_0, mlp:q4_0 need predictors in the file; lowbit:2, lowbit:3, lowbit:4, sign "
            "work on any ReLU-family model (lowbit means lowbit:2); up to three form a cascade, "
            "from cheap to precise, such as sign+lowbit:2; oracle is an upper bound, and slow. "
            "[default: the calibration, if the model has one; else mlp for a PowerInfer file, "
            "exact for other ReLU-family models; off if the activation is never zero]",
        ),
    ] = None
    activation_threshold: Annotated[
        float | str | None,
        Option(
            kinds.read_activation_threshold,
            "--activation-threshold X",
            "Skip FFN neurons whose activated gate is smaller than X in magnitude; for models with "
            "silu or gelu. Lossy. auto: a threshold per layer, as `powerinfer calibrate` chose, or "
            "after a short calibration now. [default: compute all neurons]",
        ),
    ] = None
    max_ffn_error: Annotated[
        float | None,
        Option(
            kinds.read_share,
            "--max-ffn-error X",
            "Largest relative error that predictors or thresholds may cause in each layer's FFN "
            "output, such as 0.01, according to the calibration. [default: as calibrated]",
        ),
    ] = None
    recall: Annotated[
        float | None,
        Option(
            kinds.read_share,
            "--recall X",
            "Share of the firing neurons that predictors must find, such as 0.99; instead of "
            "--max-ffn-error.",
        ),
    ] = None
    measure_recall: Annotated[
        bool,
        Option(
            kinds.read_switch,
            "--measure-recall",
            "Also compute the neurons that predictors skip, and report recall, precision and FFN "
            "error of each layer. Speeds mean nothing then.",
        ),
    ] = False

    head: Annotated[
        str,
        Option(
            kinds.Choice("output head", ("exact", "screened")),
            "--head",
            "Output head. exact: all logits. screened: multiply a copy in 4 bits first, then only "
            "the rows that may matter for greedy, top-k or min-p alone; the same texts. Other "
            "settings compute all logits. CPU only.",
        ),
    ] = "exact"

    device: Annotated[
        str,
        Option(
            kinds.read_device,
            "--device NAME",
            "cpu, cuda, cuda:N, or auto, which takes a GPU if torch is installed and finds one. "
            "torch calls AMD GPUs cuda too.",
        ),
    ] = AUTO
    vram_budget: Annotated[
        VramBudget | None,
        Option(
            read_vram_budget,
            "--vram-budget SIZE",
            "GPU memory for everything, KV cache included: 8, 8G or 8GiB (2^30 bytes, fractions "
            "allowed), 512M, or 50% of the free memory. [default: all free memory less 256 MiB]",
        ),
    ] = None
    gpu_index: Annotated[
        Path | None,
        Option(
            kinds.read_path,
            "--gpu-index FILE",
            "Read the plan from this file instead of solving: a plan of `powerinfer plan`, or a "
            "GPU index (.gpuidx) of PowerInfer.",
        ),
    ] = None
    reset_gpu_index: Annotated[
        bool,
        Option(
            kinds.read_switch,
            "--reset-gpu-index",
            "Ignore the stored plan; solve again and overwrite it.",
        ),
    ] = False
    disable_gpu_index: Annotated[
        bool,
        Option(
            kinds.read_switch,
            "--disable-gpu-index",
            "Keep all FFN neurons on the CPU; the GPU gets attention, KV cache and output head "
            "only.",
        ),
    ] = False
    online: Annotated[
        bool | None,
        Option(
            kinds.read_switch,
            "--online/--no-online",
            "Move neurons between GPU and CPU while decoding, as the text activates them. "
            "[default: if it measures faster]",
        ),
    ] = None
    solver: Annotated[
        str | None,
        Option(
            kinds.read_solver,
            "--solver NAME",
            f"How to choose what goes to the GPU: {kinds.SOLVER_NAMES}. latency minimizes the "
            "predicted time per token, paper is PowerInfer's formulation, greedy takes the "
            "neurons that fire most often. [default: latency]",
        ),
    ] = None

    draft: Annotated[
        str,
        Option(
            kinds.read_draft,
            "--draft MODE",
            "Guess tokens and check the guesses in the step of the next token: faster where an "
            "answer repeats its prompt or itself, and not a bit of it changes. ngram: what "
            "followed the last N tokens before, or more of them; N is 3 unless given as ngram:N. "
            "auto: ngram on a CPU, as far as it pays. off: none.",
        ),
    ] = AUTO
    draft_model: Annotated[
        Path | None,
        Option(
            kinds.read_path,
            "--draft-model FILE",
            "A smaller model with the same vocabulary that guesses tokens where a look-up finds "
            "none (with --draft auto), as far as its time pays. CPU only.",
        ),
    ] = None
    draft_memory: Annotated[
        bool,
        Option(
            kinds.read_switch,
            "--draft-memory",
            "Also guess from past answers, whoever asked for them; an answer does not depend on "
            "it, but its speed tells whether another one was like it.",
        ),
    ] = False

    context_shift: Annotated[
        bool,
        Option(
            kinds.read_switch,
            "--context-shift",
            "When the context is full, drop its older half and continue.",
        ),
    ] = False
    keep_tokens: Annotated[
        int,
        Option(
            kinds.WholeNumber(0, 1 << 31),
            "--keep N",
            "Tokens at the start that --context-shift keeps; BOS is always kept.",
        ),
    ] = 0
    # Keep the previous call's keys and values for the prompt tokens at the start that the next one
    # shares; generated tokens are not kept. On a CPU this saves time and changes no bit.
    reuse_prefix: Annotated[bool, Option(kinds.read_switch)] = False

    # Maximum number of texts computed at once.
    parallel: Annotated[int, Option(kinds.WholeNumber(1, 1 << 16))] = 8
    # Capacity of the KV cache, shared by all texts; None holds one context.
    kv_tokens: Annotated[int | None, Option(kinds.WholeNumber(1, MOST_KV_TOKENS))] = None

    state_cache: Annotated[
        int,
        Option(
            kinds.WholeNumber(0, 1 << 24),
            "--state-cache MIB",
            "Memory for states of models with recurrent layers, kept so that later prompts need "
            "not compute again what they have in common with earlier ones.",
        ),
    ] = 1024
    state_interval: Annotated[
        int,
        Option(
            kinds.WholeNumber(1, 1 << 31),
            "--state-interval N",
            "Tokens of a prompt after which such a state is kept; it is also kept at ends of "
            "messages.",
        ),
    ] = 1024

    mmap: Annotated[
        bool,
        Option(
            kinds.read_switch,
            "--mmap/--no-mmap",
            "--no-mmap copies the weights into huge pages instead of mapping the file: slower to "
            "start, faster to decode, sparse F16 models most of all. [default: --mmap]",
        ),
    ] = True
    kernels: Annotated[
        str | None,
        Option(
            kinds.read_kernels,
            "--kernels SET",
            "Instruction set of the kernels, or 'reference' for plain numpy. [default: the best "
            "on this machine]",
            variable="POWERINFER_KERNELS",
        ),
    ] = None
    # Maximum number of prompt tokens in one step.
    batch_size: Annotated[int, Option(kinds.WholeNumber(1, 1 << 20))] = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        check_dials(max_ffn_error=self.max_ffn_error, recall=self.recall)
        self._check_threshold()
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
        if self.draft_model is not None:
            if self.kernels == REFERENCE:
                raise PromptError(remedy="{kernels='reference'} checks no guesses of {draft_model}")
            if self.draft != AUTO:
                raise PromptError(remedy="{draft_model} guesses with {draft='auto'}: leave one out")
        self._check_device()

    @property
    def has_dial(self) -> bool:
        """Predictors may miss neurons, and a limit is set."""
        return self.max_ffn_error is not None or self.recall is not None

    @property
    def gpu_requests(self) -> tuple[str, ...]:
        """Names of the given options that mean nothing without a GPU."""
        return tuple(name for name in _FOR_GPU if getattr(self, name) not in (None, False))

    @property
    def gpu_wish(self) -> str:
        """The option that asks for a GPU, in braces for a remedy."""
        requests = self.gpu_requests
        return "{" + requests[0] + "}" if requests else f"{{device={self.device!r}}}"

    @property
    def wants_gpu(self) -> bool:
        """A GPU was asked for; running without one would be a surprise."""
        return self.device not in (CPU, AUTO) or bool(self.gpu_requests)

    @property
    def _cpu_wish(self) -> str | None:
        """An option that the CPU alone can run, in braces for a remedy."""
        if self.measure_recall:
            return "{measure_recall}"
        if self.activation_threshold is not None:
            return "{activation_threshold}"
        if self.head != "exact":
            return "{head}"
        if self.draft_model is not None:
            return "{draft_model}"
        return "{kernels='reference'}" if self.kernels == REFERENCE else None

    @property
    def may_use_gpu(self) -> bool:
        """No option rules a GPU out."""
        return self.device != CPU and self._cpu_wish is None

    def _check_threshold(self) -> None:
        if self.activation_threshold is None:
            return
        if self.sparsity is not None:
            raise PromptError(
                remedy="{activation_threshold} decides which neurons run: leave it or {sparsity} "
                "out"
            )
        if self.has_dial and self.activation_threshold != AUTO:
            raise PromptError(
                remedy="{max_ffn_error} and {recall} choose a threshold: give {activation_threshold"
                "='auto'} with them"
            )

    def _check_device(self) -> None:
        wish = self.gpu_wish
        if self.device == CPU and self.gpu_requests:
            raise PromptError(
                remedy=f"{wish} is about a GPU, but {{device}} is cpu: leave one of them out"
            )
        if self.wants_gpu and not self.may_use_gpu:
            raise PromptError(
                remedy=f"{self._cpu_wish} runs on the CPU alone: leave it or {wish} out"
            )


def check_dials(**dials: float | None) -> None:
    """Refuse two limits of the same loss, given by their names.

    Raises:
        PromptError: two were given.
    """
    given = ["{" + name + "}" for name, value in dials.items() if value is not None]
    if len(given) > 1:
        raise PromptError(remedy=f"give {' or '.join(given)}, not both")


def engine_options(**given: Unpack[LLMOptions]) -> EngineOptions:
    """Check and convert keyword arguments of `LLM`.

    Raises:
        UnsupportedError: an option or a name does not exist; suggests the nearest and lists all.
        PromptError: a value is out of its range, or options contradict each other.
    """
    # The table's fields have the types of converted values.
    values: dict[str, Any] = {**given}
    return EngineOptions(**values)
