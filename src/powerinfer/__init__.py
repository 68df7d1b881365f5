"""Run activation-sparse language models fast: only the neurons that fire are computed.

::

    from powerinfer import LLM, SamplingParams

    with LLM("model.gguf") as llm:
        for piece in llm.stream("Once upon a time", SamplingParams(max_tokens=64)):
            print(piece, end="", flush=True)

Importing this package is cheap: a name's module is imported when the name is first used.
"""

import importlib
from typing import TYPE_CHECKING

from powerinfer._version import __version__
from powerinfer.errors import (
    DeviceError,
    GGUFError,
    NumericsError,
    PlacementError,
    PowerInferError,
    PromptError,
    ShapeError,
    TokenizerError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from powerinfer.engine.generation import Generation
    from powerinfer.engine.llm import LLM
    from powerinfer.engine.observing import FFNObservation
    from powerinfer.engine.sampling_params import SamplingParams

__all__ = [
    "LLM",
    "DeviceError",
    "FFNObservation",
    "GGUFError",
    "Generation",
    "NumericsError",
    "PlacementError",
    "PowerInferError",
    "PromptError",
    "SamplingParams",
    "ShapeError",
    "TokenizerError",
    "UnsupportedError",
    "__version__",
]

_LAZY = {
    "LLM": "powerinfer.engine.llm",
    "FFNObservation": "powerinfer.engine.observing",
    "Generation": "powerinfer.engine.generation",
    "SamplingParams": "powerinfer.engine.sampling_params",
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
