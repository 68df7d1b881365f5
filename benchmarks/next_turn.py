"""Times the first token of a chat's next turn on a model with state, with and without snapshots.

    python benchmarks/next_turn.py MODEL.gguf --peer LLAMA_SERVER --rounds 3 -o out.json

A chat of four questions and three answers (2,000 tokens of text) is answered, then its answer (64
tokens) and a new message (32) come back. Sides take turns, each a server of its own: ours; ours
without snapshots; and llama-server with its defaults. The second request must compute what follows
the last message of the first, or without snapshots everything; else this fails. Without snapshots
means `--state-cache 0` and a new server for the second turn, since slots of texts that have ended
keep a few states even then.

The text is the same on every side: the answer that comes back is written here, not what the model
generated, whose thoughts the template would leave out as well. Templates of Qwen3.5 put thoughts
after the last message, so the generated part of the first turn is no prefix of the second.
"""

import argparse
import json
import random
import statistics
import time
from datetime import date
from pathlib import Path
from typing import Any

import httpx

from comparing.sides import ratio
from powerinfer.bench.machine import describe_machine
from powerinfer.bench.serving.server import our_command, peer_command, running, system_info
from powerinfer.gguf import open_gguf
from powerinfer.prompts.messages import message_ids
from powerinfer.tokenizer import Tokenizer
from powerinfer.tokenizer.chat import render_chat

OURS, WITHOUT, PEER = "snapshots", "no snapshots", "llama-server"
CONTEXT = 4096
# Of the history: questions and answers in turns.
PARTS = 7
Message = dict[str, str]


class Writer:
    """Writes text of exactly as many tokens as asked for."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        self._tokenizer = tokenizer
        self._random = random.Random(seed)

    def text(self, num_tokens: int) -> str:
        """Words of one letter, of which every byte-level vocabulary makes one token each.

        Raises:
            SystemExit: this vocabulary does not.
        """
        text = " ".join(self._random.choices("abcdefghijklmnopqrstuvwxyz", k=num_tokens))
        found = len(self._tokenizer.encode(text, add_bos=False))
        if found != num_tokens:
            raise SystemExit(f"error: {num_tokens} letters are {found} tokens")
        return text


def conversation(
    writer: Writer, options: argparse.Namespace
) -> tuple[list[Message], list[Message]]:
    """Messages of both turns."""
    sizes = [options.history // PARTS + (i < options.history % PARTS) for i in range(PARTS)]
    first = [_message(number, writer.text(size)) for number, size in enumerate(sizes)]
    answer = _message(1, writer.text(options.answer)) | {"reasoning_content": writer.text(32)}
    return first, [*first, answer, _message(0, writer.text(options.message))]


def _message(number: int, content: str) -> Message:
    return {"role": "assistant" if number % 2 else "user", "content": content}


def ask(address: str, messages: list[Message], max_tokens: int) -> dict[str, Any]:
    """Stream an answer; return seconds to its first token, and tokens of the prompt."""
    body = {
        "messages": messages,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    first_s: float | None = None
    usage: dict[str, Any] = {}
    started = time.perf_counter()
    url = f"{address}/v1/chat/completions"
    with httpx.stream("POST", url, json=body, timeout=1200, trust_env=False) as response:
        for line in response.iter_lines():
            if response.status_code != httpx.codes.OK:
                raise SystemExit(f"error: {address} refused: {line[:300]}")
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            deltas = [choice["delta"] for choice in event.get("choices", [])]
            texts = ("content", "reasoning_content")
            if first_s is None and any(delta.get(key) for delta in deltas for key in texts):
                first_s = time.perf_counter() - started
            usage = event.get("usage") or usage
    if first_s is None or not usage:
        raise SystemExit(f"error: {address} sent no text or no usage")
    num_cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
    num_prompt = usage["prompt_tokens"]
    return {"first_token_s": first_s, "prompt": num_prompt, "computed": num_prompt - num_cached}


def measure(command: list[str], turns: list[tuple[list[Message], int]]) -> Any:
    """Ask messages, each for so many tokens, of a server of their own."""
    with running(command) as server:
        # Buffers are made, and pages of the file read, before anything is timed.
        ask(server.address, [_message(0, "warm up")], 2)
        answers = [ask(server.address, messages, count) for messages, count in turns]
        return answers, system_info(server)


def check(side: str, run: Any, expected: dict[str, int]) -> None:
    """Fail unless as many tokens were computed as should have been."""
    computed = {turn: run[turn]["computed"] for turn in expected}
    if side != PEER and computed != expected:
        raise SystemExit(f"error: {side}: computed {computed} tokens, expected {expected}")


def expected_tokens(tokenizer: Tokenizer, turns: Any, side: str) -> dict[str, int]:
    """Count tokens to compute: all, or in the second turn those after the first one's messages."""
    known = 0
    if side == OURS:
        text = render_chat(tokenizer.chat_template or "", turns[0], add_generation_prompt=False)
        known = len(tokenizer.encode(text, add_bos=False, parse_special=True))
    first, second = (len(message_ids(tokenizer, turn, CONTEXT)) for turn in turns)
    return {"first": first, "second": second - known}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--peer", type=Path, help="program llama-server, built natively")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--history", type=int, default=2000, help="tokens of text")
    parser.add_argument("--answer", type=int, default=64)
    parser.add_argument("--message", type=int, default=32)
    parser.add_argument("--note", default="", help="remark stored with the results")
    parser.add_argument("-o", "--output", type=Path)
    return parser.parse_args()


def _commands(options: argparse.Namespace) -> dict[str, list[str]]:
    def ours(*more: str) -> list[str]:
        return our_command(options.model, 1, CONTEXT, options.threads, more)

    found = {OURS: ours(), WITHOUT: ours("--state-cache", "0")}
    if options.peer:
        found[PEER] = peer_command(options.peer, options.model, 1, CONTEXT, options.threads)
    return found


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Run the rounds, each with a chat of its own, and summarise."""
    tokenizer = Tokenizer.from_gguf(open_gguf(options.model))
    rounds: list[dict[str, Any]] = []
    for number in range(options.rounds):
        turns = conversation(Writer(tokenizer, number), options)
        rounds.append({})
        for side, command in _commands(options).items():
            asked = [(turns[0], options.answer), (turns[1], 4)]
            parts = [asked] if side != WITHOUT else [asked[:1], asked[1:]]
            found = [measure(command, part) for part in parts]
            first, second = (answer for answers, _ in found for answer in answers)
            run = {"first": first, "second": second, "system_info": found[0][1]}
            check(side, run, expected_tokens(tokenizer, turns, side))
            rounds[-1][side] = run
    return {"model": options.model.name, "sides": _summary(rounds), "rounds": rounds}


def _summary(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """By side: medians of seconds, tokens computed, and how much sooner snapshots are."""

    def seconds(side: str, turn: str) -> list[float]:
        return [float(each[side][turn]["first_token_s"]) for each in rounds]

    return {
        side: {
            "first_s": statistics.median(seconds(side, "first")),
            "second_s": statistics.median(seconds(side, "second")),
            "prompt": rounds[0][side]["second"]["prompt"],
            "computed": rounds[0][side]["second"]["computed"],
            "sooner": ratio(seconds(side, "second"), seconds(OURS, "second")),
        }
        for side in rounds[0]
    }


def main() -> None:
    """Command line."""
    options = _options()
    result = compare(options)
    print(f"{result['model']}: seconds to the first token of a chat and of its next turn")
    for side, row in result["sides"].items():
        print(
            f"{side:14} {row['first_s']:8.2f} {row['second_s']:8.2f}  computed {row['computed']:5} "
            f"of {row['prompt']}  snapshots {row['sooner']['ratio']:.1f} times as soon "
            f"({row['sooner']['ratio_min']:.1f}-{row['sooner']['ratio_max']:.1f})"
        )
    if options.output:
        report = {
            "machine": describe_machine(),
            "date": f"{date.today()}",
            "threads": options.threads,
            "note": options.note,
            "results": [result],
        }
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf8")


if __name__ == "__main__":
    main()
