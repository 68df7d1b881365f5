"""Tables of docs/serving/speed.md: what `powerinfer bench serve --json` printed."""

from collections.abc import Iterator

from figures.parts import Json, Row, load, part, ratio_text, table

PEER = "llama-server"
REAL_MODEL = "intel-xeon-avx512/real-models/serve.json"


def _reports() -> Iterator[tuple[str, Json]]:
    for name in ("q4_0", "f16"):
        yield name.upper(), load(f"amd-zen5/serve/relullama-7b-8L-{name}.json")


def _sides() -> Iterator[tuple[Row, str, Json]]:
    """First cells of a row, kind of the server, and its figures."""
    for name, report in _reports():
        for number, sides in report["clients"].items():
            for kind, side in sides.items():
                yield (name, number, kind if kind == PEER else f"`{kind}`"), kind, side


@table(
    "serve_speed",
    f"format | clients | server | tokens/s | / {PEER} | / our dense | union | byte bound",
)
def _speeds() -> Iterator[Row]:
    for cells, kind, side in _sides():
        against = side["against"]
        shares = (None if kind == "off" else side[key] for key in ("union_share", "byte_bound"))
        yield (
            *cells,
            f"{side['tokens_per_s']:.1f}",
            ratio_text(against.get(PEER)),
            f"{against['off']['ratio']:.2f}" if "off" in against else "",
            *("" if share is None else f"{share:.2f}" for share in shares),
        )


@table(
    "serve_real_model",
    f"clients | server | tokens/s | / {PEER} | first token, ms | gap, ms | p99, ms",
)
def _real_model() -> Iterator[Row]:
    for number, sides in load(REAL_MODEL)["clients"].items():
        for kind, side in sides.items():
            name = PEER if kind == PEER else "`powerinfer serve`"
            speed = f"{side['tokens_per_s']:.0f}", ratio_text(side["against"].get(PEER))
            times = (side[key] for key in ("first_token_s", "gap_s", "gap_p99_s"))
            yield number, name, *speed, *(f"{1e3 * s:.1f}" for s in times)


@table("serve_latency", "format | clients | server | first token, ms | gap, ms | p99, ms")
def _latency() -> Iterator[Row]:
    for cells, _, side in _sides():
        times = (side[key] for key in ("first_token_s", "gap_s", "gap_p99_s"))
        yield *cells, *("" if s is None else f"{1e3 * s:.0f}" for s in times)


@table(
    "serve_scenarios",
    "format | kind | one stream / `bench` | gap of three streams, ms | largest beside a long "
    "prompt, ms | its first token / alone | second turn sooner by",
)
def _scenarios() -> Iterator[Row]:
    for name, report in _reports():
        for kind, found in report.get("scenarios", {}).items():
            long, turn = found["long_prompt"], found["second_turn"]
            yield (
                name,
                f"`{kind}`",
                f"{found['single_tokens_per_s'] / found['bench_tokens_per_s']:.3f}",
                f"{1e3 * long['streams_gap_before_s']:.0f}",
                f"{1e3 * long['streams_largest_gap_s']:.0f}",
                f"{long['first_token_beside_s'] / long['first_token_alone_s']:.2f}",
                f"{turn['first_token_of_fresh_prompt_s'] / turn['first_token_s']:.1f}",
            )


@part("serve_peer")
def _peer() -> str:
    infos = (report.get("peer_system_info") for _, report in _reports())
    return f"```text\n{next(filter(None, infos))}\n```\n"
