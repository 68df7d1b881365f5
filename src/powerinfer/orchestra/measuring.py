"""Measures what the workers of a pool cost, and writes it into the pool's file."""

import re
import time
import tomllib
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path

from powerinfer._replacing import replacing
from powerinfer.orchestra.pool import Cost, PoolError, WorkerEntry
from powerinfer.orchestra.workers.worker import Question, Worker

__all__ = ["joules", "measure_worker", "with_costs", "write_costs"]

_PROMPT = "Here is a list of words: " + "apple pear plum cherry lemon melon fig grape " * 24
_TOKENS = 32
_ENERGY = Path("/sys/class/powercap")

_WORKER = re.compile(r"^\s*\[\[\s*worker\s*\]\]", re.MULTILINE)
_TABLE = re.compile(r"^\s*\[", re.MULTILINE)
_COST = re.compile(r"^[ \t]*cost[ \t]*=[^\n]*\n?", re.MULTILINE)
_NAME = re.compile(r"^[ \t]*name[ \t]*=[^\n]*\n?", re.MULTILINE)


async def measure_worker(
    worker: Worker, entry: WorkerEntry, *, resident_bytes: float = 0.0
) -> Cost:
    """Measure seconds per token, and joules where the processor tells them; keep the prices.

    Takes three short calls, the first of which loads the model.

    Raises:
        WorkerError: the worker cannot answer.
    """
    await worker.answer(Question(messages=[{"role": "user", "content": "Hi"}], max_tokens=1))
    messages = [{"role": "user", "content": _PROMPT}]
    started = time.monotonic()
    first = await worker.answer(Question(messages=messages, max_tokens=1))
    prompt_s = time.monotonic() - started
    energy, started = joules(), time.monotonic()
    # A model of this machine finds the prompt in its cache.
    second = await worker.answer(Question(messages=messages, max_tokens=_TOKENS))
    token_s = time.monotonic() - started - (prompt_s if entry.is_elsewhere else 0.0)
    after = joules()
    num_tokens = max(1, second.tokens)
    spent = 0.0 if energy is None or after is None else max(0.0, after - energy)
    return replace(
        entry.cost,
        seconds_per_prompt_token=_rounded(prompt_s / max(1, first.prompt_tokens)),
        seconds_per_token=_rounded(max(0.0, token_s) / num_tokens),
        joules_per_token=0.0 if entry.is_elsewhere else _rounded(spent / num_tokens),
        resident_bytes=resident_bytes or entry.cost.resident_bytes,
    )


def joules(folder: Path = _ENERGY) -> float | None:
    """Read the energy counters of all processors; None if there are none for us to read."""
    try:
        counters = [
            path.parent / "energy_uj"
            for path in folder.glob("intel-rapl:*/name")
            if path.read_text().startswith("package")
        ]
        return sum(int(each.read_text()) for each in counters) / 1e6 if counters else None
    except (OSError, ValueError):
        return None


def write_costs(path: Path, costs: Mapping[str, Cost]) -> None:
    """Replace the costs in a pool's file; everything else in it stays as it is.

    Raises:
        PoolError: the file cannot be read or written, or costs are a table of their own.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise PoolError(f"{path}: {error.strerror or error}") from None
    try:
        written = with_costs(text, costs)
    except PoolError as error:
        raise PoolError(f"{path}: {error}") from None
    with replacing(path, error=PoolError) as file:
        file.write(written.encode())


def with_costs(text: str, costs: Mapping[str, Cost]) -> str:
    """Replace the costs in the text of a pool's file.

    Raises:
        PoolError: costs are written as a table of their own.
    """
    starts = [found.start() for found in _WORKER.finditer(text)]
    pieces = [text[: starts[0]]] if starts else [text]
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        pieces.append(_with_cost(text[start:end], costs))
    written = "".join(pieces)
    _check(written, text, costs)
    return written


def _with_cost(block: str, costs: Mapping[str, Cost]) -> str:
    """Replace the cost of one worker, which begins the block."""
    head = _WORKER.match(block)
    later = _TABLE.search(block, head.end() if head else 0)
    own, rest = (block, "") if later is None else (block[: later.start()], block[later.start() :])
    name = str(tomllib.loads(own)["worker"][0]["name"])
    if name not in costs:
        return block
    line = f"cost = {_inline(costs[name])}\n"
    if _COST.search(own):
        return _COST.sub(line, own, count=1) + rest
    found = _NAME.search(own)
    at = found.end() if found else len(own)
    before = own[:at] if own[:at].endswith("\n") else own[:at] + "\n"
    return before + line + own[at:] + rest


def _check(written: str, text: str, costs: Mapping[str, Cost]) -> None:
    """Compare what was written with what was meant."""
    try:
        after = tomllib.loads(written)
    except tomllib.TOMLDecodeError:
        after = {}
    before = tomllib.loads(text)
    for worker in before.get("worker", ()):
        if worker["name"] in costs:
            worker["cost"] = _given(costs[worker["name"]])
    if after != before:
        raise PoolError("write each cost on one line, as in cost = { seconds_per_token = 0.01 }")


def _given(cost: Cost) -> dict[str, float]:
    values = {each.name: float(getattr(cost, each.name)) for each in fields(Cost)}
    return {name: value for name, value in values.items() if value}


def _inline(cost: Cost) -> str:
    return "{ " + ", ".join(f"{name} = {value!r}" for name, value in _given(cost).items()) + " }"


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.4g}")
