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
    """A request to `/completion`.

    Attributes:
        prompts: token ids of each prompt.
        is_list: the answer is a list.
        params: sampling parameters of the client.
        computed: sampling parameters for the engine.
        num_top: number of alternatives to list for each token.
        after_filters: report the probabilities that the sampler draws from.
        with_prompt_probabilities: also report the probabilities of the prompt's tokens.
        reuses_prefix: may use keys and values of earlier requests.
        returns_tokens: also return token ids if the answer is not streamed.
        is_streamed: answer with events.
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
        """Build a request to the engine for each prompt."""
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
    """Read a body and tokenize its prompts, which is slow; unknown fields are ignored.

    Raises:
        ApiError: a field is missing, or has the wrong type or range, or a prompt is too long.
    """
    fields = Fields(body)
    fields.refuse("image_data", "lora", "input_prefix", "input_suffix")
    check_samplers(fields)
    params = read_params(fields, context)
    num_top = params.logprobs or 0
    after_filters = bool(num_top) and fields.switch("post_sampling_probs")
    computed = params
    if num_top and params.max_tokens == 0:
        # Clients request the probabilities of the next token this way.
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
