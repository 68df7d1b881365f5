"""The command line in this process: flags, errors, help. What needs a process is in tests/e2e."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import Result

from command_line import assert_error, invoke, run_json
from patience import PATIENCE_S
from powerinfer import PowerInferError, __version__
from powerinfer.cli.files import strip_final_newline
from powerinfer.cli.flags.options import decode_escapes
from powerinfer.cli.flags.sections import SectionedCommand
from powerinfer.cli.main import command_names, main
from powerinfer.engine.engine import Engine
from powerinfer.gguf import open_gguf, write_gguf
from powerinfer.ops.cpu import machine as native
from powerinfer.options import options
from tiny_models import TINY_MODELS, write_model

DOCS = Path(__file__).resolve().parent.parent.parent.parent / "docs" / "cli"
COMMANDS = command_names()


def test_version() -> None:
    assert invoke("--version").output == f"powerinfer, version {__version__}\n"


def test_help_lists_every_command_with_a_summary() -> None:
    lines = invoke("--help").stdout.splitlines()
    for name in main.list_commands(click.Context(main)):
        summary = next(line for line in lines if line.split()[:1] == [name])
        assert len(summary.split()) > 2


def test_without_arguments_help_goes_to_stderr() -> None:
    result = invoke()
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Commands:" in result.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_examples_and_a_short_help(name: str) -> None:
    result = invoke(*name.split(), "-h")
    assert result.exit_code == 0
    assert f"powerinfer {name}" in result.stdout.split("Examples:")[1]


@pytest.mark.parametrize("name", ["tokenize", "inspect", "perplexity", "bench", "run"])
def test_commands_that_report_figures_take_json(name: str) -> None:
    assert "--json" in invoke(name, "--help").stdout


@pytest.mark.parametrize("name", ["run", "chat", "serve"])
def test_help_begins_with_what_people_need(name: str) -> None:
    """Ten options and help; the others below by subject, and each once."""
    command = main.get_command(click.Context(main), name)
    assert isinstance(command, SectionedCommand)
    context = click.Context(command, info_name=name, help_option_names=["-h", "--help"])
    options = [each for each in command.get_params(context) if isinstance(each, click.Option)]
    known = {each.name for each in options}
    assert len(command.first) == len(known & set(command.first)) == 10
    text = command.get_help(context).partition("Examples:")[0]
    sections = re.findall(r"^(\w[\w ]+):$", text, re.MULTILINE)
    subjects = ["Sampling", "Sparsity", "GPU", "Memory and processor"]
    assert sections[0] == "Options"
    assert [each for each in sections if each in subjects] == subjects
    shown = re.findall(r"^  (-\S+)", text, re.MULTILINE)
    records = [each.get_help_record(context) for each in options]
    assert sorted(word.rstrip(",") for word in shown) == sorted(
        record[0].split()[0].rstrip(",") for record in records if record is not None
    )
    assert shown.index("-h,") == 10


def test_help_imports_neither_numpy_nor_a_command() -> None:
    code = (
        "import sys; from powerinfer.cli.main import main; main(['--help'], standalone_mode=False);"
        "print([m for m in sys.modules if m in ('numpy', 'rich', 'jinja2', 'prompt_toolkit',"
        " 'fastapi', 'starlette', 'uvicorn', 'prometheus_client', 'llguidance')"
        " or m.startswith('powerinfer.cli.commands.')], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_breaks_no_line_inside_an_option(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    for width in range(60, 101):
        # Commands keep the names of the option that shows help, as they first had them.
        context = command.context_class(
            command, info_name=name, terminal_width=width, help_option_names=["-h", "--help"]
        )
        shown = command.get_help(context)
        assert [line for line in shown.splitlines() if re.search(r"\w-$", line)] == []
        assert shown.isascii()


def test_reference_pages_are_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run scripts/make-cli-docs after changing an option."""
    monkeypatch.syspath_prepend(str(DOCS.parent.parent / "scripts"))
    from make_cli_docs import reference_pages

    written = {path.name: path.read_text(encoding="utf-8") for path in DOCS.glob("*.md")}
    assert written == reference_pages()


def test_unknown_command_and_option_suggest_the_nearest() -> None:
    assert_error(invoke("rnu"), "no command 'rnu'", "Did you mean 'run'?", "tokenize")
    assert_error(invoke("run", "--tepm", "1"), "--tepm", "--temp")


BAD_FLAGS: list[tuple[list[str], str]] = [
    (["-t", "0"], "0 is not in the range 1<=x<=512"),
    (["-t", "999"], "999 is not in the range 1<=x<=512"),
    (["-t", "two"], "'two' is not a valid whole number"),
    (["-c", "0"], "--context"),
    (["-n", "-2"], "--max-tokens"),
    (["--temp", "-1"], "--temp"),
    (["--temp", "nan"], "option --temp must be a finite number"),
    (["--top-p", "0"], "--top-p"),
    (["--top-k", "-1"], "--top-k"),
    (["--min-p", "2"], "--min-p"),
    (["--repeat-penalty", "0"], "--repeat-penalty"),
    (["--seed", "-2"], "--seed"),
    (["--stop", ""], "stop"),
    (["--kv-type", "q4"], "'q4' is not one of 'f16', 'q8_0'"),
    (
        ["--activation", "swish"],
        "Supported: clamped_swiglu, drelu, fatrelu, gelu, relu, relu2, silu",
    ),
    (["--sparsity", "auto"], "ReLU family"),
    (["--sparsity", "exact"], "ReLU family"),
    (["--kernels", "mmx"], "mmx"),
    (["-c", "4"], "the prompt has"),
    (["-f", "prompt.txt"], "not both"),
]


@pytest.mark.parametrize(("flags", "message"), BAD_FLAGS, ids=lambda value: "".join(value)[:20])
def test_bad_flags(tiny: Path, flags: list[str], message: str) -> None:
    assert_error(invoke("run", "-m", tiny, "-p", "hello", *flags), message)


def test_bad_models(tmp_path: Path, tiny: Path) -> None:
    assert_error(invoke("run", "-m", tmp_path / "no.gguf", "-p", "a"), "no such file")
    assert_error(invoke("run", "-m", tmp_path, "-p", "a"), "holds no .gguf file")
    text = tmp_path / "text.gguf"
    text.write_text("this is no model")
    assert_error(invoke("run", "-m", text, "-p", "a"), str(text))
    file = open_gguf(tiny)
    metadata = {**file.metadata, "general.architecture": "lama"}
    tensors = [(t.name, t.shape, t.format, t.data.tobytes()) for t in file.tensors.values()]
    write_gguf(tmp_path / "arch.gguf", metadata, tensors)
    for arguments in (("run", "-p", "a", "-m"), ("pack", "-o", tmp_path / "out.gguf")):
        unknown = invoke(*arguments, tmp_path / "arch.gguf")
        assert_error(unknown, "arch.gguf: architecture 'lama' is not supported", "qwen2")
        # Whoever changed the name in the file would get nonsense.
        assert "Did you mean" not in unknown.stderr
    experts = {**file.metadata, f"{file.metadata['general.architecture']}.expert_count": 8}
    write_gguf(tmp_path / "experts.gguf", experts, tensors)
    refused = invoke("pack", tmp_path / "experts.gguf", "-o", tmp_path / "out.gguf")
    assert_error(refused, "experts.gguf", "key 'llama.expert_used_count' is missing")
    assert not (tmp_path / "out.gguf").exists()


def test_prompt_file_that_cannot_be_read(tmp_path: Path, tiny: Path) -> None:
    none = tmp_path / "none.txt"
    for command in (("run", "-m", tiny), ("tokenize", "-m", tiny)):
        assert_error(invoke(*command, "-f", none), f"{none}: no such file")
        assert_error(invoke(*command, "-f", tmp_path), f"{tmp_path}: cannot be read: Is a")


def test_prompt_from_flag_file_and_stdin_agree(tmp_path: Path, tiny: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("hello world\n")
    common = ("run", "-m", tiny, "-n", "8", "--seed", "4")
    wanted = invoke(*common, "-p", "hello world").stdout
    assert wanted.startswith("hello world")
    assert invoke(*common, "-f", file).stdout == wanted
    assert invoke(*common, stdin="hello world\n").stdout == wanted
    assert invoke(*common, "-f", "-", stdin="hello world\n").stdout == wanted
    hidden = invoke(*common, "-p", "hello world", "--no-display-prompt").stdout
    assert "hello world" + hidden == wanted


def test_a_prompt_may_stand_without_a_flag(tiny: Path) -> None:
    common = ("run", "-m", tiny, "-n", "8", "--seed", "4")
    assert invoke(*common, "hello world").stdout == invoke(*common, "-p", "hello world").stdout
    assert invoke("run", "hello", "-m", tiny, "-n", "0").stdout == "hello"
    assert_error(
        invoke(*common, "hello", "world"), "expected one prompt, got 2 arguments", "quote it", "-m"
    )
    assert_error(invoke(*common, "hello", "-p", "world"), "two prompts: give either")
    assert_error(invoke(*common, "hello", "-f", tiny), "two prompts: give either")
    assert_error(invoke("run", tiny), "is the name of a model", "-m")


def test_prompt_that_is_not_utf8_is_read(tmp_path: Path, tiny: Path) -> None:
    file = tmp_path / "prompt.bin"
    file.write_bytes(b"caf\xe9 \xff")
    assert invoke("run", "-m", tiny, "-n", "2", "-f", file).exit_code == 0


def test_a_prompt_that_does_not_fit_is_not_shown(tiny: Path) -> None:
    result = invoke("run", "-m", tiny, "-p", "hello", "-c", "4")
    assert_error(result, "the prompt has")
    assert result.stdout == ""


def test_names_that_users_of_llama_cpp_know(tiny: Path) -> None:
    common = ("run", "-m", tiny, "-p", "hello", "--ignore-eos")
    report = run_json(*common, "--n-predict", "3", "--ctx-size", "40", "-s", "7")
    assert (len(report["token_ids"]), report["seed"]) == (3, 7)
    seeds = {run_json(*common, "-n", "0", "--seed", "-1")["seed"] for _ in range(2)}
    assert len(seeds) == 2
    assert min(seeds) >= 0


def test_escapes_only_where_asked_for(tiny: Path) -> None:
    common = ("run", "-m", tiny, "-n", "0", "-p", r"a\nb\\")
    assert invoke(*common).stdout == r"a\nb\\"
    assert invoke(*common, "-e").stdout == "a\nb\\"


def test_no_tokens_reads_the_prompt_and_ends_well(tiny: Path) -> None:
    result = invoke("run", "-m", tiny, "-p", "hello", "-n", "0")
    assert (result.exit_code, result.stdout) == (0, "hello")
    assert "prefill" in result.stderr


RUN_KEYS = {
    *("text", "token_ids", "finish_reason", "load_s", "prefill_tokens", "prefill_tokens_per_s"),
    *("decode_tokens", "decode_tokens_per_s", "tokens_per_step", "draft_accepted_share"),
    *("bytes_per_token", "gb_per_s", "head_computed_share", "sparsity"),
    "experts",
    *("active_share", "predicted_share", "threads", "kernels", "seed"),
    *("layer_kinds", "recall", "precision", "ffn_error"),
    *("device", "vram_budget_bytes", "gpu_bytes", "gpu_share", "predicted_tokens_per_s", "handoff"),
}


def test_run_json_has_the_documented_keys(tiny: Path) -> None:
    report = run_json("run", "-m", tiny, "-p", "hello", "-n", "5", "--ignore-eos", "-t", "1")
    assert set(report) == RUN_KEYS
    assert len(report["token_ids"]) == report["decode_tokens"] == 5
    assert report["finish_reason"] == "length"
    assert report["threads"] == 1
    assert report["sparsity"] == "off"
    assert report["device"] == "cpu"
    assert report["gpu_bytes"] is None
    repeated = run_json("run", "-m", tiny, "-p", "hello", "-n", "5", "--seed", str(report["seed"]))
    assert report["token_ids"][0] == repeated["token_ids"][0]
    empty = run_json("run", "-m", tiny, "-p", "hello", "-n", "0")
    assert empty["decode_tokens_per_s"] is None


def test_run_json_reports_what_ctrl_c_left(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_step, calls = Engine.run_step, list[Engine]()

    def interrupted(self: Engine) -> None:
        calls.append(self)
        if len(calls) == 5:
            raise KeyboardInterrupt
        run_step(self)

    monkeypatch.setattr(Engine, "run_step", interrupted)
    result = invoke("run", "-m", tiny, "-p", "a", "--ignore-eos", "--json")
    assert result.exit_code == 130
    report = json.loads(result.stdout)
    assert report["finish_reason"] == "cancelled"
    assert report["decode_tokens"] == len(report["token_ids"]) == 4


@pytest.mark.parametrize("value", ["inf", "nan"])
def test_a_temperature_is_finite(tiny: Path, value: str) -> None:
    result = invoke("run", "-m", tiny, "-p", "a", "--temp", value)
    assert_error(result, "--temp must be a finite number, 0 or more")


def test_unknown_kernels_list_the_reference_too(tiny: Path) -> None:
    result = invoke("run", "-m", tiny, "-p", "a", "--kernels", "abacus")
    assert_error(result, "kernels 'abacus'", "'reference' for plain numpy")


def test_one_limit_of_threads() -> None:
    assert options.MAX_THREADS == native.MAX_THREADS


def test_kernels_from_the_environment(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POWERINFER_KERNELS", "portable")
    assert run_json("run", "-m", tiny, "-p", "a", "-n", "1")["kernels"] == "portable"
    flag = run_json("run", "-m", tiny, "-p", "a", "-n", "1", "--kernels", "reference")
    assert flag["kernels"] == "reference"
    monkeypatch.setenv("POWERINFER_KERNELS", "")
    assert run_json("run", "-m", tiny, "-p", "a", "-n", "1")["kernels"] != "reference"


def test_an_environment_variable_is_named_in_its_error(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = ("run", "-m", tiny, "-p", "a")
    flagged = invoke(*common, "--kernels", "nonsense")
    assert_error(flagged, "kernels 'nonsense'", "with --kernels")
    assert "POWERINFER_KERNELS" not in flagged.stderr
    monkeypatch.setenv("POWERINFER_KERNELS", "nonsense")
    assert_error(invoke(*common), "kernels 'nonsense'", "POWERINFER_KERNELS, which is set")


def test_a_file_without_weights_says_so(tmp_path: Path, tiny: Path) -> None:
    file = open_gguf(tiny)
    write_gguf(tmp_path / "vocabulary.gguf", file.metadata, [])
    sentence = "the file has only a vocabulary, no weights"
    assert_error(invoke("run", "-m", tmp_path / "vocabulary.gguf", "-p", "a"), sentence)
    assert_error(invoke("plan", "-m", tmp_path / "vocabulary.gguf", "--vram-budget", "1"), sentence)
    assert sentence in invoke("inspect", tmp_path / "vocabulary.gguf").stdout


def test_a_full_context_ends_the_text_and_is_reported(tiny: Path) -> None:
    common = (
        "run",
        "-m",
        tiny,
        "-p",
        "hello",
        "-c",
        "16",
        "-n",
        "40",
        "--ignore-eos",
        "--temp",
        "0",
    )
    full = invoke(*common)
    assert full.exit_code == 0
    assert "context of 16 tokens is full after" in full.stderr
    assert "-c, or drop old text with --context-shift" in full.stderr
    assert full.stdout.startswith("hello")
    report = invoke(*common, "--json")
    assert "context of 16 tokens is full" in report.stderr
    assert json.loads(report.stdout)["finish_reason"] == "length"
    shifted = invoke(*common, "--context-shift")
    assert (shifted.exit_code, "is full" in shifted.stderr) == (0, False)
    enough = invoke(*common, "-n", "2")
    assert (enough.exit_code, "is full" in enough.stderr) == (0, False)
    stuck = invoke(*common, "--context-shift", "--keep", "15")
    assert_error(stuck, "keep fewer (--keep) or take a larger context (-c)")
    assert stuck.stdout == ""


def test_no_shift_is_proposed_to_a_model_with_state(tmp_path: Path) -> None:
    model = write_model(tmp_path / "lfm2.gguf", TINY_MODELS["lfm2"])
    full = invoke("run", "-m", model, "-p", "a", "-c", "4", "-n", "9", "--ignore-eos")
    assert "set a larger one with -c)" in full.stderr


def test_escape_table() -> None:
    assert decode_escapes(rb"\n\t\r\0\\\"\'") == b"\n\t\r\0\\\"'"
    assert decode_escapes(rb"\x41\xe4\xBD\xa0") == "A你".encode()
    assert decode_escapes(rb"\q\x4\\n") == rb"\q\x4\n"


def test_one_final_newline_is_not_part_of_a_prompt() -> None:
    assert [strip_final_newline(text) for text in (b"a\n", b"a\r\n", b"a\n\n", b"a")] == [
        *(b"a", b"a", b"a\n", b"a")
    ]


class TestExitCodes:
    """What a command raises, and what the user gets."""

    @pytest.fixture
    def raising(self, monkeypatch: pytest.MonkeyPatch, tiny: Path) -> Callable[..., Result]:
        def run_with(error: BaseException) -> Result:
            def opened(*_: object, **__: object) -> None:
                raise error

            monkeypatch.setattr("powerinfer.cli.model.open_llm", opened)
            return invoke("run", "-m", tiny, "-p", "a")

        return run_with

    def test_errors_of_ours_and_of_the_system(self, raising: Callable[..., Result]) -> None:
        assert_error(raising(PowerInferError("two\nlines")), "error: two lines")
        assert_error(raising(MemoryError()), "not enough memory", "smaller -c")
        assert_error(raising(OSError(5, "Input/output error", "m.gguf")), "m.gguf: Input/output")
        assert_error(raising(OSError("strange")), "strange")

    def test_interrupts_and_closed_pipes(self, raising: Callable[..., Result]) -> None:
        assert raising(KeyboardInterrupt()).exit_code == 130
        assert raising(BrokenPipeError()).exit_code == 141

    def test_more_interrupts_change_nothing(
        self, raising: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        previous = signal.signal(signal.SIGINT, signal.default_int_handler)
        monkeypatch.setattr(
            "powerinfer.cli.main._flush_stdout", lambda: signal.raise_signal(signal.SIGINT)
        )
        try:
            result = raising(KeyboardInterrupt())
        except KeyboardInterrupt:
            pytest.fail("the second Ctrl-C came through")
        finally:
            signal.signal(signal.SIGINT, previous)
        assert result.exit_code == 130

    def test_a_bug_is_not_hidden(self, raising: Callable[..., Result]) -> None:
        result = raising(ZeroDivisionError())
        assert isinstance(result.exception, ZeroDivisionError)
