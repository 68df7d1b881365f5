"""What the packages of the extra `clients` ask a live server, and the model that answers."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel

from powerinfer import LLM, SamplingParams
from powerinfer.gguf import keys, open_gguf, write_gguf
from powerinfer.store.default_model import default_model_path
from rewritten_models import spec
from serving import Server, serving
from template_cases import TEMPLATES

__all__ = [
    "CONTEXT",
    "KEY",
    "MARKS",
    "MODEL",
    "NUM_TOKENS",
    "PROMPT",
    "Hour",
    "continuation",
    "serving_a_chat_model",
]

KEY = "secret"
MODEL = "storyteller"
PROMPT = "Once upon a time there was"
NUM_TOKENS = 12
CONTEXT = 1536
"""Less than the model's own, in tokens: clients must not ask for more."""
# Warnings about other people's code, and connections that it leaves open, are not ours to mend.
MARKS = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("default::DeprecationWarning"),
    pytest.mark.filterwarnings("default::PendingDeprecationWarning"),
]


class Hour(BaseModel, extra="forbid"):
    """Tells the hour."""

    hour: Literal[1, 2]


def continuation() -> str:
    """What the engine itself generates after the prompt, greedily."""
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS)
    with LLM(threads=1, context_length=512) as llm:
        return llm.generate(PROMPT, params)[0].text


@contextmanager
def serving_a_chat_model(folder: Path) -> Iterator[Server]:
    """A server with the weights of the embedded model and a template with tools and reasoning."""
    file = open_gguf(default_model_path())
    template = TEMPLATES["Qwen-Qwen3-0.6B"]
    changed = {keys.CHAT_TEMPLATE: template, f"llama.{keys.CONTEXT_LENGTH}": 2 * CONTEXT}
    metadata = file.metadata | changed
    path = folder / f"{MODEL}.gguf"
    write_gguf(path, metadata, [spec(tensor) for tensor in file.tensors.values()], magic=file.magic)
    flags = ("-t", "1", "-np", "4", "-c", str(CONTEXT), "--keep-alive", "5m", "--api-key", KEY)
    with serving("-m", str(path), *flags) as server:
        yield server
