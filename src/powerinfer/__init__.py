"""Run activation-sparse language models fast by computing only the neurons that fire.

::

    from powerinfer import LLM, SamplingParams

    with LLM("model.gguf") as llm:
        for piece in llm.stream("Once upon a time", SamplingParams(max_tokens=64)):
            print(piece, end="", flush=True)

Importing this package is cheap: it imports the module of a name when the name is first used.
"""

import importlib
from typing import TYPE_CHECKING

from powerinfer._version import __version__
from powerinfer.errors import (
    CalibrationError,
    CheckpointError,
    ContextLengthError,
    DeviceError,
    GGUFError,
    HubError,
    MeasurementError,
    NumericsError,
    OutOfDeviceMemoryError,
    PlacementError,
    PowerInferError,
    PromptError,
    ShapeError,
    TaskError,
    TokenizerError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from powerinfer.calibration.observing import FFNObservation
    from powerinfer.calibration.recall import LayerRecall
    from powerinfer.engine.llm import LLM
    from powerinfer.engine.text_stream import AsyncTextStream, Generation, TextStream
    from powerinfer.models.metrics import Metrics
    from powerinfer.options.llm_options import LLMOptions
    from powerinfer.orchestra.orchestra import Orchestra
    from powerinfer.sampling.logprobs import TokenLogprob
    from powerinfer.sampling.sampling_params import SamplingParams
    from powerinfer.scoring.scoring import Score

__all__ = [
    "LLM",
    "AsyncTextStream",
    "CalibrationError",
    "CheckpointError",
    "ContextLengthError",
    "DeviceError",
    "FFNObservation",
    "GGUFError",
    "Generation",
    "HubError",
    "LLMOptions",
    "LayerRecall",
    "MeasurementError",
    "Metrics",
    "NumericsError",
    "Orchestra",
    "OutOfDeviceMemoryError",
    "PlacementError",
    "PowerInferError",
    "PromptError",
    "SamplingParams",
    "Score",
    "ShapeError",
    "TaskError",
    "TextStream",
    "TokenLogprob",
    "TokenizerError",
    "UnsupportedError",
    "__version__",
]

_LAZY = {
    "LLM": "powerinfer.engine.llm",
    "AsyncTextStream": "powerinfer.engine.text_stream",
    "FFNObservation": "powerinfer.calibration.observing",
    "Generation": "powerinfer.engine.text_stream",
    "LLMOptions": "powerinfer.options.llm_options",
    "LayerRecall": "powerinfer.calibration.recall",
    "Metrics": "powerinfer.models.metrics",
    "Orchestra": "powerinfer.orchestra.orchestra",
    "SamplingParams": "powerinfer.sampling.sampling_params",
    "Score": "powerinfer.scoring.scoring",
    "TextStream": "powerinfer.engine.text_stream",
    "TokenLogprob": "powerinfer.sampling.logprobs",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used."""
    if name not in _LAZY:
        raise AttributeError(f"module 'powerinfer' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
