"""Commands on models with experts: what they say of them, and packing."""

import json
from pathlib import Path

import pytest

from command_line import invoke, run_json
from powerinfer.gguf import open_gguf
from tiny_models import TINY_EXPERTS, wide, write_model

RELU = "mixtral-relu-biases"
FEW = ("-p", "ab", "-n", "4", "--temp", "0", "--ignore-eos")


def written(folder: Path, name: str) -> Path:
    """A tiny model with experts, 4 of which 2 are used."""
    return write_model(folder / f"{name}.gguf", TINY_EXPERTS[name])


def expert_bytes(path: Path) -> int:
    return sum(t.num_bytes for t in open_gguf(path).tensors.values() if "_exps.weight" in t.name)


def test_inspect_and_run_say_how_many_experts_a_token_reads(tmp_path: Path) -> None:
    path = written(tmp_path, "mixtral")
    said = "2 of 4 experts per token, which reads 50.0 % of their 144.0 KiB"
    shown = invoke("inspect", path).stdout.splitlines()
    assert [line.split("  ", 1)[1].strip() for line in shown if line.startswith("experts ")] == [
        said
    ]
    ran = invoke("run", "-m", path, *FEW)
    assert ran.exit_code == 0, ran.output
    assert f"silu FFN, {said}, sparsity off" in ran.stderr
    expected = {
        "count": 4,
        "used": 2,
        "bytes": 2 * 3 * 4 * 48 * 32 * 4,
        "share_read": 0.5,
        "bytes_read": 3 * 4 * 48 * 32 * 4,
    }
    assert expected["bytes"] == expert_bytes(path)
    assert json.loads(invoke("inspect", path, "--json").stdout)["experts"] == expected
    report = run_json("run", "-m", path, *FEW)
    assert report["experts"] == expected
    assert report["active_share"] == 1


def test_single_experts_are_said_to_be_what_merged_ones_are(tmp_path: Path) -> None:
    merged, single = written(tmp_path, "mixtral"), written(tmp_path, "mixtral-single")
    reports = [json.loads(invoke("inspect", path, "--json").stdout) for path in (merged, single)]
    assert reports[0]["experts"] == reports[1]["experts"]
    assert reports[0]["ffn"] == reports[1]["ffn"]


def test_bench_and_perplexity_report_experts(tmp_path: Path) -> None:
    path = written(tmp_path, RELU)
    text = tmp_path / "text.txt"
    text.write_text("once upon a time there was a tiny model " * 4)
    bench = run_json("bench", "-m", path, "--prefill", "8", "--decode", "2", "--repeats", "1")
    assert (bench["experts"]["count"], bench["experts"]["used"]) == (4, 2)
    scored = run_json("perplexity", "-m", path, "-f", text, "-c", "32")
    assert scored["experts"] == bench["experts"]
    assert 0 < scored["active_share"] < 1
    off = run_json("perplexity", "-m", path, "-f", text, "-c", "32", "--sparsity", "off")
    assert off["active_share"] == 1
    assert off["perplexity"] == pytest.approx(scored["perplexity"], rel=1e-4)


def test_packed_experts_skip_rows_of_down_and_say_the_same(tmp_path: Path) -> None:
    plain, packed = written(tmp_path, RELU), tmp_path / "packed.gguf"
    result = invoke("pack", plain, "-o", packed)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{packed}: layout rows, 4 tensors packed, exact\n"
    advice = "down is stored by columns and read whole, 33.3 % of the FFN's bytes"
    assert invoke("run", "-m", plain, *FEW).stderr.count(advice) == 1
    assert advice not in invoke("run", "-m", packed, *FEW).stderr
    before, after = (run_json("run", "-m", path, *FEW) for path in (plain, packed))
    assert after["token_ids"] == before["token_ids"]
    assert after["bytes_per_token"] < before["bytes_per_token"]
    assert after["active_share"] == pytest.approx(before["active_share"], rel=0.05)
    off = run_json("run", "-m", packed, *FEW, "--sparsity", "off")
    assert off["token_ids"] == before["token_ids"]
    assert off["bytes_per_token"] > before["bytes_per_token"]


@pytest.mark.parametrize(
    ("format_name", "stored_as"),
    [("q4_0", "q4_0"), ("q8_0", "q8_0"), ("mxfp4", "mxfp4"), ("q4_k", "q8_0")],
)
def test_exact_equals_off_on_packed_blocks(
    tmp_path: Path, format_name: str, stored_as: str
) -> None:
    """The file packed last says how far it is from its source; skipping adds nothing to that."""
    plain, packed = tmp_path / "plain.gguf", tmp_path / "packed.gguf"
    write_model(plain, wide(TINY_EXPERTS[RELU], format_name))
    result = invoke("pack", plain, "-o", packed)
    assert result.exit_code == 0, result.output
    assert 0 < float(result.stdout.rsplit(" ", 1)[1]) < 0.15
    down = open_gguf(packed).tensors["blk.0.ffn_down_exps_t.weight"]
    assert (down.shape, down.format) == ((4, 512, 256), stored_as)
    exact, off = (
        run_json("run", "-m", packed, *FEW, "--sparsity", sparsity) for sparsity in ("exact", "off")
    )
    assert exact["token_ids"] == off["token_ids"]
    assert exact["bytes_per_token"] < off["bytes_per_token"]


def test_packing_silu_experts_says_that_nothing_can_be_skipped(tmp_path: Path) -> None:
    result = invoke("pack", written(tmp_path, "mixtral"), "-o", tmp_path / "packed.gguf")
    assert result.exit_code == 0, result.output
    assert "no neuron can be skipped with the FFN activation silu" in result.stderr


def test_single_experts_are_packed_into_the_merged_models_file(tmp_path: Path) -> None:
    """Both files give the same text, packed or not."""
    paths = [written(tmp_path, "mixtral"), written(tmp_path, "mixtral-single")]
    packed = [path.with_suffix(".packed") for path in paths]
    for path, output in zip(paths, packed, strict=True):
        assert invoke("pack", path, "-o", output, "--activation", "relu").exit_code == 0
    merged, single = (open_gguf(path).tensors for path in packed)
    assert set(merged) == set(single)
    for name, tensor in merged.items():
        assert tensor.data.tobytes() == single[name].data.tobytes()
    texts = [
        run_json("run", "-m", path, *FEW, "--activation", "relu") for path in (*paths, *packed)
    ]
    assert len({tuple(text["token_ids"]) for text in texts}) == 1


def test_an_incomplete_set_of_experts_is_not_packed(tmp_path: Path) -> None:
    path = written(tmp_path, "mixtral-single")
    data = path.read_bytes()
    path.write_bytes(data.replace(b"blk.1.ffn_up.2.weight", b"blk.1.ffn_xx.2.weight"))
    result = invoke("pack", path, "-o", tmp_path / "packed.gguf")
    assert result.exit_code == 2
    assert "expert 2 is missing beside blk.1.ffn_up.3.weight" in result.stderr
    assert result.stderr.count("\n") == 1
