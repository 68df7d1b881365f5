"""Trajectories as JSON lines in the form that Uno-Orchestra publishes, for training on them."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from powerinfer.orchestra.pool import Pool, PoolError
from powerinfer.orchestra.rules import Offers, violations
from powerinfer.orchestra.runtime import Outcome

__all__ = ["append_trajectory", "ledger_report", "trajectory"]


def trajectory(outcome: Outcome, pool: Pool, system: str = "") -> dict[str, object]:
    """Write a run as an object: ShareGPT turns, with the ledger beside them.

    Fields are those of the published rows; `error`, `violations` and `ledger` are ours.

    Args:
        system: what the policy read before the task.
    """
    everything: Offers = {each.name: each.primitives for each in pool.workers}
    turns = outcome.state.turns
    conversations = [{"from": "system", "value": system}] if system else []
    conversations.append({"from": "human", "value": outcome.task})
    conversations += [
        {"from": "gpt" if turn.role == "assistant" else "tool", "value": turn.text}
        for turn in turns
    ]
    text = json.dumps(conversations)
    return {
        "id": f"powerinfer_{hashlib.sha256(text.encode()).hexdigest()[:16]}",
        "source": "powerinfer",
        "category": "",
        "question": outcome.task,
        "gold_answer": "",
        "teacher": pool.policy,
        "distillation_pass": 1,
        "n_plan_rounds": outcome.state.round,
        "n_subtasks": len(outcome.state.subtasks),
        "conversations": conversations,
        "error": outcome.error,
        "violations": [each.rule for each in violations(turns, everything)],
        "ledger": ledger_report(outcome, pool, everything),
    }


def ledger_report(outcome: Outcome, pool: Pool, offers: Offers) -> Mapping[str, object]:
    """Write the ledger as an object."""
    ledger = outcome.ledger
    ways = ledger.other_ways(pool, offers)
    return {
        "seconds": outcome.seconds,
        "worker_seconds": ledger.seconds,
        "prompt_tokens": ledger.prompt_tokens,
        "tokens": ledger.tokens,
        "price": ledger.price,
        "steps": [asdict(each) for each in ledger.steps],
        "estimates": {name: asdict(each) for name, each in ways.items()},
    }


def append_trajectory(path: Path, *rows: Mapping[str, object]) -> None:
    """Append rows to a file of JSON lines; without any, only see that it can be written.

    Raises:
        PoolError: the file cannot be written.
    """
    try:
        with path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    except OSError as error:
        raise PoolError(f"{path}: cannot write: {error.strerror or error}") from None
