"""What `bench serve` makes of what it measured."""

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from powerinfer.bench.serving.client import Stream, complete, random_prompt
from powerinfer.bench.serving.plan import PEER, ServingPlan
from powerinfer.bench.serving.rounds import Load, byte_bound, p99, ratio
from powerinfer.bench.serving.server import Server, missing_instruction_sets, running, system_info
from powerinfer.errors import PowerInferError
from powerinfer.gguf import open_gguf
from tiny_models import TINY_MODELS, write_model

SYSTEM_INFO = "n_threads = 2 / 2 | CPU : SSE3 = 1 | AVX2 = 1 | F16C = 1 | FMA = 1 | AVX512 = 1 | "


def test_a_peer_lacks_what_the_processor_has_and_it_was_not_built_with(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor : 0\nflags\t\t: fpu avx2 fma f16c avx512f avx512_vnni\n")
    assert missing_instruction_sets(SYSTEM_INFO, cpuinfo) == ["AVX512_VNNI"]
    assert missing_instruction_sets(SYSTEM_INFO + "AVX512_VNNI = 1 |", cpuinfo) == []
    assert missing_instruction_sets(SYSTEM_INFO.replace("AVX2 = 1", "AVX2 = 0"), cpuinfo) == [
        "AVX2",
        "AVX512_VNNI",
    ]
    assert missing_instruction_sets("", tmp_path / "none") == []


def test_the_last_part_of_a_log_line_is_the_system_info() -> None:
    server = Server("http://127.0.0.1:1", f"started\n0.1 I system_info: {SYSTEM_INFO}\nready\n")
    assert system_info(server) == SYSTEM_INFO.strip()
    assert system_info(Server("", "started")) == ""


def test_gaps_lie_between_pieces() -> None:
    stream = Stream(10.0, [10.5, 10.75, 11.75], 3)
    assert stream.first_token_s == 0.5
    assert stream.gaps_s == [0.25, 1.0]


def test_one_of_a_hundred_exceeds_p99() -> None:
    assert p99([float(i) for i in range(1000)]) == 990
    assert p99([2.0]) == 2.0
    assert p99([]) is None


_EVENT = b'data: {"choices": [{"text": "a"}], "usage": {"completion_tokens": 2}}\n\n'


def _completed(
    answer: Callable[[asyncio.StreamWriter], Awaitable[None]],
    *,
    is_stopped: bool = False,
    model: str | None = None,
) -> Stream:
    """Complete a prompt at a server that answers so, and must be asked for `model`."""

    async def go() -> Stream:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            asked.append(json.loads(await reader.readuntil(b"}}")).get("model"))
            await answer(writer)
            writer.close()
            ended.set()

        ended = asyncio.Event()
        asked: list[str | None] = []
        server = await asyncio.start_server(handle, "127.0.0.1")
        stop = asyncio.Event() if is_stopped else None
        if stop is not None:
            stop.set()
        async with server:
            port = server.sockets[0].getsockname()[1]
            try:
                address = f"http://127.0.0.1:{port}"
                return await complete(address, [1], 2, model=model, stop=stop)
            finally:
                await ended.wait()
                assert asked == [model]

    return asyncio.run(go())


def test_a_client_reads_until_the_server_closes_the_connection() -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(_EVENT)
        await asyncio.sleep(0.02)
        writer.write(_EVENT + b"data: [DONE]\n\n")

    for model in (None, "two"):
        stream = _completed(answer, model=model)
        assert (len(stream.arrivals_s), stream.num_tokens) == (2, 2)
        assert stream.gaps_s[0] > 0


def test_a_client_leaves_a_stream_once_it_is_told_to() -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        for _ in range(3):
            writer.write(_EVENT)
            await asyncio.sleep(0.02)

    assert len(_completed(answer, is_stopped=True).arrivals_s) == 1


def test_a_connection_that_breaks_is_an_error() -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        connection: socket.socket = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    with pytest.raises(PowerInferError, match="did not answer completely"):
        _completed(answer)


def test_ratios_are_taken_round_by_round() -> None:
    found = ratio([2.0, 30.0, 8.0], [1.0, 10.0, 2.0])
    assert found == {"ratio": 3.0, "ratio_min": 2.0, "ratio_max": 4.0}


def test_no_two_prompts_are_the_same() -> None:
    load = Load(3, 8, 4, 2, 400)
    prompts = [
        tuple(each) for number in (0, 1) for side in (0, 1) for each in load.prompts(number, side)
    ]
    assert len(set(prompts)) == len(prompts) == 12
    assert all(200 <= token < 400 for prompt in prompts for token in prompt)
    assert random_prompt((1, 2), 5, 900) == random_prompt((1, 2), 5, 900)


def test_bounds_count_the_rows_of_the_union(tmp_path: Path) -> None:
    write_model(tmp_path / "tiny.gguf", TINY_MODELS["llama-relu"])
    file = open_gguf(tmp_path / "tiny.gguf")
    sizes = {name: tensor.num_bytes for name, tensor in file.tensors.items()}
    gate = sum(size for name, size in sizes.items() if "ffn_gate." in name)
    rest = sum(size for name, size in sizes.items() if "ffn_up." in name or "ffn_down." in name)
    dense = sum(sizes.values()) - sizes["token_embd.weight"]
    assert byte_bound(file, "off", None) == 1
    assert byte_bound(file, "exact", 0.25) == pytest.approx(dense / (dense - 0.75 * rest))
    assert byte_bound(file, "mlp", 0.25) == pytest.approx(dense / (dense - 0.75 * (rest + gate)))
    assert byte_bound(file, "exact", None) is byte_bound(file, "sign", 0.5) is None


def test_a_server_that_ends_at_once_is_named_with_what_it_said() -> None:
    with (
        pytest.raises(PowerInferError, match="ended at once: no such model"),
        running(["sh", "-c", "echo no such model; exit 1"]),
    ):
        pass
    with (
        pytest.raises(PowerInferError, match="cannot start /no/such/program"),
        running(["/no/such/program"]),
    ):
        pass


def test_every_server_has_the_same_room(tmp_path: Path) -> None:
    model, peer = tmp_path / "m.gguf", tmp_path / "llama-server"
    plan = ServingPlan(
        model, ("off", "mlp"), peer, None, (4,), 32, 64, 1, 512, 2, has_scenarios=False
    )
    commands = plan.commands(4)
    assert list(commands) == ["off", "mlp", PEER]
    assert commands["mlp"][-4:] == ["--sparsity", "mlp", "-m", str(model)]
    assert commands[PEER] == [str(peer), "-m", str(model), "-t", "2", "-np", "4", "-c", "2048"]
