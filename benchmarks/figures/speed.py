"""Tables of docs/speed.md.

Results of dense and sparse models are in `amd-zen4` (`scripts/bench peers`), those of mixtures of
experts in `amd-zen5` (`scripts/bench experts`). Which program of benchmarks/ wrote them:

    llama-7b-*, avx2-llama-7b-*, experts    compare.py with all peers
    relullama-*                             compare.py --sparsity, decode
    prompts-*                               compare.py --sparsity --no-peer, prompts
    steps-*, loaded                         step_rows.py, loaded.py
    families/                               compare.py, --sparsity where its name says so
"""

import statistics
from collections.abc import Iterable, Iterator

from figures.parts import FORMATS, Json, Row, load, load_all, load_model, part, ratio_text, table

_ROWS = ("2", "4", "8", "16", "32")
_EXPERTS = {
    "smallthinker-4b": "SmallThinker-4B",
    "smallthinker-21b": "SmallThinker-21B",
    "turbosparse-mixtral": "TurboSparse-Mixtral",
    "qwen3moe-30b-a3b": "Qwen3-30B-A3B",
    "gpt-oss-20b": "gpt-oss-20b",
}


def _amd(prefix: str) -> list[tuple[str, Json]]:
    """Formats and results of the files with this prefix."""
    found = [
        (result["model"].split(".")[0].rsplit("-", 1)[1], result)
        for _, result in load_all(f"amd-zen4/{prefix}*.json")
    ]
    found.sort(key=lambda pair: -FORMATS.index(pair[0]))
    return [(form.upper(), result) for form, result in found]


def _experts() -> Iterator[tuple[str, Json]]:
    """Names and results of mixtures of experts."""
    for model, name in _EXPERTS.items():
        for layers, form, result in load_model(model, "amd-zen5"):
            yield f"{name}, {layers} layers, {form}", result


def _text(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _speeds(found: Json) -> Row:
    return f"{found['ours']:.1f}", f"{found['peer']:.1f}"


def _medians(result: Json, *keys: str) -> list[float]:
    """Medians of our figures over the rounds."""
    return [statistics.median(pair["ours"][key] for pair in result["pairs"]) for key in keys]


def _against_peers(result: Json) -> Iterator[tuple[str, Json, str, Json | None]]:
    """Subject, row against llama.cpp, and name and row of the faster ik_llama.cpp."""
    against = result.get("against", {})
    for what, found in against.get("llama.cpp", {}).items():
        ik = result["better"].get("better ik", {}).get(what) or ""
        yield what.replace("prefill", "prompt of"), found, ik, against[ik][what] if ik else None


def _amd_dense(prefix: str) -> Iterator[Row]:
    for name, result in _amd(prefix):
        for what, found, ik_name, ik in _against_peers(result):
            peer = f"{ik['peer']:.1f}" if ik else ""
            peer += ", `-rtr`" if ik_name == "ik_llama.cpp -rtr" else ""
            yield name, what, *_speeds(found), peer, ratio_text(found), ratio_text(ik)


_DENSE = "format | what | ours, tokens/s | llama.cpp | ik_llama.cpp | / llama.cpp | / ik_llama.cpp"
table("amd_dense", _DENSE)(lambda: _amd_dense("llama-7b-"))
table("amd_dense_avx2", _DENSE)(lambda: _amd_dense("avx2-llama-7b-"))


@table("amd_bandwidth", "format | GB per token | decode, GB/s | best plain read, GB/s | share")
def _bandwidth() -> Iterator[Row]:
    for name, result in _amd("llama-7b-"):
        if "bytes_per_token" in result["pairs"][0]["ours"]:
            size, rate, read, share = _medians(
                result, "bytes_per_token", "gb_per_s", "read_gb_per_s", "read_share"
            )
            yield name, f"{size / 1e9:.2f}", f"{rate:.1f}", f"{read:.1f}", f"{share:.0%}"


@table(
    "amd_sparse",
    "format | kind | predicted | active | GB/s (plain read) | ours, tokens/s | llama.cpp "
    "| / llama.cpp | / our dense | byte bound",
)
def _sparse() -> Iterator[Row]:
    for name, result in _amd("relullama-"):
        for kind, row in result["kinds"].items():
            decode = row["against"]["llama.cpp"]["decode"]
            yield (
                name,
                f"`{kind}`",
                _text(row["predicted_share"], 3),
                _text(row["active_share"], 3),
                f"{row['gb_per_s']:.1f} ({row['read_gb_per_s']:.1f})",
                *_speeds(decode),
                ratio_text(decode),
                _text(row["against"].get("dense", {}).get("decode", {}).get("ratio")),
                _text(row["bound"]),
            )


@table("amd_prompts", "format | kernels | kind | prompt | tokens/s | dense, tokens/s | / our dense")
def _prompts() -> Iterator[Row]:
    for name, result in _amd("prompts-"):
        for kind, row in result["kinds"].items():
            for what, found in row["against"].get("dense", {}).items():
                length = what.removeprefix("prefill ")
                cells = (name, result["kernels"], f"`{kind}`", length)
                yield *cells, *_speeds(found), ratio_text(found)


@table("amd_steps", f"format | kernels | one token, ms | {' | '.join(_ROWS)}")
def _steps() -> Iterator[Row]:
    for name, result in sorted(_amd("steps-"), key=lambda each: each[1]["kernels"] != "avx512"):
        steps = result["steps"]
        cells = (_text(steps[n]["of_one"]) if n in steps else "" for n in _ROWS)
        yield name, result["kernels"], f"{steps['1']['ms']:.1f}", *cells


@part("amd_loaded")
def _loaded() -> str:
    shares = [loaded / idle for idle, loaded in load("amd-zen4/loaded.json")["pairs"]]
    return (
        "With one spinning process per core beside it, decode (Q4_0) keeps "
        f"{statistics.median(shares):.2f} ({min(shares):.2f}-{max(shares):.2f}) of its idle "
        "speed.\n"
    )


_SPARSE_COLUMNS = (
    "model | kind | what | active | GB/s (plain read) | ours, tokens/s | llama.cpp "
    "| / llama.cpp | / our dense | byte bound"
)


@table("experts_sparse", _SPARSE_COLUMNS)
def _experts_sparse() -> Iterator[Row]:
    return _sparse_rows(_experts())


@table(
    "families_sparse",
    _SPARSE_COLUMNS.replace("/ our dense", "/ our dense | / our dense, plain file"),
)
def _families_sparse() -> Iterator[Row]:
    return _sparse_rows(load_all("*/families/*-sparse.json"), ("dense", "dense, plain file"))


def _sparse_rows(
    results: Iterable[tuple[str, Json]], bases: tuple[str, ...] = ("dense",)
) -> Iterator[Row]:
    for name, result in results:
        for kind, row in result.get("kinds", {}).items():
            for what, found in row["against"].get("llama.cpp", {}).items():
                active = rate = bound = ""
                if what == "decode":
                    active, bound = _text(row["active_share"]), _text(row["bound"])
                    rate = f"{row['gb_per_s']:.1f} ({row['read_gb_per_s']:.1f})"
                own = (row["against"].get(base, {}).get(what, {}).get("ratio") for base in bases)
                label = name.removesuffix("-sparse"), f"`{kind}`"
                cells = (*label, what.replace("prefill", "prompt of"), active, rate)
                yield *cells, *_speeds(found), ratio_text(found), *map(_text, own), bound


@table(
    "experts_dense",
    "model | what | GB/s (plain read) | ours, tokens/s | llama.cpp | ik_llama.cpp "
    "| / llama.cpp | / ik_llama.cpp",
)
def _experts_dense() -> Iterator[Row]:
    for name, result in _experts():
        for what, found, _, ik in _against_peers(result):
            rate = ""
            if what == "decode":
                rate = "{:.1f} ({:.1f})".format(*_medians(result, "gb_per_s", "read_gb_per_s"))
            peer = f"{ik['peer']:.1f}" if ik else ""
            yield name, what, rate, *_speeds(found), peer, ratio_text(found), ratio_text(ik)


@table(
    "families_dense",
    "model | what | ours, tokens/s | llama.cpp | / llama.cpp | GB per token | GB/s (plain read)",
)
def _families_dense() -> Iterator[Row]:
    for name, result in load_all("*/families/*.json"):
        for what, found, _, _ in _against_peers(result):
            size = rate = ""
            if what == "decode":
                moved, reached, read = _medians(
                    result, "bytes_per_token", "gb_per_s", "read_gb_per_s"
                )
                size, rate = f"{moved / 1e9:.2f}", f"{reached:.1f} ({read:.1f})"
            yield name, what, *_speeds(found), ratio_text(found), size, rate
