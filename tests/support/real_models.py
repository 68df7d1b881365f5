"""The real model of tests/real_models: its file, what it is asked, and what is stored of it.

`scripts/make-goldens-real-models` writes the golden file, with llama.cpp and the numpy reference.
"""

import json
from pathlib import Path
from typing import TypedDict

from powerinfer.calibration.text import bundled_text

__all__ = [
    "CHATS",
    "FILE",
    "GOLDEN",
    "MAX_TOKENS",
    "PERPLEXITY_TEXT",
    "PROMPTS",
    "TEXTS",
    "WINDOW",
    "Golden",
    "GoldenText",
    "Messages",
    "read_golden",
]

Messages = list[dict[str, str]]

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "real_models" / "smollm2.json"

TEXTS = (
    "Hello, world! How are you today?",
    "Zürich, naïve café, 東京 🙂\u200d🔥 and ½ of it",
    "def f(x):\n    return x[1:2] ** 3  # 12345678\n\n\tend",
    "  don't   we'll THEY'RE\r\n\r\n 2024-11-26T15:04",
    "<|im_start|>user\nWrite <|endoftext|> and </s><|im_end|>\n",
)
"""Where tokenizers differ: Unicode, spaces, digits, special tokens."""

# Every next token of the answers is far likelier than any other: rounding, which differs between
# kernels, changes the words of other answers of so small a model.
CHATS = (
    "Count from 1 to 10.",
    "How many days are in a week?",
    "Repeat: one two three four five six seven eight nine ten",
)
PROMPTS = ("1, 2, 3, 4, 5, 6,", "The Fibonacci sequence begins 0, 1, 1, 2, 3, 5, 8,")
MAX_TOKENS = 32

PERPLEXITY_TEXT = bundled_text()
WINDOW = 512
"""Tokens; the second half of a window is scored."""


class GoldenText(TypedDict):
    """What llama.cpp and the reference write, greedy.

    Attributes:
        prompt_ids: of the prompt, or of the question in the chat template.
        token_ids: of the text, without the token that ends it.
        smallest_margin: between the largest two logits of the reference, over all steps.
    """

    prompt_ids: list[int]
    token_ids: list[int]
    text: str
    smallest_margin: float


class Golden(TypedDict):
    """The golden file.

    Attributes:
        texts: by prompt or question.
        perplexity: by engine: `reference` and `llama.cpp`.
        token_ids: of `TEXTS`, with special tokens read as such.
    """

    command: str
    llama_cpp_python: str
    system: str
    sha256: str
    token_ids: list[list[int]]
    texts: dict[str, GoldenText]
    perplexity: dict[str, float]


def read_golden() -> Golden:
    """The golden file of SmolLM2."""
    golden: Golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return golden
