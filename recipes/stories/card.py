"""The model card: what the finished model was measured to do, and the text around the figures."""

import platform
from dataclasses import dataclass
from pathlib import Path

import torch

from recipes.stories.corpus import read_documents, text_path
from recipes.stories.evaluate import Score, score_stories
from recipes.stories.sample import sample_story
from recipes.stories.training_run import TrainingRun
from recipes.stories.vocabulary import encode_documents

__all__ = ["CARD_STORY_BYTES", "Figures", "measure", "write_card"]

CARD_STORY_BYTES = 900
"""Longest story scored: stories260K, the yardstick, holds every one of these in its 512 tokens."""

STORIES260K_BITS_PER_BYTE = 0.8650
"""Of ``stories260K-f32.gguf`` on the same stories by the same rule, with its own vocabulary."""

_OPENINGS = (
    "",
    "",
    "",
    "",
    "",
    "Once upon a time there was a little mouse who",
    "Tom and his sister were playing in the garden when",
    "The old king had three sons.",
    "One rainy day, Anna found a small box under her bed.",
    '"Please help me," said the frog.',
)
_TEMPLATE = Path(__file__).with_name("card.md")


@dataclass(frozen=True)
class Figures:
    """What the card states beyond the recipe.

    Attributes:
        score: bits per byte and sparsity on the validation stories.
        samples: ten stories, unedited.
    """

    score: Score
    samples: list[str]


def measure(run: TrainingRun, data: Path, max_tokens: int = 300) -> Figures:
    """Score the finished model on the whole validation stories and draw the samples."""
    stories = [
        story
        for story in read_documents(text_path(data, "tinystories", "valid"))
        if len(story.encode()) <= CARD_STORY_BYTES
    ]
    encoded = encode_documents(run.tokenizer, stories)
    score = score_stories(run.model, encoded, [len(story.encode()) for story in stories])
    samples = [
        sample_story(run.model, run.tokenizer, opening, seed, max_tokens)
        for seed, opening in enumerate(_OPENINGS, start=1)
    ]
    return Figures(score, samples)


def write_card(path: Path, run: TrainingRun, figures: Figures) -> None:
    """Write the model card in Markdown."""
    recipe, score = run.recipe, figures.score
    layers = (f"| {layer} | {share:.1%} |" for layer, share in enumerate(score.inactive))
    samples = (f"{number}.\n\n{_quoted(text)}" for number, text in enumerate(figures.samples, 1))
    values = {
        "parameters": f"{sum(p.numel() for p in run.model.parameters()) / 1e6:.2f}",
        "steps": str(recipe.steps),
        "tokens": f"{recipe.steps * recipe.step_tokens / 1e6:.1f}",
        "minutes": f"{run.seconds / 60:.0f}",
        "threads": str(torch.get_num_threads()),
        "machine": platform.machine(),
        "bits_per_byte": f"{score.bits_per_byte:.4f}",
        "yardstick": f"{STORIES260K_BITS_PER_BYTE:.4f}",
        "stories": str(score.stories),
        "story_tokens": str(score.tokens),
        "story_bytes": str(CARD_STORY_BYTES),
        "inactive": f"{sum(score.inactive) / len(score.inactive):.1%}",
        "layers": "\n".join(layers),
        "samples": "\n\n".join(samples),
    }
    text = _TEMPLATE.read_text(encoding="utf-8")
    for name, value in values.items():
        text = text.replace("{{" + name + "}}", value)
    path.write_text(text, encoding="utf-8")


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.split("\n"))
