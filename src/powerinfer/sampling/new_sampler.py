"""The sampler of one text, with what its sampling parameters need of the tokenizer."""

from collections.abc import Sequence

from powerinfer.sampling.sampler import Sampler
from powerinfer.sampling.sampling_params import SamplingParams
from powerinfer.tokenizer.tokenizer import Tokenizer

__all__ = ["new_sampler"]


def new_sampler(tokenizer: Tokenizer, params: SamplingParams, prompt_ids: Sequence[int]) -> Sampler:
    """Make a sampler.

    Args:
        tokenizer: of the model.
        params: sampling parameters.
        prompt_ids: what the text continues.

    Raises:
        PromptError: the text cannot be kept to the form that was asked for.
    """
    banned_ids = tokenizer.eog_ids if params.ignore_eos else ()
    if not params.has_form:
        return Sampler(params, banned_ids)
    # Imported here: few texts have a form.
    from powerinfer.sampling.grammar.constraint import Constraint

    begins_text = all(map(tokenizer.is_special, prompt_ids))
    return Sampler(params, banned_ids, Constraint(tokenizer, params, begins_text=begins_text))
