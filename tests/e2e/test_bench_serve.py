"""`powerinfer bench serve` on the model of the package."""

import pytest

from command_line import assert_error, invoke, run_json


@pytest.mark.slow
@pytest.mark.measured
def test_clients_are_measured() -> None:
    report = run_json(
        "bench", "serve", "--clients", "1,2", "--repeats", "1", "-n", "6", "--prompt-tokens", "5",
        "-t", "1", "--settings", "exact",
    )  # fmt: skip
    assert list(report["clients"]) == ["1", "2"]
    side = report["clients"]["2"]["exact"]
    assert side["tokens_per_s"] > 0
    assert 0 < side["first_token_s"] < 60
    assert len(side["rounds_tokens_per_s"]) == 1


def test_mistakes_are_one_line() -> None:
    assert_error(invoke("bench", "serve", "--clients", "1,none"), "list of numbers of clients")
    assert_error(invoke("bench", "serve", "-c", "64", "-n", "60"), "-c 64 is too small")
    assert_error(invoke("bench", "serve", "--plain", "x.gguf"), "give --peer too")
    assert_error(invoke("bench", "server"), "server")


def test_bench_goes_on_working_alone() -> None:
    report = run_json("bench", "--prefill", "8", "--decode", "2", "--repeats", "1", "-t", "1")
    assert report["decode_tokens_per_s"] > 0
    assert "bench serve" in invoke("bench", "--help").output
    assert "--peer" in invoke("bench", "serve", "--help").output
