"""Share of neurons a server computes while clients decode, and the speedup bound it gives."""

import asyncio
import re
from collections.abc import Sequence

import httpx

from powerinfer.bench.serving.client import Stream, complete
from powerinfer.gguf import GGUFFile

__all__ = ["byte_bound", "measured_shares"]

_GAUGE = re.compile(r"^powerinfer_(active|union)_share ([0-9.eE+-]+)$", re.MULTILINE)
_FFN = (".ffn_gate.", ".ffn_up.", ".ffn_down.", ".ffn_down_t.")


def measured_shares(
    address: str, prompts: Sequence[Sequence[int]], max_tokens: int
) -> dict[str, float | None]:
    """Run clients and read `active_share` and `union_share` while all decode; None if missing."""
    text = asyncio.run(_metrics_while_decoding(address, prompts, max_tokens))
    found = {name: float(value) for name, value in _GAUGE.findall(text)}
    return {f"{name}_share": found.get(name) for name in ("active", "union")}


async def _metrics_while_decoding(
    address: str, prompts: Sequence[Sequence[int]], max_tokens: int
) -> str:
    async with httpx.AsyncClient(base_url=address, trust_env=False) as client:
        tasks = [asyncio.create_task(complete(address, each, max_tokens)) for each in prompts]
        # All prompts are prefilled long before three quarters of the first answer are generated.
        first: asyncio.Task[Stream] = tasks[0]
        text = ""
        while not first.done():
            await asyncio.sleep(0.2)
            try:
                answer = await client.get("/metrics")
            except httpx.HTTPError:
                break
            if answer.status_code != httpx.codes.OK:
                break
            if "powerinfer_" in answer.text and not first.done():
                text = answer.text
        await asyncio.gather(*tasks)
        return text


def byte_bound(file: GGUFFile, kind: str, union: float | None) -> float | None:
    """Bound on the decode speedup: dense bytes per step over bytes with the firing neurons only.

    It is a bound because it ignores neurons that a predictor selects but that do not fire.

    Args:
        kind: sparsity: off, exact or mlp; None for others, whose predictors are not in files.
        union: share of the neurons that fire for any row of the step.
    """
    if kind == "off":
        return 1.0
    if union is None or kind not in ("exact", "mlp"):
        return None
    sizes = {"ffn": 0, "gate": 0, "predictor": 0, "always": 0}
    skipped = "token_embd.weight" if "output.weight" in file.tensors else ""
    for name, tensor in file.tensors.items():
        if name == skipped or name.startswith("position_embd"):
            continue
        if ".fc1." in name or ".fc2." in name:
            role = "predictor"
        elif kind == "exact" and ".ffn_gate." in name:
            role = "gate"
        else:
            role = "ffn" if any(part in name for part in _FFN) else "always"
        sizes[role] += tensor.num_bytes
    dense = sizes["always"] + sizes["gate"] + sizes["ffn"]
    predictor = sizes["predictor"] if kind == "mlp" else 0
    return dense / (sizes["always"] + sizes["gate"] + predictor + union * sizes["ffn"])
