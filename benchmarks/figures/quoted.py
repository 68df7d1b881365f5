"""The parts of pages that quote figures, made from the results.

A page marks such a part with a line `<!-- scripts/make-pages: NAME -->` before it and a line
`<!-- end -->` behind it.
"""

import re
from collections.abc import Callable, Iterable, Iterator

from figures import models
from figures.amd import AMD_PARTS
from figures.experts import EXPERT_PARTS
from figures.measured import FORMAT_NAMES, MODEL_NAMES, Measured, Pair, Rates
from figures.quality import QUALITY_PARTS
from figures.serving import SERVING_PARTS
from figures.sparsify import SPARSIFY_PARTS

__all__ = ["fill"]

_PART = re.compile(r"(<!-- scripts/make-pages: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

_PEERS = ("llama.cpp", "original")


def fill(page: str, measured: Measured) -> str:
    """The page with its marked parts made anew.

    Raises:
        KeyError: a mark names no part.
    """
    return _PART.sub(lambda mark: mark[1] + _PARTS[mark[2]](measured) + mark[3], page)


def _headline(measured: Measured) -> str:
    fired = [100 * pair.active for pair in measured.intel]
    f16, q4_0 = (
        [pair.ratio.value for pair in measured.intel if pair.format == format_]
        for format_ in ("f16", "q4_0")
    )
    q4_0_rates = measured.original["relullama-7b", "q4_0", "decode"]
    f16_rates = measured.original["relullama-7b", "f16", "decode"]
    dense = [pair.ratio.value for pair in measured.intel_dense]
    peers = [
        f"(llama.cpp {_range(rates['llama.cpp'])}, the original {_range(rates['original'])})"
        for rates in (q4_0_rates, f16_rates)
    ]
    return (
        f"- **Intel Xeon, 2 cores, against llama.cpp:** models in which {_span(fired, 0)} % of the "
        f"neurons fire decode\n  {_span(f16)} times as fast in F16 and {_span(q4_0)} times in "
        "Q4_0.\n"
        "- **AMD Zen 5, 2 cores, against llama.cpp and the original PowerInfer:** 12 of the 32 "
        f"layers of ReluLLaMA-7B\n  decode {_quote(q4_0_rates['ours'])} tokens/s in Q4_0 "
        f"{peers[0]} and {_quote(f16_rates['ours'])} in F16\n  {peers[1]}.\n"
        "- **An ordinary Llama (SwiGLU) has nothing to skip:** it decodes at "
        f"{_span(dense)} times llama.cpp's speed on the Intel\n  machine and at "
        f"{_span(_amd_ratios(measured, 'decode'))} times on an AMD Zen 4, where prompts run at "
        f"{_span(_amd_ratios(measured, 'prefill 128'))} times.\n"
    )


def _amd_ratios(measured: Measured, what: str) -> list[float]:
    """Our speed over llama.cpp's for an ordinary model in all formats."""
    return [
        rates["ours"].value / rates["llama.cpp"].value
        for (_, found), rates in measured.amd_dense.items()
        if found == what
    ]


def _sparse_table(measured: Measured) -> str:
    rows = (
        (
            f"{MODEL_NAMES[pair.model]}, {pair.layers} layers",
            FORMAT_NAMES[pair.format],
            f"{100 * pair.active:.0f} %",
            f"{pair.ours:.1f}",
            f"{pair.peer:.1f}",
            _ratio(pair.ratio),
        )
        for pair in measured.intel
    )
    headings = ("shape", "format", "neurons that fire", "tokens/s", "llama.cpp", "ratio (range)")
    return _table(headings, *rows)


def _original_table(measured: Measured) -> str:
    headings = ("format", "ours", "llama.cpp", "original", "ours / llama.cpp", "ours / original")
    rows = (
        (
            FORMAT_NAMES[format_],
            f"{_range(rates['ours'])}, quoted {_quote(rates['ours'])}",
            _range(rates["llama.cpp"]),
            _range(rates["original"]),
            *(f"{rates['ours'].value / rates[peer].value:.2f}" for peer in _PEERS),
        )
        for (_, format_, _), rates in measured.original.items()
    )
    return _table(headings, *rows)


def _dense_table(measured: Measured) -> str:
    headings = (
        "machine",
        "format",
        "what",
        "ours",
        "llama.cpp",
        "ik_llama.cpp",
        "ours / llama.cpp",
    )
    return _table(headings, *_intel_dense(measured.intel_dense), *_amd_dense(measured))


def _intel_dense(pairs: Iterable[Pair]) -> Iterator[tuple[str, ...]]:
    for pair in pairs:
        if pair.prompt:
            yield _intel_row(pair, "prompt of 128", *pair.prompt)
    for pair in pairs:
        yield _intel_row(pair, "decode", pair.ours, pair.peer, pair.ratio.value)


def _intel_row(pair: Pair, what: str, ours: float, peer: float, ratio: float) -> tuple[str, ...]:
    speeds = (f"{ours:.1f}", f"{peer:.1f}", "", f"{ratio:.2f}")
    return ("Intel", FORMAT_NAMES[pair.format], what, *speeds)


def _amd_dense(measured: Measured) -> Iterator[tuple[str, ...]]:
    for (format_, what), rates in measured.amd_dense.items():
        ours, peer = rates["ours"], rates["llama.cpp"]
        # The better of its two ways to lay out the weights.
        other = max(
            (found for engine, found in rates.items() if engine.startswith("ik_")),
            key=lambda found: found.value,
            default=None,
        )
        yield (
            "AMD",
            FORMAT_NAMES[format_],
            what.replace("prefill", "prompt of"),
            _range(ours),
            _range(peer),
            _range(other) if other else "",
            f"{ours.value / peer.value:.2f}",
        )


def _alone(part: Callable[[], str]) -> Callable[[Measured], str]:
    return lambda _: part()


_FROM_OWN_FILES = AMD_PARTS | EXPERT_PARTS | QUALITY_PARTS | SERVING_PARTS | SPARSIFY_PARTS
_PARTS: dict[str, Callable[[Measured], str]] = {
    "headline": _headline,
    "sparse": _sparse_table,
    "original": _original_table,
    "dense": _dense_table,
    "models": lambda measured: _table(*models.short_rows(measured)),
    "all_models": lambda measured: _table(*models.long_rows(measured)),
    **{name: _alone(part) for name, part in _FROM_OWN_FILES.items()},
}


def _table(headings: tuple[str, ...], *rows: tuple[str, ...]) -> str:
    lines = [headings, ("---",) * len(headings), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines).replace("|  |", "| |")


def _span(values: Iterable[float], digits: int = 1) -> str:
    """`1.7 to 3.7`."""
    found = sorted(values)
    return f"{found[0]:.{digits}f} to {found[-1]:.{digits}f}"


def _ratio(rates: Rates) -> str:
    return f"**{rates.value:.2f}** ({rates.low:.2f}-{rates.high:.2f})"


def _range(rates: Rates) -> str:
    """`22.5 to 24.9`, or one number where only one was measured."""
    low, high = f"{rates.low:.3g}", f"{rates.high:.3g}"
    return low if low == high else f"{low} to {high}"


def _quote(rates: Rates) -> str:
    return f"{rates.value:.3g}"
