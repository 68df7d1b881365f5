"""Sparse decode and prefill against llama.cpp and against our own dense, with byte bounds."""

import argparse
import statistics
from pathlib import Path
from typing import Any

from bounds import ModelBytes, bytes_of_file, densities, sparse_bytes
from comparing.sides import (
    Run,
    alternate,
    drop_cached_pages,
    original_command,
    our_command,
    peer_command,
    rates,
    ratio,
)
from planting.shapes import SHAPES
from powerinfer.gguf import GGUFFile, open_gguf

__all__ = ["compare_sparse", "print_sparse"]

PEER, ORIGINAL, DENSE, PLAIN = "llama.cpp", "original", "dense", "dense, plain file"
# What the comparison with llama.cpp means where it does not compute the same function.
CAVEATS = {
    "llama": "llama.cpp runs the plain file with SiLU: equal bytes, speed only",
    "bamboo": "llama.cpp knows no dReLU: it runs a llama file of equal bytes with SiLU, speed only",
    "falcon": "llama.cpp runs the plain Falcon file with GELU: equal bytes, speed only",
    "smallthinker": "",
    "opt": "llama.cpp does not know OPT: it runs a llama-shaped file of equal bytes, speed only",
}
_PLANTED = "powerinfer.synthetic."


def compare_sparse(model: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run all sides in turns and summarise.

    Args:
        model: a file with neuron rows (`ffn_down_t`).
        options: of compare.py.
    """
    sides = {} if options.no_peer else {PEER: peer_command(options.plain, options)}
    if options.original:
        sides[ORIGINAL] = original_command(model, options)
    sides[DENSE] = our_command(model, options, "off")
    if options.dense_plain:
        sides[PLAIN] = our_command(options.plain, options, "off")
    sides |= {kind: our_command(model, options, kind) for kind in options.sparsity}
    drop_cached_pages(model, *([] if options.no_peer else [options.plain]))
    rounds = alternate(model.name, sides, options.pairs)
    file = open_gguf(model)
    size = bytes_of_file(file)
    references = [side for side in (PEER, ORIGINAL, DENSE, PLAIN) if side in sides]
    kinds = {}
    for kind in (DENSE, *options.sparsity):
        kinds[kind] = {
            "against": {side: _ratios(rounds, kind, side) for side in references if side != kind},
            **_bytes(file, size, kind, [each[kind] for each in rounds]),
        }
        if options.head_apart and not options.no_peer:
            kinds[kind]["head_apart"] = _head_apart(file, size, rounds, kind, kinds[kind]["bound"])
    architecture = file.get_str("general.architecture")
    return {
        "model": model.name,
        "kernels": rounds[0][DENSE]["kernels"],
        "plain": None if options.no_peer else options.plain.name,
        "file_bytes": model.stat().st_size,
        "architecture": architecture,
        "layers": file.get_int(f"{architecture}.block_count"),
        "caveat": CAVEATS.get(architecture, ""),
        "copies_weights": options.no_mmap,
        "planted": {
            key.removeprefix(_PLANTED): value
            for key, value in file.metadata.items()
            if key.startswith(_PLANTED) and isinstance(value, str | int | float)
        },
        "dense_bytes": size.dense,
        "head_bytes": size.head,
        "kinds": kinds,
        "rounds": rounds,
    }


def _ratios(rounds: list[dict[str, Run]], kind: str, other: str) -> dict[str, dict[str, float]]:
    """By what was timed."""
    return {
        what: ratio(*([rates(each[side])[what] for each in rounds] for side in (kind, other)))
        for what in rates(rounds[0][kind])
    }


def _bytes(file: GGUFFile, size: ModelBytes, kind: str, runs: list[Run]) -> dict[str, Any]:
    """Bytes, bandwidth and measured shares of one kind, and its bound."""

    def median(key: str) -> float | None:
        found = [run[key] for run in runs if run.get(key) is not None]
        return statistics.median(found) if found else None

    out: dict[str, Any] = {
        key: median(key)
        for key in (
            "bytes_per_token",
            "gb_per_s",
            "read_gb_per_s",
            "read_share",
            "active_share",
            "predicted_share",
        )
    }
    kind = kind.partition("@")[0]
    if kind == "auto" and out["bytes_per_token"]:
        # Several kinds in one model: the bytes that it counted itself.
        out["bound"] = size.dense / out["bytes_per_token"]
    else:
        out["bound"] = _bound(file, size, kind, out["active_share"], out["predicted_share"])
    return out


def _bound(
    file: GGUFFile,
    size: ModelBytes,
    kind: str,
    active: float | None,
    predicted: float | None,
) -> float | None:
    """Dense bytes over the bytes this kind must read at the densities that were measured."""
    if kind == DENSE:
        return 1.0
    if active is None:
        return None
    fires = file.get_float(f"{_PLANTED}density", active)
    gate_fires = file.get_float(f"{_PLANTED}gate_density", fires)
    share = densities(kind, fires, max(fires, gate_fires), predicted)
    return size.dense / sparse_bytes(size, kind, share)


def _head_apart(
    file: GGUFFile, size: ModelBytes, rounds: list[dict[str, Run]], kind: str, bound: float | None
) -> dict[str, float | None]:
    """The decode ratio of the layers alone, and with the head of a model of all its layers.

    The head's time is not measured in the peer: it is taken as its share of the bytes that the
    side reads.
    """
    shape = SHAPES.get(file.get_str(f"{_PLANTED}shape", ""))
    layers = file.get_int(f"{file.get_str('general.architecture')}.block_count")
    scale = (shape.num_layers if shape else layers) / layers
    sparse = size.dense / bound if bound else None
    alone, whole = [], []
    for each in rounds:
        ours_s, peer_s = (1 / each[side]["decode_tokens_per_s"] for side in (kind, PEER))
        our_head_s = ours_s * size.head / each[kind]["bytes_per_token"]
        peer_head_s = peer_s * size.head / size.dense
        alone.append((peer_s - peer_head_s) / (ours_s - our_head_s))
        whole.append(
            (scale * (peer_s - peer_head_s) + peer_head_s)
            / (scale * (ours_s - our_head_s) + our_head_s)
        )
    dense_alone = size.dense - size.head
    sparse_alone = None if sparse is None else sparse - size.head
    return {
        "layers_alone": statistics.median(alone),
        "layers_alone_bound": None if sparse_alone is None else dense_alone / sparse_alone,
        "all_layers": statistics.median(whole),
        "all_layers_bound": None
        if sparse_alone is None
        else (scale * dense_alone + size.head) / (scale * sparse_alone + size.head),
        "num_layers": scale * layers,
    }


def print_sparse(result: dict[str, Any]) -> None:
    """Print one comparison for reading."""
    planted = result["planted"]
    copied = ", weights copied into huge pages (--no-mmap)" if result["copies_weights"] else ""
    print(
        f"{result['model']}{copied}, {result['kernels']}: {result['architecture']}, "
        f"{result['layers']} layers, dense {result['dense_bytes'] / 1e9:.2f} GB/token, "
        f"head {result['head_bytes'] / 1e9:.2f}"
    )
    if "rank" in planted:
        print(
            f"  planted: density {planted['density']:.3f}; mlp of rank {planted['rank']:.0f}: "
            f"predicted {planted['predicted_density']:.3f}, recall {planted['recall']:.3f}, "
            f"FFN error {planted['ffn_error']:.4f}"
        )
    elif planted:
        gates = planted.get("gate_density")
        of_gates = "" if gates is None else f", of gates {gates:.3f}"
        print(f"  planted: density {planted['density']:.3f}{of_gates}")
    if result["plain"] and result["caveat"]:
        print(f"  {result['caveat']}")
    for kind, row in result["kinds"].items():
        print(f"  {kind:16} {_measured(row)}")
        for other, table in row["against"].items():
            for what, found in table.items():
                bound = _bound_text(row["bound"] if what == "decode" else None)
                print(
                    f"    {what:12} {found['ours']:8.2f}  {other:17} {found['peer']:8.2f}"
                    f"  ratio {found['ratio']:.2f}"
                    f" ({found['ratio_min']:.2f}-{found['ratio_max']:.2f}){bound}"
                )
        if "head_apart" in row:
            apart = row["head_apart"]
            print(
                f"    without the head: {apart['layers_alone']:.2f} of llama.cpp"
                f"{_bound_text(apart['layers_alone_bound'])}; {apart['num_layers']:.0f} layers "
                f"with it: {apart['all_layers']:.2f}{_bound_text(apart['all_layers_bound'])}"
            )


def _bound_text(bound: float | None) -> str:
    return "" if bound is None else f" (byte bound {bound:.2f})"


def _measured(row: dict[str, Any]) -> str:
    if row["bytes_per_token"] is None:
        return "no decode"
    parts = [f"{row['bytes_per_token'] / 1e9:.2f} GB/token at {row['gb_per_s']:.1f} GB/s"]
    parts.append(f"plain read {row['read_gb_per_s']:.1f} GB/s")
    for key, name in (("predicted_share", "predicted"), ("active_share", "active")):
        if row[key] is not None:
            parts.append(f"{name} {row[key]:.3f}")
    return ", ".join(parts)
