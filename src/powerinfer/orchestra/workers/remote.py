"""A model at an OpenAI-style address."""

import json
import os
from collections.abc import Mapping
from typing import Any, cast

from powerinfer._extras import how_to_install
from powerinfer.errors import UnsupportedError
from powerinfer.orchestra.pool import PoolError, WorkerEntry
from powerinfer.orchestra.workers.worker import Answer, Question, WorkerError

__all__ = ["RemoteWorker"]

_LONGEST_REASON = 200
_LARGEST_BODY = 8 << 20
_HIDDEN = "[key]"


class RemoteWorker:
    """Asks `/chat/completions` below an address. Its key appears in no text and no error."""

    def __init__(self, entry: WorkerEntry, transport: Any = None) -> None:
        """Read the key from the environment.

        Args:
            entry: with `base_url`.
            transport: httpx's, in place of the network, for tests.

        Raises:
            PoolError: the environment variable of the key is not set, or base_url is no address.
            UnsupportedError: httpx is not installed.
        """
        try:
            import httpx
        except ImportError:
            raise UnsupportedError(
                f"worker {entry.name} has a base_url, which needs httpx",
                remedy=how_to_install("orchestra"),
            ) from None
        self._entry = entry
        self._key = _key(entry)
        self._failures = httpx.HTTPError, httpx.InvalidURL
        headers = {"authorization": f"Bearer {self._key}"} if self._key else {}
        try:
            self._client = httpx.AsyncClient(
                base_url=(entry.base_url or "").rstrip("/") + "/",
                headers=headers,
                timeout=httpx.Timeout(entry.timeout_s),
                transport=transport,
                # Redirects could carry data and key to another host.
                follow_redirects=False,
            )
        except httpx.InvalidURL as error:
            raise PoolError(f"worker {entry.name}: base_url is not an address: {error}") from None

    async def answer(self, question: Question) -> Answer:
        """Answer a question.

        Raises:
            WorkerError: the address cannot be reached, or answers with an error or with nonsense.
        """
        try:
            body = await self._post(_body(self._entry, question))
            return self._read(body)
        except self._failures as error:
            raise self._error(f"{type(error).__name__} {error}".strip()) from None
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            raise self._error("its answer is not that of a chat completion") from None

    async def aclose(self) -> None:
        """Close connections."""
        await self._client.aclose()

    async def _post(self, body: Mapping[str, object]) -> bytes:
        async with self._client.stream("POST", "chat/completions", json=body) as response:
            received = bytearray()
            async for part in response.aiter_bytes():
                received += part
                if len(received) > _LARGEST_BODY:
                    raise self._error(f"its answer is larger than {_LARGEST_BODY >> 20} MiB")
            if response.status_code != 200:
                reason = received.decode("utf-8", "replace")
                raise self._error(f"status {response.status_code}: {reason}")
            return bytes(received)

    def _read(self, body: bytes) -> Answer:
        read = json.loads(body)
        choice = read["choices"][0]
        text = choice["message"]["content"]
        if not isinstance(text, str):
            raise TypeError
        usage = read.get("usage") or {}
        return Answer(
            text=self._without_key(text),
            prompt_tokens=int(usage.get("prompt_tokens") or 0),
            tokens=int(usage.get("completion_tokens") or 0),
            is_cut=choice.get("finish_reason") == "length",
        )

    def _error(self, reason: str) -> WorkerError:
        line = " ".join(self._without_key(reason).split())
        shown = "".join(each for each in line if each.isprintable())
        return WorkerError(f"worker {self._entry.name}: {shown[:_LONGEST_REASON]}")

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, _HIDDEN) if self._key else text


def _key(entry: WorkerEntry) -> str:
    if entry.api_key_env is None:
        return ""
    key = os.environ.get(entry.api_key_env, "").strip()
    if not key or not key.isascii() or not key.isprintable():
        raise PoolError(
            f"worker {entry.name}: the environment variable {entry.api_key_env} holds no key"
        )
    return key


def _body(entry: WorkerEntry, question: Question) -> dict[str, object]:
    body: dict[str, object] = {
        "model": entry.model,
        "messages": [dict(each) for each in question.messages],
        "max_tokens": question.max_tokens,
        "temperature": question.temperature,
    }
    if question.seed is not None:
        body["seed"] = question.seed
    if question.json_schema is not None:
        schema = cast("object", dict(question.json_schema))
        form = {"name": "answer", "schema": schema}
        body["response_format"] = {"type": "json_schema", "json_schema": form}
    return body
