"""The tables of options: what Python may pass, what the flags are, what errors advise."""

import ast
import logging
import re
from dataclasses import fields, replace
from inspect import isfunction
from pathlib import Path
from typing import Literal, get_args, get_type_hints

import numpy as np
import pytest

from command_line import assert_error, invoke
from powerinfer import LLM, SamplingParams
from powerinfer.cli.flags.flags import in_flags
from powerinfer.cli.main import WarningFormatter, main
from powerinfer.errors import PowerInferError, PromptError, UnsupportedError
from powerinfer.options.llm_options import LLMOptions
from powerinfer.options.option import options_of
from powerinfer.options.options import EngineOptions, engine_options
from powerinfer.options.vram_budget import VramBudget

SOURCE = Path(__file__).resolve().parents[3] / "src" / "powerinfer"

# What Python may pass where it is not what the engine keeps.
WIDER = {
    "draft_model": Path | str | None,
    "kv_type": Literal["f16", "q8_0"],
    "vram_budget": str | float | VramBudget | None,
    "gpu_index": Path | str | None,
}


def test_both_declarations_of_an_option_agree() -> None:
    assert get_type_hints(LLMOptions) == get_type_hints(EngineOptions) | WIDER
    assert list(options_of(EngineOptions)) == list(LLMOptions.__annotations__)


def misspelt_options_are_found_before_running() -> None:
    """For mypy alone, which complains of an ignore without need."""
    LLM(contxt_length=5)  # type: ignore[call-arg]
    LLM(context_length="5")  # type: ignore[arg-type]
    LLM(context_length=5, vram_budget="8GiB")


def test_a_budget_is_read_once() -> None:
    options = engine_options(vram_budget="8GiB")
    assert options.vram_budget == VramBudget(num_bytes=8 << 30)
    assert engine_options(vram_budget=options.vram_budget) == options
    assert engine_options(vram_budget=8) == options
    assert engine_options(gpu_index="a.json").gpu_index == Path("a.json")
    assert engine_options(sparsity=" EXACT").sparsity == "exact"


def test_options_may_be_scalars_of_numpy() -> None:
    options = engine_options(
        threads=np.int64(3),  # type: ignore[arg-type]
        recall=np.float32(0.5),  # type: ignore[arg-type]
        mmap=np.False_,  # type: ignore[arg-type]
        vram_budget=np.int32(8),  # type: ignore[arg-type]
    )
    assert options == engine_options(threads=3, recall=0.5, mmap=False, vram_budget=8)
    assert type(options.threads) is int
    with pytest.raises(PromptError, match="threads must be a whole number from 1 to 512"):
        engine_options(threads=np.float64(2.0))  # type: ignore[arg-type]


def test_defaults_pass_their_own_checks() -> None:
    for table in (EngineOptions, SamplingParams):
        made = table()
        for field in fields(table):
            assert getattr(made, field.name) == field.default


def test_checks_return_the_types_of_their_fields() -> None:
    """A type checker does not look into annotations. Other tests compare sequences and mappings."""
    for table in (EngineOptions, SamplingParams):
        for field in fields(table):
            hint, option = get_args(field.type)
            check = option.check if isfunction(option.check) else type(option.check).__call__
            returned = get_type_hints(check)["return"]
            is_same = hint in (returned, returned | None) or returned in get_args(hint)
            assert is_same or field.name in ("logit_bias", "logits_processors", "stop"), field.name


def test_changed_options_are_checked_like_new_ones() -> None:
    options = replace(engine_options(threads=3), sparsity=" OFF")
    assert options == engine_options(threads=3, sparsity="off")
    with pytest.raises(PromptError, match="option threads must be a whole number"):
        replace(options, threads=0)
    with pytest.raises(UnsupportedError, match="Did you mean 'threads'"):
        replace(options, thread=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("command", ["run", "chat"])
def test_flags_have_the_defaults_of_python(command: str) -> None:
    found = main.get_command(main.make_context("powerinfer", [command]), command)
    assert found is not None
    parameters = {parameter.name: parameter for parameter in found.params}
    for table in (EngineOptions, SamplingParams):
        defaults = {field.name: field.default for field in fields(table)}
        for name, option in options_of(table).items():
            if name in parameters and option.flags and name != "max_tokens":
                assert parameters[name].default == defaults[name]
                assert {*parameters[name].opts, *parameters[name].secondary_opts} == {
                    flag for flags in option.flags for flag in flags.split("/")
                }


def test_python_gets_advice_for_python_and_the_command_line_its_flags() -> None:
    error = PromptError(
        "the context is full",
        remedy="ask for fewer ({max_tokens}), set {context_shift=True}, {mmap=False} or "
        "{device='cpu'}, or leave {unknown} out",
    )
    assert str(error) == (
        "the context is full: ask for fewer (max_tokens), set context_shift=True, mmap=False or "
        "device='cpu', or leave unknown out"
    )
    command = main.get_command(main.make_context("powerinfer", ["run"]), "run")
    assert in_flags(error, command) == (
        "the context is full: ask for fewer (-n), set --context-shift, --no-mmap or --device cpu, "
        "or leave unknown out"
    )
    assert str(PowerInferError("{context_length} of a file's name stays")).startswith("{context_")
    assert str(PromptError(remedy="give {recall}")) == "give recall"


def test_flags_in_errors_are_those_of_the_command(tmp_path: Path) -> None:
    both = ("--max-ffn-error", "0.1", "--recall", "0.9")
    for command in ("run", "plan", "calibrate"):
        prompt = ("-p", "a") if command == "run" else ()
        assert_error(invoke(command, *prompt, *both), "give --max-ffn-error or --recall, not both")
    share = invoke("run", "-p", "a", "--recall", "2")
    assert_error(share, "'--recall'", "recall must be above 0 and at most 1, got 2.0")
    with pytest.raises(PromptError, match="give max_ffn_error or recall, not both"):
        engine_options(max_ffn_error=0.1, recall=0.9)


def test_remedies_name_options_that_there_are() -> None:
    known = set(options_of(EngineOptions)) | set(options_of(SamplingParams))
    root = main.make_context("powerinfer", ["run"])
    for name in main.list_commands(root):
        command = main.get_command(root, name)
        assert command is not None
        known |= {parameter.name or "" for parameter in command.params}
    for path in SOURCE.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.keyword) and call.arg == "remedy":
                parts = [
                    each.value
                    for each in ast.walk(call.value)
                    if isinstance(each, ast.Constant) and isinstance(each.value, str)
                ]
                named = re.findall(r"\{(\w+)[=}]", "".join(parts))
                assert set(named) <= known, f"{path}:{call.lineno}"


def test_the_engine_names_no_flags() -> None:
    """In what it says; documentation may."""
    for path in SOURCE.rglob("*.py"):
        folder = path.relative_to(SOURCE).parts[0]
        if folder in ("cli", "train") or path.name in ("options.py", "sampling_params.py"):
            continue
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Raise):
                texts = [
                    each.value
                    for each in ast.walk(call)
                    if isinstance(each, ast.Constant) and isinstance(each.value, str)
                ]
                assert not re.search(r"(?<![\w-])--?[a-z]", " ".join(texts)), (
                    f"{path}:{call.lineno}"
                )


def test_a_warning_on_the_command_line_names_flags() -> None:
    error = PowerInferError("too little memory", remedy="lower {vram_budget}")
    record = logging.LogRecord("a", logging.WARNING, "f.py", 1, "again (%s)", (error,), None)
    assert WarningFormatter("%(message)s").format(record) == (
        "again (too little memory: lower --vram-budget)"
    )
    assert record.getMessage() == "again (too little memory: lower vram_budget)"
    assert repr(error) == "PowerInferError('too little memory: lower vram_budget')"
