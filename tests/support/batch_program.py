"""`run_batch` with an engine that plays a script, as a program of its own that tests can kill."""

import sys
import time
from pathlib import Path
from typing import Any

from api_client import embedded_tokenizer
from fake_engine import FakeEngine
from powerinfer.engine.request import Request
from powerinfer.serve.batch import AnswerFile, read_requests, run_batch
from powerinfer.serve.served_model import ServedModel
from powerinfer.serve.settings import ServerSettings

STEP_S = 0.002


class SlowEngine(FakeEngine):
    """Takes a moment for each step."""

    def step(self) -> Any:
        time.sleep(STEP_S)
        return super().step()


def script(request: Request, index: int) -> list[str]:
    """As many tokens as the prompt has, so that answers end in another order than they began."""
    return [f" {index}"] * len(request.prompt_ids)


def served(engine: FakeEngine) -> ServedModel:
    """A model that plays a script."""
    return ServedModel(
        engine=engine, tokenizer=embedded_tokenizer(), context_length=engine.context_length
    )


def main(source: str, target: str) -> None:
    """Answer a file."""
    requests = read_requests(Path(source))
    settings = ServerSettings(parallel=4, max_queue=4, is_story_model=True)
    with AnswerFile(Path(target)) as answers:
        run_batch(requests, answers, settings, lambda: served(SlowEngine(script)), lambda *_: None)


if __name__ == "__main__":
    main(*sys.argv[1:])
