"""The screened head of a model that is being loaded."""

from dataclasses import replace

import numpy as np

from powerinfer.calibration.text import bundled_text
from powerinfer.kvcache.state_slots import SLOTS_PER_SEQUENCE
from powerinfer.models import Model
from powerinfer.models.tensors.screened_head import ScreenedHead, check_screenable
from powerinfer.tokenizer import Tokenizer

__all__ = ["with_screened_head"]

# As many tell large inputs from small ones as well as 512 do; the copy's use, not its correctness,
# depends on it.
_NUM_TOKENS = 64
_NUM_LETTERS = 2048


def with_screened_head(model: Model, tokenizer: Tokenizer) -> Model:
    """Copy the output head, for which a few tokens of text show its inputs.

    Raises:
        UnsupportedError: the head cannot be screened, or a copy is no smaller.
        NumericsError: weights of the head are not finite.
    """
    check_screenable(model.ops, model.weights.output, model.config.scales)
    ids = tokenizer.encode(bundled_text()[:_NUM_LETTERS], add_bos=tokenizer.add_bos)
    ids = ids[: min(_NUM_TOKENS, model.context_length)]
    cache = model.new_cache(len(ids), num_slots=SLOTS_PER_SEQUENCE)
    batch = cache.batch([(0, np.array(ids, np.int32), 0)], [True])
    states = model.hidden_states(batch, cache)
    return replace(model, screened_head=ScreenedHead.of(model.ops, model.weights.output, states))
