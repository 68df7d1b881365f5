"""Construction of the sampler of one text."""

from collections.abc import Sequence

from powerinfer.sampling.sampler import Sampler
from powerinfer.sampling.sampling_params import SamplingParams
from powerinfer.tokenizer.tokenizer import Tokenizer

__all__ = ["new_sampler"]


def new_sampler(tokenizer: Tokenizer, params: SamplingParams, prompt_ids: Sequence[int]) -> Sampler:
    """Make the sampler of a text that continues a prompt.

    Raises:
        PromptError: the requested form cannot be enforced.
    """
    banned_ids = tokenizer.eog_ids if params.ignore_eos else ()
    if not params.has_form:
        return Sampler(params, banned_ids)
    # Imported here: few texts have a form.
    from powerinfer.sampling.grammar.constraint import Constraint

    begins_text = all(map(tokenizer.is_special, prompt_ids))
    return Sampler(params, banned_ids, Constraint(tokenizer, params, begins_text=begins_text))
