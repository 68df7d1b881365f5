"""Requests for a GPU: budgets, devices, what is missing; the CPU alone never imports torch."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_line import assert_error, invoke
from patience import PATIENCE_S
from powerinfer.errors import DeviceError, PowerInferError, PromptError
from powerinfer.offload import devices
from powerinfer.offload.devices import find_device
from powerinfer.options.options import EngineOptions, engine_options
from powerinfer.options.vram_budget import parse_vram_budget

GIB = 1 << 30


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("8", 8 * GIB),
        ("8GiB", 8 * GIB),
        (" 0.5 gib ", GIB // 2),
        (".25", GIB // 4),
        ("512MiB", 512 << 20),
        ("512M", 512 << 20),
        ("24GB", 24 * GIB),
        ("8G", 8 * GIB),
        ("8g", 8 * GIB),
        ("1KiB", 1 << 10),
        ("0.5T", GIB << 9),
        ("1.", GIB),
    ],
)
def test_amounts(text: str, num_bytes: int) -> None:
    assert parse_vram_budget(text).of_free(7) == num_bytes


@pytest.mark.parametrize(("text", "of_1000"), [("50%", 500), ("100 %", 1000), ("0.1%", 1)])
def test_shares_are_of_what_is_free(text: str, of_1000: int) -> None:
    assert parse_vram_budget(text).of_free(1000) == of_1000


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "-1",
        "0%",
        "101%",
        "8 gb 2",
        "8TBB",
        "8i",
        "nan",
        "inf",
        "1e3",
        "8,5",
        "9" * 400,
        "0MiB",
    ],
)
def test_other_budgets_are_refused(text: str) -> None:
    with pytest.raises(PromptError, match=r"8GiB .* 50%"):
        parse_vram_budget(text)


@pytest.mark.parametrize("text", ["0.9KB", "0.5 k", "0.0000001"])
def test_a_budget_that_holds_nothing_says_what_the_least_is(text: str) -> None:
    with pytest.raises(PromptError, match=r"too small .* 1KiB"):
        parse_vram_budget(text)


@given(st.text(max_size=12))
def test_any_text_is_a_budget_or_an_error(text: str) -> None:
    try:
        budget = parse_vram_budget(text)
    except PromptError:
        return
    assert 0 < budget.of_free(1 << 40) <= 1 << 50


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "gpu"}, "device must be cpu, cuda, cuda:N or auto, got 'gpu'"),
        ({"device": "cuda:"}, "device must be"),
        ({"device": "cuda:1x"}, "device must be"),
        ({"vram_budget": "x"}, "such as 8, 8G or 8GiB"),
        ({"solver": "magic"}, "solver 'magic' is not supported"),
        ({"online": "yes"}, "online must be True or False"),
        ({"reset_gpu_index": 1}, "reset_gpu_index must be True or False"),
        ({"device": "cpu", "vram_budget": "1"}, "vram_budget is about a GPU, but device is cpu"),
        ({"device": "CPU", "solver": "greedy"}, "solver is about a GPU"),
        ({"gpu_index": 3}, "gpu_index must be the path of a file, got 3"),
        ({"gpu_index": ""}, "gpu_index must be the path of a file"),
        ({"gpu_index": "a.json", "reset_gpu_index": True}, "reset_gpu_index says not to"),
        ({"device": "cuda", "measure_recall": True}, "measure_recall runs on the CPU alone"),
        ({"vram_budget": "1", "kernels": "reference"}, "kernels='reference' runs on the CPU alone"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_options_that_make_no_sense(options: dict[str, object], message: str) -> None:
    with pytest.raises(PowerInferError, match=message):
        engine_options(**options)  # type: ignore[arg-type]


def test_no_online_is_no_wish_for_a_gpu() -> None:
    assert not EngineOptions(device="cpu", online=False).wants_gpu
    assert not EngineOptions().wants_gpu
    assert EngineOptions(online=True).wants_gpu
    assert EngineOptions(device="cuda:1").wants_gpu
    assert EngineOptions(disable_gpu_index=True).gpu_requests == ("disable_gpu_index",)


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(devices, "has_driver", lambda: False)


@pytest.mark.usefixtures("without_gpu")
def test_auto_without_a_driver_is_the_cpu() -> None:
    assert find_device(EngineOptions()) is None
    assert find_device(EngineOptions(device="cpu")) is None


@pytest.mark.usefixtures("without_gpu")
@pytest.mark.parametrize("module", ["torch", "triton"])
def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setattr(devices, "_is_installed", lambda name: name != module)
    for options in (EngineOptions(device="cuda"), engine_options(vram_budget="1")):
        with pytest.raises(DeviceError, match=rf"needs {module}, .* scripts/setup cuda .*\[cuda\]"):
            find_device(options)
    with pytest.raises(DeviceError, match="vram_budget is set"):
        find_device(engine_options(vram_budget="1"))
    # A driver without torch, and no request for a GPU: the CPU runs.
    monkeypatch.setattr(devices, "has_driver", lambda: True)
    assert find_device(EngineOptions()) is None


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    # Not imported here: that must not happen before it is told to interpret kernels.
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    if torch.cuda.is_available():
        with pytest.raises(DeviceError, match="there is no device cuda:99; torch sees: cuda:0"):
            find_device(EngineOptions(device="cuda:99"))
        return
    with pytest.raises(DeviceError, match=r"no usable CUDA device: .*device='cpu'"):
        find_device(EngineOptions(device="cuda"))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    device = find_device(engine_options(vram_budget="1"))
    assert device is not None
    assert device.name == "cpu"
    assert device.is_interpreted
    assert find_device(EngineOptions()) is None


class FakeGPU:
    """What torch.cuda says of a machine with one GPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        torch = pytest.importorskip("torch", reason="torch is not installed")
        if importlib.util.find_spec("triton") is None:
            pytest.skip("triton is not installed")
        monkeypatch.delenv("TRITON_INTERPRET", raising=False)
        monkeypatch.setattr(devices, "has_driver", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: self)
        monkeypatch.setattr(torch.version, "hip", None)
        self.version = torch.version
        self.name, self.total_memory = "NVIDIA T4", 16 * GIB
        self.major, self.minor = 7, 5


@pytest.fixture
def turing(monkeypatch: pytest.MonkeyPatch) -> FakeGPU:
    return FakeGPU(monkeypatch)


@pytest.mark.usefixtures("turing")
def test_auto_leaves_a_gpu_alone_that_is_too_old(caplog: pytest.LogCaptureFixture) -> None:
    assert find_device(EngineOptions()) is None
    (line,) = caplog.messages
    assert line == (
        "cuda:0 NVIDIA T4 has compute capability 7.5, kernels need 8.0 or newer: the CPU runs alone"
    )
    assert devices.describe_gpus() == [
        "unused: cuda:0 NVIDIA T4 has compute capability 7.5, kernels need 8.0 or newer"
    ]


@pytest.mark.usefixtures("turing")
@pytest.mark.parametrize(
    ("flags", "remedy"),
    [
        (("--device", "cuda"), "leave the option out or use --device cpu"),
        (("--vram-budget", "1"), "leave the option (--vram-budget is set) out"),
    ],
    ids=["device", "budget"],
)
def test_a_gpu_that_is_too_old_is_refused(flags: tuple[str, ...], remedy: str) -> None:
    refused = invoke("run", "-p", "a", *flags)
    assert refused.exit_code == 2
    assert_error(refused, "NVIDIA T4", "compute capability 7.5", remedy)


def test_newer_and_other_gpus_are_taken(turing: FakeGPU) -> None:
    turing.major, turing.minor = 8, 0
    found = find_device(EngineOptions(device="cuda"))
    assert found == devices.Device("cuda:0", "NVIDIA T4")
    # AMD counts its architectures otherwise.
    turing.major, turing.version.hip = 7, "6.4"
    assert find_device(EngineOptions()) == found


@pytest.mark.parametrize("command", ["run", "chat", "perplexity", "bench"])
def test_commands_explain_and_check_the_options(command: str) -> None:
    shown = " ".join(invoke(command, "--help").stdout.split())
    for part in ("--device", "--vram-budget", "--gpu-index", "--reset-gpu-index", "8GiB", "50%"):
        assert part in shown
    for part in ("--disable-gpu-index", "--no-online", "--solver", "latency", "paper", "greedy"):
        assert part in shown
    more = ("-p", "a") if command == "run" else ()
    assert_error(invoke(command, *more, "--vram-budget", "much"), "such as 8, 8G or 8GiB", "'much'")
    assert_error(invoke(command, *more, "--solver", "best"), "solver 'best'", "latency")
    clash = invoke(command, *more, "--device", "cpu", "--vram-budget", "1")
    assert clash.exit_code == 2
    if command in ("run", "bench"):  # the others want a terminal or a text first
        assert_error(clash, "--vram-budget is about a GPU, but --device is cpu")


def test_the_cpu_alone_does_not_import_torch(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from powerinfer import LLM, SamplingParams\n"
        "with LLM() as llm:\n"
        "    llm.generate('a', SamplingParams(max_tokens=2))\n"
        "print(sorted({'torch', 'triton', 'scipy'} & set(sys.modules)))\n"
    )
    if devices.has_driver():
        script = script.replace("LLM()", "LLM(device='cpu')")
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
