"""Request bodies: one JSON object each, read within limits of size, depth and time."""

import asyncio
import json
import math
import re
from collections.abc import Sequence
from typing import NoReturn

from fastapi import Request

from powerinfer.serve.context import ServerContext
from powerinfer.serve.errors import ApiError, bad_request
from powerinfer.values import JSON, JSONObject

__all__ = ["parse_object", "read_object"]

MAX_DEPTH = 64
# Parsing larger bodies would hold up other requests noticeably.
_PARSED_AT_ONCE = 1 << 16
# Python parses longer ones only on request, as the time is quadratic.
_MOST_DIGITS = 4300
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


async def read_object(request: Request, context: ServerContext) -> JSONObject:
    """Read a request's body.

    Raises:
        ApiError: it is too large, arrives too late or is not a valid JSON object.
    """
    body = await _read(request, context)
    if len(body) <= _PARSED_AT_ONCE:
        return parse_object(body)
    return await context.run_blocking(parse_object, body)


def parse_object(body: bytes) -> JSONObject:
    """Parse a JSON object, more strictly than Python: anything that parsers disagree on is refused.

    Raises:
        ApiError: 400, with the reason.
    """
    try:
        value: JSON = _DECODER.decode(body.decode("utf-8-sig"))
        if _SURROGATE.search(body):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise _not_json(f"byte {error.start} is not UTF-8") from None
    except UnicodeEncodeError:
        raise _not_json("it has half of a surrogate pair") from None
    except RecursionError:
        raise _too_deep() from None
    except json.JSONDecodeError as error:
        raise _not_json(f"{error.msg} in line {error.lineno} column {error.colno}") from None
    except ValueError as error:
        raise _not_json(str(error)[:200]) from None
    if not isinstance(value, dict):
        raise bad_request("the body must be a JSON object")
    _check_depth(value)
    return value


async def _read(request: Request, context: ServerContext) -> bytes:
    limit = context.settings.max_body_bytes
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > limit:
        raise _too_large(limit)
    body = bytearray()
    try:
        async with asyncio.timeout(context.settings.read_timeout_s):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit:
                    raise _too_large(limit)
    except TimeoutError:
        message = f"the body did not arrive within {context.settings.read_timeout_s:g} s"
        raise ApiError(message, status=408, code="timeout") from None
    return bytes(body)


def _check_depth(value: JSONObject) -> None:
    """Check the nesting without recursion, which deep values would exhaust."""
    level: list[JSONObject | list[JSON]] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for each in level
            for item in (each.values() if isinstance(each, dict) else each)
            if isinstance(item, dict | list)
        ]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> ApiError:
    return _not_json(f"it is nested more than {MAX_DEPTH} levels deep")


def _too_large(limit: int) -> ApiError:
    message = f"the body is larger than {limit} bytes"
    return ApiError(message, status=413, code="request_too_large")


def _not_json(reason: str) -> ApiError:
    return bad_request(f"the body is not valid JSON: {reason}", code="invalid_json")


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:20]} is too large")
    return number


def _whole_number(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"a number has {len(text)} digits")
    return int(text)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def _unique(pairs: Sequence[tuple[str, JSON]]) -> JSONObject:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {twice[:60]!r} stands twice in an object")
    return values


_DECODER = json.JSONDecoder(
    parse_float=_number,
    parse_int=_whole_number,
    parse_constant=_no_number,
    object_pairs_hook=_unique,
)
