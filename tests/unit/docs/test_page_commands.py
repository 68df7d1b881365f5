"""Every command of every page: it exists with all its flags, and it runs.

Commands run in an empty folder, on the embedded model or on tiny models and texts in the place of
the files that they name. What does not run is in `NOT_RUN`, with the reason; its flags are checked
nevertheless.
"""

import importlib.util
import os
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import click
import pytest

from command_line import invoke
from pages import PAGES, ROOT, Command, inline_commands, page_name, shell_commands
from powerinfer.cli.main import command_names, main
from tiny_models import TINY_MODELS, write_model

# How a command begins, and why no test runs it.
NOT_RUN = {
    "powerinfer bench": "measures speed, which takes long; bench/test_quality.py runs it",
    "powerinfer calibrate -f train-stories.txt": "takes long",
    "powerinfer convert": "reads a checkpoint; e2e/test_convert.py runs it",
    "powerinfer eval": "reads files of tasks; cli/test_eval.py runs it",
    "powerinfer inspect --chat-template": "needs a template; cli/test_chat_manners.py runs it",
    "powerinfer run -m MODEL.gguf -p Hello --vram-budget": "needs a GPU",
    "powerinfer run -m model.gguf -p Hi --vram-budget": "needs a GPU",
    "powerinfer run -m model.gguf --gpu-index": "needs a GPU",
    "powerinfer run --device cuda": "takes minutes: interpreted GPU kernels",
    "powerinfer plan -m model.gguf --vram-budget 50%": "needs a GPU",
    "powerinfer pull": "downloads a model; cli/test_hub.py and test_packages.py run it",
    "powerinfer run -m hf:": "downloads a model",
    "powerinfer run -m prosparse-7b": "downloads a model",
    "powerinfer chat smollm2": "downloads a model; cli/test_packages.py runs it",
    "powerinfer orchestrate": "names models and pools; cli/test_orchestrate.py runs it",
    "powerinfer batch": "reads a file of requests; e2e/test_batch_program.py runs it",
    "powerinfer sparsify": "trains a checkpoint; e2e/test_sparsify.py runs it",
    "powerinfer serve": "runs until it is ended; e2e and page tests start it",
    "powerinfer perplexity -m smollm2.gguf": "names kernels that not every processor has",
    "powerinfer pack model.gguf --predictors": "convert/test_pack_predictors.py runs it",
    "powerinfer train-predictors": "trains; train/test_train_predictors.py runs it",
    "powerinfer run -m fast.gguf": "is a file that train-predictors writes",
    "powerinfer run -m stories-powerinfer.gguf": "is a file that another command writes",
    "powerinfer rm": "removes a model; cli/test_hub.py and test_packages.py run it",
}
# Commands that need torch, which not every machine that runs tests has.
OF_TORCH = ("powerinfer profile",)
# Programs of others in the pages' commands.
OTHER_PROGRAMS = {
    ".": "the shell's own",
    ".venv/bin/pip": "installs packages",
    ".venv/bin/pre-commit": "installs a hook",
    "convert_hf_to_gguf.py": "llama.cpp",
    "cmake": "builds llama.cpp",
    "cp": "of every system",
    "curl": "asks a server",
    "echo": "the shell's own",
    "exec": "the shell's own",
    "grep": "of every system",
    "head": "of every system",
    "hf": "downloads a model",
    "podman": "builds and runs containers",
    "printf": "the shell's own",
    "serve": "Ray Serve",
    "tail": "of every system",
    "zstd": "unpacks development data",
}
SENTENCE = "Once upon a time there was a little dog. It had a red ball, and it liked to play. "
SCHEMA = '{"type": "object", "properties": {"name": {"enum": ["Ada"]}}, "required": ["name"]}'
CONTENTS = {"ids.txt": "17 42 256", "prompt.txt": SENTENCE, "person.json": SCHEMA}
TEXT = SENTENCE * 40
# A byte is a token to it, and its `down` is stored as llama.cpp stores it.
MODEL = replace(TINY_MODELS["llama-relu"], context_length=8192)
SILU_MODEL = replace(TINY_MODELS["llama"], context_length=8192)  # where the name says so
MODELS = (".gguf", "MODEL")
TEXTS = (".txt", ".raw", ".bin")

# Pages whose commands calibrate, profile, draw or write long texts.
SLOW = (
    "README.md",
    "docs/cli/calibrate.md",
    "docs/cli/plan.md",
    "docs/cli/profile.md",
    "docs/cli/run.md",
    "docs/sparsify/README.md",
    "docs/sparsify/profile.md",
    "docs/sparsity.md",
)
WITH_COMMANDS = [page for page in PAGES if list(shell_commands(page.read_text(encoding="utf-8")))]
with_commands = pytest.mark.parametrize("page", WITH_COMMANDS, ids=page_name)


def _shell_commands(page: Path) -> list[Command]:
    return list(shell_commands(page.read_text(encoding="utf-8")))


def _is_powerinfer(command: Command) -> bool:
    return command.program in ("powerinfer", ".venv/bin/powerinfer")


def _not_run(command: Command) -> bool:
    has_torch = importlib.util.find_spec("torch") is not None
    starts = (*NOT_RUN, *(() if has_torch else OF_TORCH))
    return " ".join(command.words).startswith(starts)


def _parse(command: Command) -> None:
    """Have click read a whole command line, without running it."""
    found, arguments = _found(command)
    found.make_context(command.words[1], arguments, help_option_names=["-h", "--help"])


def _found(command: Command) -> tuple[click.Command, list[str]]:
    """The command, or its part (`bench serve`), and what it is given."""
    name, *arguments = command.words[1:]
    if arguments and f"{name} {arguments[0]}" in command_names():
        name, arguments = f"{name} {arguments[0]}", arguments[1:]
    found = main.get_command(click.Context(main), name)
    assert found is not None, f"{command.line}: no command {name}"
    return found, arguments


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in; caches lie in it too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def _put_stand_ins(command: Command, folder: Path) -> None:
    """Make the files that a command reads."""
    words = command.words
    if words[1:2] == ("quantize",):
        words = words[:3] + words[4:]  # without its output, which has no flag
    for before, word in pairwise(words):
        path = folder / word
        if before in ("-o", "--output", "-p") or path.exists():
            continue
        if word.endswith(MODELS):
            write_model(path, SILU_MODEL if "silu" in word else MODEL)
        elif word.endswith(".zst"):
            zstandard = pytest.importorskip("zstandard", reason="zstandard is not installed")
            path.write_bytes(zstandard.compress(TEXT.encode()))
        elif word in CONTENTS or word.endswith(TEXTS):
            path.write_text(CONTENTS.get(word, TEXT), encoding="utf-8")


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow) if page_name(page) in SLOW else page
        for page in WITH_COMMANDS
    ],
    ids=page_name,
)
def test_commands_of_a_page_run(page: Path, folder: Path) -> None:
    for command in filter(_is_powerinfer, _shell_commands(page)):
        _put_stand_ins(command, folder)
        if _not_run(command):
            _parse(command)
            continue
        result = invoke(*command.words[1:], stdin=command.stdin)
        assert result.exit_code == 0, f"{command.line}: {result.output}"


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_commands_in_sentences_have_commands_and_flags_that_exist(page: Path) -> None:
    for command in inline_commands(page.read_text(encoding="utf-8")):
        name = command.words[1]
        if name == "COMMAND" or name.startswith("-"):
            continue
        found, arguments = _found(command)
        known = {flag for option in found.params for flag in (*option.opts, *option.secondary_opts)}
        given = {word.split("=")[0] for word in arguments if re.match("-+[a-zA-Z]", word)}
        assert given <= known | {"--help", "-h"}, command.line


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_no_page_installs_where_debian_refuses(page: Path) -> None:
    # Debian's pip installs nothing outside of a virtual environment.
    assert not any(command.program.startswith("pip") for command in _shell_commands(page))


@with_commands
def test_scripts_of_a_page_exist_and_know_their_flags(page: Path) -> None:
    for command in _shell_commands(page):
        if _is_powerinfer(command) or _is_of_others(command):
            continue
        path, arguments = _script(command)
        assert path.is_file(), f"{command.line}: no such program; if it is another's, list it"
        text = path.read_text(encoding="utf-8")
        for flag in (word for word in arguments if re.match("--[a-z]", word)):
            assert flag in text, f"{command.line}: {path.name} has no {flag}"
        if path.parent.name == "scripts":
            assert os.access(path, os.X_OK)


def _is_of_others(command: Command) -> bool:
    """A program or a Python script that is not of this project."""
    words = command.words[1:] if command.program == "python" else command.words
    return words[0] in OTHER_PROGRAMS


def _script(command: Command) -> tuple[Path, tuple[str, ...]]:
    """The project's file that a command runs, and what it is given."""
    words = command.words
    if words[0] in ("python", ".venv/bin/python"):
        words = words[1:]
    if words[0] == "-m":
        return ROOT / f"{words[1].replace('.', '/')}.py", words[2:]
    return ROOT / words[0], words[1:]
