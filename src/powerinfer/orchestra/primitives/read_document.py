"""Primitive `read_document`: an allowed document, or its parts that a question is about."""

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path

from powerinfer.orchestra.primitives._files import find_allowed, read_text
from powerinfer.orchestra.primitives._passages import best_passages
from powerinfer.orchestra.primitives._structured import encodable
from powerinfer.orchestra.primitives.primitive import (
    Call,
    Observation,
    Primitive,
    PrimitiveError,
)

__all__ = ["PRIMITIVE"]

_LONGEST = 8_000
_FORM = re.compile(
    r"[`'\"]?(?P<name>[^`'\"\n:?]{1,400}?)[`'\"]?(?:\s*[:?\n]\s*(?P<question>.*))?", re.DOTALL
)


async def _run(call: Call) -> Observation:
    return await asyncio.to_thread(_observe, call.query.strip()[:4_000], call.permissions.documents)


def _observe(query: str, documents: Sequence[Path]) -> Observation:
    path, below, question = _request(query, documents)
    found = best_passages(read_text(path, below), question, _LONGEST)
    text = encodable(found.strip("\n"))
    return Observation(text or "[the document is empty]", untrusted=True)


def _request(query: str, documents: Sequence[Path]) -> tuple[Path, tuple[str, ...], str]:
    """Divide `NAME` or `NAME: QUESTION`; in a sentence, find the name of an allowed file."""
    try:
        form = _FORM.fullmatch(query)
        if form is None:
            raise PrimitiveError("expected 'NAME' or 'NAME: QUESTION' of an allowed document")
        return *find_allowed(form["name"].strip(), documents, "document"), form["question"] or ""
    except PrimitiveError:
        named = [path for path in documents if path.name in query and not path.is_dir()]
        if not named:
            raise
        return max(named, key=lambda path: len(path.name)), (), query


PRIMITIVE = Primitive(
    name="read_document",
    summary="text of a document that is allowed: 'NAME', or 'NAME: QUESTION' for what bears on it",
    needs_model=False,
    leaves_machine=False,
    run=_run,
)
