"""The requests of one call, computed to their ends and side by side with those of other callers."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from powerinfer.engine.engine import Engine
from powerinfer.engine.request import Request, RequestHandle
from powerinfer.engine.text_stream import TextSoFar

__all__ = ["run_all"]

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
        """Take all unread outputs.

        Raises:
            PowerInferError: a text ended without a result.
        """
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
    may_overlap: Callable[[Request, Request], bool],
    most_texts: int,
) -> list[_Result]:
    """Compute all texts of the requests, which are all checked before the first is computed.

    Args:
        engine: computes them.
        requests: in the order in which they are queued.
        result: makes the result of a request from its handle and its `n` texts; nothing else of
            it is kept.
        may_overlap: tells whether two requests may run at the same time.
        most_texts: most texts that are queued at once, unless one request has more.

    Returns:
        The results, in order.

    Raises:
        PromptError: a request can never run.
        PowerInferError: the model was closed meanwhile.
        NumericsError: the model produced NaN or infinity; names the layer.
    """
    engine.check_usable()
    todo = deque(enumerate([engine.prepare(request) for request in requests]))
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
            running = _unfinished(running)
    except BaseException:
        for each in running:
            each.handle.is_cancelled = True
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
