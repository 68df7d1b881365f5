"""The body of `/completion`, read and checked."""

from dataclasses import dataclass, replace

from powerinfer.engine.request import Request
from powerinfer.errors import PowerInferError
from powerinfer.prompts.long_prompts import encode_prompt, too_long
from powerinfer.prompts.prompts import bos_alone, read_ids
from powerinfer.sampling.sampling_params import SamplingParams
from powerinfer.serve.errors import from_engine
from powerinfer.serve.fields import Fields
from powerinfer.serve.llamacpp.sampling import check_samplers, read_params
from powerinfer.serve.served_model import ModelContext
from powerinfer.values import JSON, JSONObject

__all__ = ["NativeRequest", "read_native", "read_prompts"]

MAX_PROMPTS = 2048
_WANTED = "a text, a list of token ids and texts, or a list of them"


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeRequest:
    """A request to `/completion`.

    Attributes:
        is_list: the answer is a list.
        computed: sampling parameters for the engine.
        num_top: number of alternatives to list for each token.
        after_filters: report the probabilities that the sampler draws from.
        with_prompt_probabilities: also report the probabilities of the prompt's tokens.
        reuses_prefix: may use keys and values of earlier requests.
        returns_tokens: also return token ids if the answer is not streamed.
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

    def requests(self, context: ModelContext) -> list[Request]:
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


def read_native(body: JSONObject, context: ModelContext) -> NativeRequest:
    """Read a body and tokenize its prompts, which is slow; unknown fields are ignored."""
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


def read_prompts(fields: Fields, context: ModelContext) -> tuple[list[list[int]], bool]:
    """Read the token ids of each prompt, and whether the request has a list of prompts."""
    value = fields.required("prompt")
    if not isinstance(value, list) or not _holds_prompts(value):
        return [_prompt(value, fields, context)], False
    if len(value) > MAX_PROMPTS:
        raise fields.error("prompt", f"at most {MAX_PROMPTS} prompts", "array_above_max_length")
    return [_prompt(each, fields, context) for each in value], True


def _holds_prompts(value: list[JSON]) -> bool:
    """Return whether a list holds prompts; texts among token ids are parts of one prompt."""
    return bool(value) and all(isinstance(each, str | list | dict) for each in value)


def _prompt(value: JSON, fields: Fields, context: ModelContext) -> list[int]:
    if isinstance(value, dict):
        if value.get("multimodal_data"):
            raise fields.error("prompt", "text: this model reads nothing else")
        value = value.get("prompt_string")
    if not isinstance(value, str | list):
        raise fields.error("prompt", _WANTED)
    parts = value if isinstance(value, list) else [value]
    longest = context.model.context_length
    token_ids: list[int] = []
    try:
        for index, part in enumerate(parts):
            token_ids += _part_ids(part, context, add_bos=None if index == 0 else False)
            if len(token_ids) > longest:
                raise too_long(f"more than {longest}", longest)
    except PowerInferError as error:
        raise from_engine(error, fields.path("prompt")) from None
    except TypeError:
        raise fields.error("prompt", _WANTED) from None
    if not token_ids and value == "":
        token_ids = bos_alone(context.tokenizer)
    if not token_ids:
        raise fields.fault("prompt", " is empty")
    return token_ids


def _part_ids(part: JSON, context: ModelContext, *, add_bos: bool | None) -> list[int]:
    tokenizer = context.tokenizer
    if isinstance(part, str):
        return encode_prompt(tokenizer, part, context.model.context_length, add_bos=add_bos)
    if isinstance(part, bool) or not isinstance(part, int):
        raise TypeError
    return read_ids([part], tokenizer.vocab_size)
