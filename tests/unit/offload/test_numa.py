"""Pinning the CPU's threads to the GPU's NUMA node, in machines made of a few files."""

import importlib.util
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

from powerinfer import LLM  # noqa: E402
from powerinfer.errors import OutOfDeviceMemoryError  # noqa: E402
from powerinfer.offload import place as placing  # noqa: E402
from powerinfer.offload.devices import Device  # noqa: E402
from powerinfer.offload.problem import placement_task  # noqa: E402
from powerinfer.ops.cpu.numa import cpus_of_node, pin_to_node  # noqa: E402
from powerinfer.ops.cpu.ops import NativeOps  # noqa: E402
from powerinfer.ops.hybrid import ops as hybrid_ops  # noqa: E402
from powerinfer.ops.hybrid.ops import HybridOps  # noqa: E402
from powerinfer.options.options import engine_options  # noqa: E402
from tiny_models import TINY_MODELS, write_model  # noqa: E402

ADDRESS = "0000:3b:00.0"
TWO_NODES = {0: "0-3,8-11", 1: "4-7,12-15"}


def make_machine(folder: Path, node: str | None, nodes: dict[int, str]) -> Path:
    """A /sys with a GPU and the CPUs of nodes, each core of which is two: n and n + 8."""
    if node is not None:
        write(folder / "bus/pci/devices" / ADDRESS / "numa_node", node)
    for number, cpus in nodes.items():
        write(folder / f"devices/system/node/node{number}/cpulist", cpus)
    for cpu in range(16):
        core = cpu % 8
        path = folder / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        write(path, f"{core},{core + 8}")
    return folder


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(text + "\n", encoding="ascii")


class Threads:
    """A CPU backend of which only the threads matter."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.pinned: set[int] | None = None

    def pin(self, cpus: frozenset[int]) -> bool:
        self.pinned = set(cpus)
        return True


def pinned(
    threads: int, sys: Path, allowed: set[int], monkeypatch: pytest.MonkeyPatch
) -> set[int] | None:
    """Where the threads are pinned to; None: nowhere."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: allowed, raising=False)
    backend = Threads(threads)
    is_pinned = pin_to_node(ADDRESS, backend, sys)  # type: ignore[arg-type]
    assert is_pinned == (backend.pinned is not None)
    return backend.pinned


ALL = set(range(16))


@pytest.mark.parametrize(
    ("node", "cpus"), [("0", {0, 1, 2, 3, 8, 9, 10, 11}), ("1", {4, 5, 6, 7, 12, 13, 14, 15})]
)
def test_threads_run_on_the_node_of_the_gpu(
    node: str, cpus: set[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sys = make_machine(tmp_path, node, TWO_NODES)
    assert cpus_of_node(ADDRESS, sys) == cpus
    assert pinned(4, sys, ALL, monkeypatch) == cpus
    # Of a process that may use some CPUs only, those of them that are near.
    assert pinned(2, sys, {1, 9, 2, 5, 13, 6}, monkeypatch) == cpus & {1, 9, 2, 5, 13, 6}


@pytest.mark.parametrize(
    ("node", "nodes"),
    [
        ("0", {0: "0-15"}),  # one node
        ("-1", TWO_NODES),  # the firmware does not say
        (None, TWO_NODES),  # the driver does not
        ("2", TWO_NODES),
        ("0", {0: "", 1: "0-15"}),  # a node of memory alone
        ("0", {}),
        ("zero", TWO_NODES),
        ("0", {0: "0-x", 1: "4-7"}),
    ],
)
def test_threads_stay_where_nodes_make_no_difference(
    node: str | None, nodes: dict[int, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sys = make_machine(tmp_path, node, nodes)
    assert not cpus_of_node(ADDRESS, sys)
    assert pinned(1, sys, ALL, monkeypatch) is None


def test_threads_stay_where_the_node_is_too_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sys = make_machine(tmp_path, "0", TWO_NODES)
    # Eight CPUs are four cores, and a thread shares no core with another.
    assert pinned(5, sys, ALL, monkeypatch) is None
    assert pinned(2, sys, {0, 8, 4, 5, 6}, monkeypatch) is None
    assert pinned(1, sys, {4, 5, 6}, monkeypatch) is None


def test_systems_without_affinity_pin_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sys = make_machine(tmp_path, "0", TWO_NODES)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert not pin_to_node(ADDRESS, Threads(1), sys)  # type: ignore[arg-type]


def test_the_address_is_what_torch_says(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    properties = SimpleNamespace(pci_domain_id=1, pci_bus_id=0xC3, pci_device_id=2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", {"cuda:1": properties}.get)

    def note(address: str, _: NativeOps) -> bool:
        asked.append(address)
        return True

    monkeypatch.setattr(hybrid_ops, "pin_to_node", note)
    gpu = SimpleNamespace(is_cuda=True, device="cuda:1")
    ops: Any = SimpleNamespace(gpu=gpu, cpu=NativeOps(1))
    assert HybridOps.pin(ops)
    assert asked == ["0001:c3:02.0"]
    del properties.pci_domain_id  # as in older versions
    assert not HybridOps.pin(ops)
    gpu.is_cuda = False
    assert not HybridOps.pin(ops)
    assert len(asked) == 1


@pytest.mark.parametrize("is_interpreted", [False, True])
def test_placing_on_a_gpu_pins_and_running_out_of_memory_unpins(
    is_interpreted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    failures = [OutOfDeviceMemoryError("no room")]

    def run_out_once(*_: object) -> None:
        events.append("tried")
        if failures:
            raise failures.pop()

    monkeypatch.setattr(HybridOps, "pin", lambda ops: events.append(f"pinned {ops.gpu.device}"))
    monkeypatch.setattr(NativeOps, "unpin", lambda _: events.append("unpinned"))
    monkeypatch.setattr(placing, "_try_out", run_out_once)
    path = write_model(tmp_path / "bamboo.gguf", TINY_MODELS["bamboo"])
    with LLM(path, device="cpu") as llm:
        loaded = llm.loaded
        options = engine_options(vram_budget="1", solver="greedy")
        parts = loaded.sparsity, loaded.file, loaded.tokenizer, options
        task = placement_task(*parts, Device("cpu", "a stand-in", is_interpreted=True))
        monkeypatch.setattr(placing, "placement_task", lambda *_: task)
        device = Device("cpu", "a stand-in", is_interpreted=is_interpreted)
        placed = placing.place(*parts, device)
        assert placed is not None
        assert placed.plan.has_anything
        del placed
    once = ["pinned cpu", "tried"]
    assert events == ([] if is_interpreted else [*once, "unpinned", *once])
