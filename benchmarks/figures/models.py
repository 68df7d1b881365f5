"""The tables that answer which model to take: facts from the models' cards, gains as measured."""

from collections.abc import Iterator
from dataclasses import dataclass

from figures.measured import FORMAT_NAMES, MODEL_NAMES, Measured

__all__ = ["MODELS", "Model", "long_rows", "short_rows"]


@dataclass(frozen=True)
class Model:
    """One model or family of models.

    Attributes:
        name: as people call it.
        size: parameters.
        hub: repositories of its weights on Hugging Face.
        zeros: share of the FFN neurons that do not fire, as its authors publish it.
        file: where a GGUF file comes from.
        shape: the measured shape that is its own, a key of `MODEL_NAMES`.
        bound: ratio that bytes allow, where no shape was measured at its share of zeros.
        is_short: in the short table too.
    """

    name: str
    size: str
    hub: tuple[str, ...]
    zeros: str
    file: str
    shape: str | None = None
    bound: str | None = None
    is_short: bool = False


def _hub(*names: str) -> str:
    return ", ".join(f"[{name}](https://huggingface.co/{name})" for name in names)


MODELS = (
    Model(
        "ProSparse-LLaMA-2",
        "7B, 13B",
        ("SparseLLM/prosparse-llama-2-7b", "SparseLLM/prosparse-llama-2-13b"),
        "89 %",
        _hub("PowerInfer/prosparse-llama-2-7b-gguf", "PowerInfer/prosparse-llama-2-13b-gguf")
        + "; add `--activation fatrelu:0.01`",
        shape="relullama-7b",
        is_short=True,
    ),
    Model(
        "Bamboo",
        "7B",
        ("PowerInfer/Bamboo-base-v0_1", "PowerInfer/Bamboo-DPO-v0_1"),
        "85 to 90 %",
        _hub("PowerInfer/Bamboo-base-v0.1-gguf", "PowerInfer/Bamboo-DPO-v0.1-gguf"),
        shape="turbosparse-mistral-7b",
        is_short=True,
    ),
    Model(
        "TurboSparse-Mistral",
        "7B",
        ("PowerInfer/TurboSparse-Mistral-Instruct",),
        "90 %",
        "convert it, see below",
        shape="turbosparse-mistral-7b",
    ),
    Model(
        "ReluFalcon",
        "40B",
        ("SparseLLM/ReluFalcon-40B",),
        "95 %",
        _hub("PowerInfer/ReluFalcon-40B-PowerInfer-GGUF") + "; asks you to accept its terms",
        shape="falcon-40b",
        is_short=True,
    ),
    Model(
        "ReluLLaMA",
        "7B, 13B, 70B",
        ("SparseLLM/ReluLLaMA-7B", "SparseLLM/ReluLLaMA-13B", "SparseLLM/ReluLLaMA-70B"),
        "67 to 82 %",
        _hub(
            "PowerInfer/ReluLLaMA-7B-PowerInfer-GGUF",
            "PowerInfer/ReluLLaMA-13B-PowerInfer-GGUF",
            "PowerInfer/ReluLLaMA-70B-PowerInfer-GGUF",
        ),
        bound="1.5 to 1.8 in F16",
        is_short=True,
    ),
    Model(
        "OPT",
        "6.7B",
        ("facebook/opt-6.7b",),
        "96 to 98 %",
        "none known: PowerInfer's converter asks for predictors, and we know of none",
        shape="opt-6.7b",
    ),
    Model(
        "AFM",
        "4.5B",
        ("arcee-ai/AFM-4.5B",),
        "not published",
        _hub("arcee-ai/AFM-4.5B-GGUF") + ", then `powerinfer pack`",
    ),
    Model(
        "SmallThinker, experts",
        "4B, 21B",
        ("PowerInfer/SmallThinker-4BA0.6B-Instruct", "PowerInfer/SmallThinker-21BA3B-Instruct"),
        "over 60 % in the chosen experts",
        _hub(
            "PowerInfer/SmallThinker-4BA0.6B-Instruct-GGUF",
            "PowerInfer/SmallThinker-21BA3B-Instruct-GGUF",
        )
        + ", those for llama.cpp; then `powerinfer pack`",
    ),
    Model(
        "TurboSparse-Mixtral, experts",
        "47B",
        ("PowerInfer/TurboSparse-Mixtral",),
        "85 % in the chosen experts",
        "none known; a `llama` file with experts runs with `--activation drelu`",
    ),
    Model(
        "Nemotron-Mini, Minitron",
        "4B",
        ("nvidia/Nemotron-Mini-4B-Instruct", "nvidia/Minitron-4B-Base"),
        "not published",
        "convert it, see below",
    ),
)


def short_rows(measured: Measured) -> Iterator[tuple[str, ...]]:
    """Headings, then name, size, zeros and gain of the best known."""
    yield ("model", "size", "neurons that do not fire", "decode speed at its shape, llama.cpp = 1")
    for model in MODELS:
        if model.is_short:
            yield (
                f"[{model.name}](https://huggingface.co/{model.hub[0]})",
                model.size,
                model.zeros,
                _gain(model, measured),
            )


def long_rows(measured: Measured) -> Iterator[tuple[str, ...]]:
    """Headings, then everything about each model."""
    yield (
        "model",
        "size",
        "weights",
        "neurons that do not fire",
        "GGUF file",
        "decode speed at its shape",
    )
    for model in MODELS:
        yield (
            model.name,
            model.size,
            _hub(*model.hub),
            model.zeros,
            model.file,
            _gain(model, measured),
        )


def _gain(model: Model, measured: Measured) -> str:
    """Measured ratios at its shape; else what bytes allow, marked as such."""
    if model.shape is None:
        return f"byte bound: {model.bound}" if model.bound else "not measured"
    ratios = ", ".join(
        f"{FORMAT_NAMES[pair.format]} {pair.ratio.value:.1f}"
        for pair in measured.intel
        if pair.model == model.shape
    )
    named = MODEL_NAMES[model.shape]
    return f"{ratios} ({named})"
