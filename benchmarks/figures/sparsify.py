"""Tables of docs/sparsify/experiment.md, from the report of benchmarks/sparsify.py."""

from collections.abc import Iterator

from figures.parts import Json, Row, load, part, table

__all__ = ["VARIANTS", "above", "budgets", "mean_zeros", "millions"]

VARIANTS = {
    "swiglu": "SwiGLU",
    "reglu": "ReGLU",
    "drelu": "dReLU",
    "drelu-distilled": "dReLU, distilled",
}


def _report() -> Json:
    return load("amd-epyc/sparsify/small.json")


def budgets() -> dict[int, dict[str, Json]]:
    """Runs by tokens, rising, and variant."""
    found: dict[int, dict[str, Json]] = {}
    for run in _report()["runs"]:
        if not run["is_trial"]:
            found.setdefault(int(run["recipe"]["tokens"]), {})[run["variant"]] = run
    return dict(sorted(found.items()))


def above(run: Json, reference: Json) -> float:
    """Perplexity above that of another run, in per cent."""
    return float(100 * (run["perplexity"] / reference["perplexity"] - 1))


def mean_zeros(run: Json) -> float:
    """Neurons that are zero, in per cent."""
    return float(100 * sum(run["zeros"]) / len(run["zeros"]))


def millions(count: float) -> str:
    """`4 M`."""
    return f"{count / 1e6:g} M"


def _largest() -> Iterator[tuple[str, Json]]:
    """Names and runs of the largest budget."""
    runs = list(budgets().values())[-1]
    return ((name, runs[key]) for key, name in VARIANTS.items() if key in runs)


@table("sparsify_budgets", "tokens | activation | perplexity | against SwiGLU | zeros")
def _budgets() -> Iterator[Row]:
    for tokens, runs in budgets().items():
        for key, name in VARIANTS.items():
            if key in runs:
                run = runs[key]
                change = "" if key == "swiglu" else f"{above(run, runs['swiglu']):+.2f} %"
                perplexity = f"{run['perplexity']:.3f}"
                yield millions(tokens), name, perplexity, change, f"{mean_zeros(run):.1f} %"


@table("sparsify_top")
def _top() -> Iterator[Row]:
    """The paper's Table 3: only the neurons with the largest values."""
    runs = [(name, run) for name, run in _largest() if run["top"]]
    shares = sorted({share for _, run in runs for share in run["top"]}, key=float, reverse=True)
    yield "activation", "all neurons", *(f"{100 * float(share):.0f} %" for share in shares)
    for name, run in runs:
        yield name, f"{run['perplexity']:.2f}", *(f"{run['top'][share]:.2f}" for share in shares)


@table("sparsify_layers")
def _layers() -> Iterator[Row]:
    runs = [run for run in _largest() if run[1]["variant"] != "swiglu"]
    yield "activation", *(f"layer {number}" for number in range(len(runs[0][1]["zeros"])))
    for name, run in runs:
        yield name, *(f"{100 * share:.1f} %" for share in run["zeros"])


@table("sparsify_penalties", "tokens | `--density-penalty` | perplexity | against SwiGLU | zeros")
def _penalties() -> Iterator[Row]:
    """Runs of dReLU with several penalties, at the budgets where others were tried."""
    runs = [run for run in _report()["runs"] if run["variant"] == "drelu"]
    tried = {run["recipe"]["tokens"] for run in runs if run["is_trial"]}
    keys = ("tokens", "density_penalty")
    for run in sorted(runs, key=lambda run: [run["recipe"][key] for key in keys]):
        tokens, penalty = (run["recipe"][key] for key in keys)
        if tokens in tried and (others := budgets().get(tokens)):
            change, zeros = above(run, others["swiglu"]), mean_zeros(run)
            perplexity = f"{run['perplexity']:.3f}"
            yield millions(tokens), f"{penalty:g}", perplexity, f"{change:+.2f} %", f"{zeros:.1f} %"


@part("sparsify_setting")
def _setting() -> str:
    """Model, machine and cost."""
    report = _report()
    config, base, machine = report["config"], report["base"], report["machine"]
    start = {run["variant"]: run["start"] for run in report["runs"]}["drelu"]
    return (
        f"The model: hidden size {config['hidden_size']}, {config['num_hidden_layers']} layers of "
        f"{config['intermediate_size']} neurons, {config['vocab_size']} tokens; trained as SwiGLU "
        f"on {millions(base['recipe']['tokens'])} tokens to a held-out perplexity of "
        f"{base['perplexity']:.2f}. With dReLU in place of its SwiGLU it has "
        f"{start['perplexity']:.2f} before any training, at {mean_zeros(start):.1f} % zeros.\n"
        f"{machine['cpu']}, torch {machine['torch']}: {report['cpu_seconds'] / 60:.0f} CPU minutes "
        f"for the {len(report['runs']) + 1} runs, scoring among them.\n"
    )
