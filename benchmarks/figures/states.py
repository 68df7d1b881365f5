"""Tables of models with state in docs/speed.md, measured by `scripts/bench states`.

Files of compare.py are `states/SHAPE*.json`, whole and trunk; of operators.py, with the part of the
states in a step, `states/operators-*.json`; of next_turn.py `states/next-turn-*.json`.
"""

from collections.abc import Iterator

from figures.parts import Row, load_all, ratio_text, table

_FOLDER = "*/states"


@table(
    "states_speed",
    "model | what | ours, tokens/s | llama.cpp | better ik_llama.cpp | / llama.cpp | byte bound, "
    "tokens/s | GB per token | GB/s (plain read)",
)
def _speed() -> Iterator[Row]:
    found = [*load_all(f"{_FOLDER}/lfm2*.json"), *load_all(f"{_FOLDER}/qwen35*.json")]
    for name, result in found:
        ours = result["pairs"][0]["ours"]
        for what, row in result["against"]["llama.cpp"].items():
            ik = result["better"].get("better ik", {}).get(what)
            other = f"{result['against'][ik][what]['peer']:.1f}" if ik else "does not know it"
            cells = ("", "", "")
            if what == "decode":
                size, read = ours["bytes_per_token"], ours["read_gb_per_s"]
                rate = row["ours"] * size / 1e9
                cells = f"{1e9 * read / size:.1f}", f"{size / 1e9:.2f}", f"{rate:.1f} ({read:.1f})"
            speeds = f"{row['ours']:.1f}", f"{row['peer']:.1f}", other, ratio_text(row)
            yield name, what.replace("prefill", "prompt of"), *speeds, *cells


@table(
    "states_share",
    "model | states, ms of a step | whole step, ms | share of a step | of a prompt of 512",
)
def _share() -> Iterator[Row]:
    for name, result in load_all(f"{_FOLDER}/operators-*.json"):
        times = {row["operator"].split(":")[0]: row["ms"] for row in result["operators"]}
        share = times["states"] / times["total"]
        milliseconds = f"{times['states']:.2f}", f"{times['total']:.1f}"
        shares = f"{share:.1%}", f"{result['state_share_of_prompt']:.1%}"
        yield name.removeprefix("operators-"), *milliseconds, *shares


@table(
    "states_next_turn",
    "model | side | first token, s | of the next turn, s | tokens computed | snapshots sooner by",
)
def _next_turn() -> Iterator[Row]:
    for _, result in load_all(f"{_FOLDER}/next-turn-*.json"):
        for side, row in result["sides"].items():
            seconds = f"{row['first_s']:.2f}", f"{row['second_s']:.2f}"
            computed = f"{row['computed']} of {row['prompt']}"
            sooner = "" if side == "snapshots" else ratio_text(row["sooner"])
            yield result["model"].removesuffix(".gguf"), side, *seconds, computed, sooner
