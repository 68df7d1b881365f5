"""Answers the requests of a file concurrently, through the routes of a server without a port."""

import asyncio
import itertools
import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing

from starlette.types import ASGIApp

from powerinfer.loading.loader import Progress
from powerinfer.serve.app import build_app
from powerinfer.serve.batch.answers import AnswerFile
from powerinfer.serve.batch.requests import BatchRequest
from powerinfer.serve.context import ServerContext
from powerinfer.serve.in_process import RequestHead, call_app
from powerinfer.serve.served_model import ServedModel
from powerinfer.serve.settings import ServerSettings

__all__ = ["run_batch"]

# Some requests wait, so that a free place is filled at once.
_OPEN_PER_PLACE = 2


def run_batch(
    requests: Sequence[BatchRequest],
    answers: AnswerFile,
    settings: ServerSettings,
    load: Callable[[], ServedModel],
    progress: Progress,
) -> None:
    """Answer the requests that have no answer yet; answers are written as they arrive.

    Args:
        answers: opened file; requests that it answers are skipped.
        load: loads the model; not called if nothing is left to compute.
        progress: called with (answered, total), earlier answers included.

    Raises:
        PowerInferError: the model cannot be loaded, or an answer cannot be written.
    """
    for request in requests:
        if request.error is not None and not answers.has(request):
            answers.add_error(request, request.error)
    missing = [request for request in requests if not answers.has(request)]
    if missing:
        served = load()
        done = itertools.count(len(requests) - len(missing))

        def report() -> None:
            progress(next(done), len(requests))

        report()
        asyncio.run(_answer_all(missing, answers, settings, served, report))


async def _answer_all(
    requests: Sequence[BatchRequest],
    answers: AnswerFile,
    settings: ServerSettings,
    served: ServedModel,
    report: Callable[[], None],
) -> None:
    context = ServerContext(settings)
    app = build_app(context)
    waiting = iter(requests)
    context.start(served)
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(_OPEN_PER_PLACE * settings.parallel, len(requests))):
                group.create_task(_answer_some(app, waiting, answers, report))
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    finally:
        context.close()


async def _answer_some(
    app: ASGIApp, waiting: Iterator[BatchRequest], answers: AnswerFile, report: Callable[[], None]
) -> None:
    """Answer requests one after the other; several of these coroutines share `waiting`."""
    for request in waiting:
        status, content = await _post(app, request)
        answers.add(request, status, f"req_{uuid.uuid4().hex}", json.loads(content))
        report()


async def _post(app: ASGIApp, request: BatchRequest) -> tuple[int, bytes]:
    """Send a request to its route; returns status and body."""
    headers = ((b"host", b"127.0.0.1"), (b"content-type", b"application/json"))
    status, content = 500, bytearray()
    head = RequestHead("POST", request.url, headers=headers)
    async with aclosing(call_app(app, head, request.body)) as messages:
        async for message in messages:
            status = message.get("status", status)
            content.extend(message.get("body", b""))
    return status, bytes(content)
