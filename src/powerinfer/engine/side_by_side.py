"""Several texts at once, to their ends."""

from collections import deque
from collections.abc import Mapping, Sequence

from powerinfer.engine.request import Request, Ticket
from powerinfer.engine.shared_engine import SharedEngine
from powerinfer.engine.text_stream import Generation, TextSoFar

__all__ = ["generate_all"]


def generate_all(
    shared: SharedEngine, requests: Sequence[Request], num_at_once: int
) -> list[Generation]:
    """Generate all texts of some requests, side by side with those of others.

    Args:
        shared: engine.
        requests: all are checked before the first is computed.
        num_at_once: texts that are lined up at the same time; those of others come between.

    Returns:
        `n` of each request, in order.

    Raises:
        PromptError: one can never run.
        PowerInferError: the model was closed meanwhile.
        NumericsError: the model produced NaN or infinity; names the layer.
    """
    shared.check_usable()
    tickets = [shared.ticket(request) for request in requests]
    texts = {
        ticket: [TextSoFar(ticket, index) for index in range(ticket.request.params.n)]
        for ticket in tickets
    }
    todo, running = deque(tickets), list[Ticket]()
    try:
        while todo or running:
            while todo and sum(each.request.params.n for each in running) < num_at_once:
                ticket = todo.popleft()
                running.append(ticket)
                shared.enter(ticket)
            _wait_for_any(shared, running)
            for ticket in running:
                _take(ticket, texts[ticket])
            running = _unfinished(running, texts)
    except BaseException:
        for ticket in tickets:
            ticket.is_cancelled = True
        raise
    return [text.generation for ticket in tickets for text in texts[ticket]]


def _wait_for_any(shared: SharedEngine, tickets: Sequence[Ticket]) -> None:
    shared.wait(lambda: any(ticket.unread for ticket in tickets))


def _unfinished(
    tickets: Sequence[Ticket], texts: Mapping[Ticket, Sequence[TextSoFar]]
) -> list[Ticket]:
    # A function of its own for the reason of `powerinfer.engine.queue._without`.
    return [each for each in tickets if not all(text.is_over for text in texts[each])]


def _take(ticket: Ticket, texts: Sequence[TextSoFar]) -> None:
    """Take what there is.

    Raises:
        PowerInferError: a text ended without a result.
    """
    while ticket.unread:
        output = ticket.unread.popleft()
        text = texts[output.index]
        text.add(output)
        del output
        text.raise_error()
