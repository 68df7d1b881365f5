"""Bits per byte of held-out stories, and how many FFN neurons stay inactive on them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  (torch's own convention)

from recipes.stories.corpus import BOS_ID
from recipes.stories.story_model import StoryModel

_BATCH = 16


@dataclass(frozen=True)
class Score:
    """What :func:`score_stories` measured.

    Attributes:
        bits_per_byte: Total code length of the stories in bits over their UTF-8 bytes.
        stories: Stories scored.
        tokens: Tokens predicted.
        inactive: Share of exactly zero FFN neurons per layer, over the stories' tokens and BOS.
    """

    bits_per_byte: float
    stories: int
    tokens: int
    inactive: list[float]


class _NeuronCount:
    def __init__(self, num_layers: int) -> None:
        self.zero = [0] * num_layers
        self.total = [0] * num_layers
        self.valid = torch.empty(0, dtype=torch.bool)

    def __call__(self, layer: int, neurons: Tensor) -> None:
        kept = neurons[self.valid]
        self.zero[layer] += int((kept == 0).sum())
        self.total[layer] += kept.numel()

    def shares(self) -> list[float]:
        return [zero / max(1, total) for zero, total in zip(self.zero, self.total, strict=True)]


def _padded(stories: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    longest = max(len(story) for story in stories)
    inputs = torch.full((len(stories), longest + 1), BOS_ID)
    targets = torch.full((len(stories), longest + 1), -100)
    for row, story in enumerate(stories):
        inputs[row, 1 : len(story) + 1] = torch.tensor(story)
        targets[row, : len(story)] = torch.tensor(story)
    return inputs, targets


def score_stories(
    model: StoryModel, stories: Sequence[Sequence[int]], num_bytes: Sequence[int]
) -> Score:
    """Score stories one by one, each after BOS and without an end token.

    Args:
        model: The model; it is left in evaluation mode.
        stories: Token ids of each story, without BOS; BOS and story must fit the context.
        num_bytes: UTF-8 bytes of each story.

    Returns:
        The score over all stories together: the sum of the negative log2 probabilities of all story
        tokens, divided by the sum of the stories' bytes.
    """
    model.eval()
    count = _NeuronCount(model.config.num_layers)
    model.observer = count
    nats = 0.0
    order = sorted(range(len(stories)), key=lambda i: len(stories[i]))
    for start in range(0, len(order), _BATCH):
        inputs, targets = _padded([stories[i] for i in order[start : start + _BATCH]])
        ends = (targets != -100).sum(1, keepdim=True)
        count.valid = torch.arange(inputs.shape[1]) <= ends
        with torch.no_grad():
            logits = model(inputs).float()
        nats += float(F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum"))
    model.observer = None
    return Score(
        bits_per_byte=nats / math.log(2) / sum(num_bytes),
        stories=len(stories),
        tokens=sum(len(story) for story in stories),
        inactive=count.shares(),
    )
