"""Texts of an engine, and the same texts computed one by one, token by token, without any of it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from powerinfer import LLM
from powerinfer.engine.direct import DirectSequence
from powerinfer.engine.engine import Engine
from powerinfer.engine.policy import Policy, PolicyState, StepPlan
from powerinfer.engine.request import Output, Request, RequestHandle
from powerinfer.loading.loader import LoadedModel
from powerinfer.sampling.logprobs import TokenLogprob, token_logprob
from powerinfer.sampling.sampler import Sampler

__all__ = ["WholeText", "all_alone", "alone", "new_engine", "new_sequence", "run", "text_of"]


@dataclass(frozen=True)
class WholeText:
    """Everything about a text that must not depend on who shares the steps."""

    token_ids: list[int]
    text: str
    finish_reason: str | None
    stop: str | None
    logprobs: list[TokenLogprob]


class _SlicingPolicy(Policy):
    """Has a prompt pause after every layer: tiny models are too fast for that."""

    def plan(self, state: PolicyState) -> StepPlan:
        return replace(super().plan(state), num_slices=1)


def new_engine(
    llm: LLM,
    max_unread: int | None = None,
    *,
    is_slicing: bool = False,
    **options: int | bool | None,
) -> Engine:
    """An engine on the weights of `llm`; `is_slicing`: with prompts that pause at every layer."""
    loaded = llm.loaded
    changed = replace(loaded.options, **options)  # type: ignore[arg-type]
    engine = Engine(replace(loaded, options=changed), max_unread=max_unread)
    if is_slicing:
        engine._policy = _SlicingPolicy()
    return engine


def new_sequence(loaded: LoadedModel) -> DirectSequence:
    """A sequence with a KV cache of its own, or the placement's if it is free."""
    return DirectSequence(loaded.model, loaded.new_cache(), loaded.options.batch_size)


def run(
    engine: Engine,
    handles: Sequence[RequestHandle],
    after_step: Callable[[int], object] = lambda _: None,
) -> dict[tuple[RequestHandle, int], list[Output]]:
    """All outputs of some requests by (handle, number of the text), and that no block is lost."""
    outputs: dict[tuple[RequestHandle, int], list[Output]] = {}
    number = 0
    while engine.has_work:
        for handle, output in engine.step():
            outputs.setdefault((handle, output.index), []).append(output)
        after_step(number)
        number += 1
        assert number < 10_000
    engine.check_integrity()
    assert all(handle.is_over for handle in handles)
    return outputs


def text_of(outputs: Iterable[Output]) -> WholeText:
    """What the outputs of one text say together."""
    listed = list(outputs)
    assert [each.is_last for each in listed] == [False] * (len(listed) - 1) + [True]
    assert listed[-1].error is None, listed[-1].error
    return WholeText(
        [token_id for each in listed for token_id in each.token_ids],
        "".join(each.text for each in listed),
        listed[-1].finish_reason,
        listed[-1].stop,
        [logprob for each in listed for logprob in each.logprobs],
    )


def all_alone(loaded: LoadedModel, request: Request) -> list[WholeText]:
    """Each text of a request by itself."""
    return [alone(loaded, request, index) for index in range(request.params.n)]


def alone(loaded: LoadedModel, request: Request, index: int = 0) -> WholeText:
    """One text, from a sequence of its own: the last token's logits, a draw, the next token."""
    params, tokenizer = request.params, loaded.tokenizer
    assert params.seed is not None
    sampler = Sampler(
        replace(params, seed=params.seed + index),
        tokenizer.eog_ids if params.ignore_eos else (),
    )
    sequence, ids = new_sequence(loaded), list(request.prompt_ids)
    logits = sequence.extend(ids, is_prompt=request.is_prompt).copy()
    made: list[int] = []
    logprobs: list[TokenLogprob] = []
    while params.max_tokens is None or len(made) < params.max_tokens:
        chosen = sampler.sample(logits, ids + made)
        if chosen in tokenizer.eog_ids:
            return _whole(loaded, request, made, logprobs, "stop")
        if params.logprobs is not None:
            logprobs.append(token_logprob(logits, chosen, params.logprobs, tokenizer.piece))
        made.append(chosen)
        found = _whole(loaded, request, made, logprobs, "length")
        if found.stop is not None or not sequence.num_free:
            return found
        logits = np.array(sequence.append(chosen))
    return _whole(loaded, request, made, logprobs, "length")


def _whole(
    loaded: LoadedModel,
    request: Request,
    made: list[int],
    logprobs: list[TokenLogprob],
    reason: str,
) -> WholeText:
    decoder = loaded.tokenizer.new_stream(request.prompt_ids)
    text = "".join(map(decoder.push, made)) + (decoder.finish() if reason == "stop" else "")
    # The first that is complete wins, among those the longest.
    stops = [(text.find(stop) + len(stop), text.find(stop), stop) for stop in request.params.stop]
    found = min((each for each in stops if each[1] >= 0), default=None)
    if found is not None:
        return WholeText(list(made), text[: found[1]], "stop", found[2], list(logprobs))
    return WholeText(list(made), text, reason, None, list(logprobs))
