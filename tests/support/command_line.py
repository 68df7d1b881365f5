"""Runs command lines in this process, for the tests of the commands."""

import json
import signal
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from powerinfer.cli.main import main

__all__ = ["assert_error", "invoke", "run_json"]


def invoke(*arguments: str | Path, stdin: str | bytes | None = None) -> Result:
    handler = signal.getsignal(signal.SIGINT)
    try:
        return CliRunner().invoke(main, [str(argument) for argument in arguments], input=stdin)
    finally:
        # A command that Ctrl-C ended ignores further ones until its process ends.
        signal.signal(signal.SIGINT, handler)


def assert_error(result: Result, *parts: str) -> None:
    """Exit code 2 and one line on stderr that begins with `error:`, after what the model says."""
    assert result.exit_code == 2, result.output
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, result.stderr
    assert result.stderr.splitlines()[-1] == errors[0]
    for part in parts:
        assert part in errors[0]
    assert "Traceback" not in result.output


def run_json(*arguments: str | Path) -> dict[str, Any]:
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.output
    value: dict[str, Any] = json.loads(result.stdout)
    return value
