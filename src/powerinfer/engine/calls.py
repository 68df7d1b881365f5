"""Requests of one call: made, and computed to their ends side by side with those of others."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from powerinfer.engine.engine import Engine
from powerinfer.engine.request import PromptRows, Request, RequestHandle
from powerinfer.engine.text_stream import TextSoFar
from powerinfer.errors import PromptError
from powerinfer.loading.loader import LoadedModel
from powerinfer.prompts.prompts import Params, Prompt, read_jobs
from powerinfer.sampling.sampling_params import SamplingParams
from powerinfer.values import FloatArray

if TYPE_CHECKING:
    from powerinfer.prompts.texts import ContextAndContinuation

__all__ = [
    "have_other_contexts",
    "rows_of",
    "rows_request",
    "run_all",
    "scoring_request",
    "text_request",
    "text_requests",
]

# Queued texts of one call, as a multiple of those that run at once: some are ready when others end,
# and texts of other callers come between.
_WINDOW = 2

_Result = TypeVar("_Result")


class _Running:
    """A request, its place in the call, and its texts so far."""

    def __init__(self, place: int, handle: RequestHandle) -> None:
        self.place = place
        self.handle = handle
        self.texts = [TextSoFar(handle, index) for index in range(handle.request.params.n)]

    @property
    def is_over(self) -> bool:
        return all(text.is_over for text in self.texts)

    def take(self) -> None:
        """Take all unread outputs; raise the error of a text that ended without a result."""
        while self.handle.unread:
            output = self.handle.unread.popleft()
            text = self.texts[output.index]
            text.add(output)
            del output
            text.raise_error()


def run_all(
    engine: Engine,
    requests: Sequence[Request],
    result: Callable[[RequestHandle, list[TextSoFar]], _Result],
    may_overlap: Callable[[Request, Request], bool] = lambda _one, _other: True,
) -> list[_Result]:
    """Compute all texts of the requests, which are all checked before the first is computed.

    Args:
        requests: in the order in which they are queued.
        result: makes the result of a request from its handle and its `n` texts; nothing else of
            it is kept.
        may_overlap: tells whether two requests may run at the same time.

    Returns:
        The results, in order.

    Raises:
        PromptError: a request can never run.
        PowerInferError: the model was closed meanwhile.
        NumericsError: the model produced NaN or infinity; names the layer.
    """
    engine.check_usable()
    todo = deque(enumerate([engine.prepare(request) for request in requests]))
    most_texts = _WINDOW * engine.parallel
    running: list[_Running] = []
    results: dict[int, _Result] = {}
    try:
        while todo or running:
            while todo and _may_join(todo[0][1].request, running, may_overlap, most_texts):
                running.append(_Running(*todo.popleft()))
                engine.enter(running[-1].handle)
            _wait_for_any(engine, running)
            for each in running:
                each.take()
                if each.is_over:
                    results[each.place] = result(each.handle, each.texts)
                del each
            running = _unfinished(running)
    except BaseException:
        engine.abandon(each.handle for each in running)
        raise
    return [results[place] for place in range(len(requests))]


def _may_join(
    request: Request,
    running: Sequence[_Running],
    may_overlap: Callable[[Request, Request], bool],
    most_texts: int,
) -> bool:
    others = [each.handle.request for each in running]
    num_texts = sum(other.params.n for other in others)
    return num_texts < most_texts and all(may_overlap(request, other) for other in others)


def _wait_for_any(engine: Engine, running: Sequence[_Running]) -> None:
    engine.wait(lambda: any(each.handle.unread for each in running))


def _unfinished(running: Sequence[_Running]) -> list[_Running]:
    # A separate function for the same reason as `powerinfer.engine.queue._without`.
    return [each for each in running if not each.is_over]


def text_requests(
    loaded: LoadedModel, prompts: Prompt | Iterable[Prompt], params: Params
) -> list[Request]:
    """Make the requests that generate texts for each prompt.

    Raises:
        PromptError: a prompt or a parameter is not valid, or their numbers differ.
    """
    return [_text_request(loaded, *job) for job in read_jobs(loaded, prompts, params)]


def text_request(
    loaded: LoadedModel,
    prompt: Prompt,
    params: SamplingParams | None,
    is_prompt: Sequence[bool] | None = None,
) -> Request:
    """Make the request of one text.

    Raises:
        PromptError: as for `text_requests`, `n` is above 1, or `is_prompt` is not a list of bools.
    """
    ((token_ids, checked),) = read_jobs(loaded, [prompt], params)
    if checked.n != 1:
        raise PromptError(
            f"a stream or a chat is one text, got n = {checked.n}",
            remedy="leave {n} out, or use generate",
        )
    return _text_request(loaded, token_ids, checked, is_prompt)


def _text_request(
    loaded: LoadedModel,
    token_ids: list[int],
    params: SamplingParams,
    is_prompt: Sequence[bool] | None = None,
) -> Request:
    return Request(
        prompt_ids=token_ids,
        params=params,
        is_prompt=None if is_prompt is None else _checked_kinds(is_prompt),
        reuses_prefix=loaded.options.reuse_prefix,
    )


def _checked_kinds(is_prompt: Sequence[bool]) -> list[bool]:
    kinds = list(is_prompt) if isinstance(is_prompt, Iterable) else None
    if kinds is None or not all(kind in (False, True) for kind in kinds):
        raise PromptError(f"is_prompt must be one bool for each token, got {is_prompt!r}")
    return [bool(kind) for kind in kinds]


def rows_request(token_ids: list[int], kind: PromptRows, num_rows: int) -> Request:
    """Make the request for logits or hidden states of the last tokens of a prompt."""
    return Request(
        prompt_ids=token_ids,
        params=SamplingParams(max_tokens=0),
        prompt_rows=kind,
        num_rows=num_rows,
        reuses_prefix=False,
    )


def rows_of(handle: RequestHandle, _texts: object) -> FloatArray:
    """Return the rows of a computed prompt."""
    assert handle.prompt_rows is not None  # noqa: S101  for types: the request asks for them
    return handle.prompt_rows


def scoring_request(item: "ContextAndContinuation") -> Request:
    """Make the request that scores a continuation; its last token is never computed."""
    return Request(
        prompt_ids=(*item.context, *item.continuation[:-1]),
        params=SamplingParams(max_tokens=0),
        prompt_logprobs=1,
        scored_ids=item.continuation,
        # Other continuations of the same context go on there.
        snapshot_positions=(len(item.context) - 1,),
    )


def have_other_contexts(one: Request, other: Request) -> bool:
    """Tell whether two requests score continuations of different contexts."""
    contexts = [each.prompt_ids[: (each.first_wanted or 0) + 1] for each in (one, other)]
    return contexts[0] != contexts[1]
