"""Plain sampling from a story model in torch, for the samples on its model card."""

from collections.abc import Sequence

import torch
from tokenizers import Tokenizer

from recipes.stories.corpus import BOS_ID
from recipes.stories.story_model import StoryModel

__all__ = ["sample_story"]

_TEMPERATURE, _TOP_P = 0.8, 0.95


def sample_story(
    model: StoryModel, tokenizer: Tokenizer, opening: str, seed: int, max_tokens: int = 300
) -> str:
    """Continue ``opening`` until the model ends the story; temperature 0.8, top-p 0.95.

    Args:
        model: the model; it is left in evaluation mode.
        tokenizer: its vocabulary.
        opening: first words of the story, or nothing.
        seed: decides the draws.
        max_tokens: longest continuation.

    Returns:
        Opening and continuation.
    """
    model.eval()
    generator = torch.Generator().manual_seed(seed)
    token_ids = [BOS_ID, *tokenizer.encode(opening).ids]
    for _ in range(min(max_tokens, model.config.context_length - len(token_ids))):
        with torch.no_grad():
            logits = model(torch.tensor([token_ids]))[0, -1].float()
        chosen = _draw(logits, generator)
        if chosen == BOS_ID:
            break
        token_ids.append(chosen)
    return _text(tokenizer, token_ids[1:])


def _draw(logits: torch.Tensor, generator: torch.Generator) -> int:
    shares, order = torch.softmax(logits / _TEMPERATURE, -1).sort(descending=True)
    kept = shares.cumsum(-1) - shares < _TOP_P  # at least one, up to and with the one crossing it
    return int(order[torch.multinomial(shares * kept, 1, generator=generator)])


def _text(tokenizer: Tokenizer, token_ids: Sequence[int]) -> str:
    text: str = tokenizer.decode(list(token_ids))
    return text
