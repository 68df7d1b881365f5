"""The body of `/completion`, read and checked."""

from dataclasses import dataclass, replace

from powerinfer.engine.request import Request
from powerinfer.sampling.sampling_params import SamplingParams
from powerinfer.serve.context import ServerContext
from powerinfer.serve.fields import Fields
from powerinfer.serve.llamacpp.prompts import read_prompts
from powerinfer.serve.llamacpp.sampling import check_samplers, read_params
from powerinfer.values import JSONObject

__all__ = ["NativeRequest", "read_native"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeRequest:
    """What is asked, and how it is to be answered.

    Attributes:
        prompts: token ids of each.
        is_list: a list of prompts was given, so that the answer is one.
        params: of sampling, as asked for.
        computed: of sampling, as computed.
        num_top: how many of the likeliest tokens to list in each place.
        after_filters: of the probabilities that the sampler draws from.
        with_prompt_probabilities: of the prompt's tokens, too.
        reuses_prefix: keys and values of earlier requests may be used.
        returns_tokens: the ids of an answer are told, not in a stream alone.
        is_streamed: as events.
    """

    prompts: list[list[int]]
    is_list: bool
    params: SamplingParams
    computed: SamplingParams
    num_top: int
    after_filters: bool
    with_prompt_probabilities: bool
    reuses_prefix: bool
    returns_tokens: bool
    is_streamed: bool

    def requests(self, context: ServerContext) -> list[Request]:
        """One for each prompt."""
        return [
            Request(
                prompt_ids=prompt,
                params=self.computed,
                prompt_logprobs=self.num_top if self.with_prompt_probabilities else None,
                reuses_prefix=self.reuses_prefix,
                shares_answers=context.settings.reuses_answers,
            )
            for prompt in self.prompts
        ]


def read_native(body: JSONObject, context: ServerContext) -> NativeRequest:
    """Read a body and tokenize its prompts, which takes long; what is unknown is ignored.

    Raises:
        ApiError: a field is missing, has another type or another range, or a prompt is too long.
    """
    fields = Fields(body)
    fields.refuse("image_data", "lora", "input_prefix", "input_suffix")
    check_samplers(fields)
    params = read_params(fields, context)
    num_top = params.logprobs or 0
    after_filters = bool(num_top) and fields.switch("post_sampling_probs")
    computed = params
    if num_top and params.max_tokens == 0:
        # Clients ask so for the probabilities of the token that would come.
        computed = replace(computed, max_tokens=1)
    if after_filters:
        kept = params.top_k or context.tokenizer.vocab_size
        computed = replace(computed, logprobs=max(num_top, kept))
    prompts, is_list = read_prompts(fields, context)
    return NativeRequest(
        prompts=prompts,
        is_list=is_list or params.n > 1,
        params=params,
        computed=computed,
        num_top=num_top,
        after_filters=after_filters,
        with_prompt_probabilities=bool(num_top) and fields.switch("prompt_logprobs"),
        reuses_prefix=fields.switch("cache_prompt", default=True),
        returns_tokens=fields.switch("return_tokens"),
        is_streamed=fields.switch("stream"),
    )
