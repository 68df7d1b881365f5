"""Solving for `down` of each FFN, so that the layer gives what it gave before."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from powerinfer.errors import NumericsError
from powerinfer.train.autocast import compute_repeatably
from powerinfer.train.checkpoint import load_checkpoint, save_checkpoint
from powerinfer.train.sparsify.model import SparseModel
from powerinfer.train.sparsify.recipe import Recipe
from powerinfer.train.sparsify.rows import TokenIds, identity_of, row_numbers, rows_of
from powerinfer.train.sparsify.run import fingerprint

__all__ = ["FIT_FOLDER", "fit_layers"]

FIT_FOLDER = "fit"

# Pull towards the old weights, by the mean square of the neurons: weak where the text decides,
# and all there is for neurons that never fire in it.
_PULL = 0.01

_Streams: TypeAlias = list[Tensor]
"""Residual streams [rows, seq_len, hidden_size] of the passes."""


def fit_layers(
    model: SparseModel,
    teacher: SparseModel,
    tokens: TokenIds,
    recipe: Recipe,
    folder: Path,
    progress: Callable[[int, int], None],
) -> int:
    """Solve for the `down` of every FFN in closed form, layer after layer.

    Both models read the same text. The input of a layer is what the layers before it have become,
    and its `down` gets the weights with which the residual stream after it comes nearest to the
    teacher's: what earlier layers do wrong is corrected as far as it can be. The squared error of
    a token counts relative to its target and a typical one, since in some layers a few tokens have
    outputs a thousand times as large as all others.

    Args:
        model: has the teacher's weights and another activation; `down` changes, of dReLU also the
            sign of neurons.
        tokens: as many as `recipe.tokens` are read, in an order that the recipe decides.
        folder: keeps each layer that is done; a run that was interrupted goes on there, and ends
            with the same bits.
        progress: called with the number of layers done and of all.

    Returns:
        Number of tokens read.

    Raises:
        NumericsError: neurons or outputs are not finite.
        PowerInferError: `folder` belongs to another run, or the text is too short.
    """
    rows = _rows(tokens, recipe)
    identity = f"{recipe!r} {_PULL} {fingerprint(model)} {identity_of(rows.reshape(-1))}"
    folder.mkdir(parents=True, exist_ok=True)
    compute_repeatably(model.device)
    paths = [folder / f"layer-{layer}.pt" for layer in range(len(model.ffns))]
    if paths[-1].exists():
        for ffn, path in zip(model.ffns, paths, strict=True):
            ffn.load_state_dict(load_checkpoint(path, identity) or {})
        return rows.size
    ids = torch.from_numpy(rows.astype(np.int64)).split(recipe.pass_rows)
    with torch.no_grad():
        ours, wanted = ([_embed(each, part) for part in ids] for each in (model, teacher))
        for layer, path in enumerate(paths):
            wanted = [_run_layer(teacher, layer, x) for x in wanted]
            _fit_once(model, layer, ours, wanted, path, identity)
            ours = [_run_layer(model, layer, x) for x in ours]
            progress(layer + 1, len(paths))
    return rows.size


def _rows(tokens: TokenIds, recipe: Recipe) -> TokenIds:
    """Rows [num_rows, seq_len] to read, none of them twice."""
    rows = rows_of(tokens, recipe.seq_len)
    numbers = [n for step in range(recipe.steps) for n in row_numbers(step, len(rows), recipe)]
    return rows[numbers[: len(rows)], :-1]


def _fit_once(
    model: SparseModel, layer: int, ours: _Streams, wanted: _Streams, path: Path, identity: str
) -> None:
    """Change the FFN of a layer, or take it from the file `path` if that was done before."""
    ffn = model.ffns[layer]
    state = load_checkpoint(path, identity)
    if state is not None:
        ffn.load_state_dict(state)
        return
    if ffn.activation == "drelu":
        _choose_signs(model, layer, ours[0])
    _solve(model, layer, ours, wanted)
    save_checkpoint(path, identity, ffn.state_dict())


def _embed(model: SparseModel, ids: Tensor) -> Tensor:
    embedded: Tensor = model.network.model.embed_tokens(ids.to(model.device))
    return embedded


def _run_layer(model: SparseModel, layer: int, x: Tensor) -> Tensor:
    """Run one layer on the stream x [rows, seq_len, hidden_size]."""
    positions = torch.arange(x.shape[1], device=x.device)[None]
    body = model.network.model
    angles = body.rotary_emb(x, positions)
    output: Tensor = body.layers[layer](
        x, attention_mask=None, position_ids=positions, position_embeddings=angles
    )
    return output


def _choose_signs(model: SparseModel, layer: int, x: Tensor) -> None:
    """Negate up and down of neurons of which dReLU would otherwise keep the smaller part.

    The old neuron is the same with both negated, the new one keeps its values where up is positive.
    """
    ffn, seen = model.ffns[layer], list[Tensor]()
    hook = ffn.register_forward_pre_hook(lambda _ffn, inputs: seen.append(inputs[0]))
    try:
        _run_layer(model, layer, x)
    finally:
        hook.remove()
    gate, up = ffn.gate_proj(seen[0]).clamp_min(0), ffn.up_proj(seen[0])
    kept = ((gate * up).square() * up.sign()).flatten(0, -2).sum(0)
    signs = torch.where(kept < 0, -1.0, 1.0)
    ffn.up_proj.weight.mul_(signs[:, None])
    ffn.down_proj.weight.mul_(signs)


def _solve(model: SparseModel, layer: int, ours: _Streams, wanted: _Streams) -> None:
    """Solve a ridge regression for `down` of a layer, from the streams before and after it."""
    down, seen = model.ffns[layer].down_proj, list[Tensor]()
    old = down.weight.double().T
    squares, products = old.new_zeros(len(old), len(old)), torch.zeros_like(old)
    down.weight.zero_()  # the layer's output is then its stream after the attention
    with model.watched(lambda _layer, neurons: seen.append(neurons)):
        for x, target in zip(ours, wanted, strict=True):
            rest = (target - _run_layer(model, layer, x)).flatten(0, -2)
            neurons = seen.pop().flatten(0, -2)
            weighted = neurons * _weights(rest)[:, None]
            squares += (weighted.T @ neurons).double()
            products += (weighted.T @ rest).double()
    pull = _PULL * squares.diagonal().mean().clamp_min(1e-30)
    if not torch.isfinite(pull + products.sum()):
        raise NumericsError(f"layer {layer}: its neurons or outputs are not finite on this text")
    squares.diagonal().add_(pull)
    solved = torch.cholesky_solve(products + pull * old, torch.linalg.cholesky(squares))
    down.weight.copy_(solved.T)


def _weights(wanted: Tensor) -> Tensor:
    """Weight of each token [num_tokens]: by its squared target, and a typical one added."""
    power = wanted.square().sum(-1).clamp_min(1e-12)
    weights = 1 / (power + power.log().mean().exp())
    return weights / weights.mean()
