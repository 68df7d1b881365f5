"""Placing by budgets: the bytes a plan promised against those that the device gave.

Neurons are given out by the solver that fills a budget (`greedy`), so that what is promised is
close to the budget.
"""

import gc
from collections.abc import Iterator
from dataclasses import dataclass

from gpu_check.findings import Finding, Setting, Verdict, attempted, verdict_of
from gpu_check.planted_models import CONTEXT, PlantedModel
from powerinfer import LLM, SamplingParams
from powerinfer.offload.model_sizes import CODE_BYTES, CONTEXT_BYTES
from powerinfer.options.vram_budget import MARGIN_BYTES

__all__ = ["Placed", "check_memory", "finding"]

SHARES = (1.0, 0.5, 0.25)
_MIB, _PAGE = 1 << 20, 1 << 12
_FIRST_GPU = "cuda:0"


@dataclass(frozen=True)
class Placed:
    """What one placement promised, and what it is about.

    Attributes:
        promised: bytes of GPU memory by the plan, using a GPU at all included.
        full: of the whole model, likewise.
        overhead: of using a GPU at all, without any part of the model.
        driver: of these, the driver's own.
        taken: by the device's count, since before the model was loaded; None without CUDA.
        reserved: most bytes that torch held for tensors meanwhile; None likewise.
        hot: share of the neurons that lie on the GPU.
        where: device and hand-off.
    """

    promised: int
    full: int
    overhead: int
    driver: int
    taken: int | None
    reserved: int | None
    hot: float
    where: str

    @property
    def parts(self) -> int:
        """Bytes of all that may be placed."""
        return self.full - self.overhead


def check_memory(planted: PlantedModel, setting: Setting) -> Iterator[Finding]:
    """Shares of the model, then all of a GPU of which little is free.

    Args:
        planted: made already.
        setting: where to run it.
    """
    used, context = _context(setting)
    yield _context_finding(context)
    whole = _place(planted, setting, None)
    yield _code_finding(used, context)
    for share in SHARES:
        budget = _whole_pages(whole.overhead + int(share * whole.parts))
        what = f"{planted.name}, {share:.0%} of the model"
        yield from attempted(what, _placed_within(what, planted, setting, budget))
    scarce = whole.overhead - whole.driver + CODE_BYTES + whole.parts // 2 + MARGIN_BYTES
    for free, name in ((4 << 30, "4 GiB"), (scarce, "room for half of it")):
        what = f"{planted.name}, {name} free"
        if not setting.is_cuda:
            yield Finding(what, Verdict.SKIPPED, "no CUDA")
            continue
        yield from attempted(what, _placed_beside(what, planted, setting, free))


def _placed_within(
    what: str, planted: PlantedModel, setting: Setting, budget: int
) -> Iterator[Finding]:
    yield finding(what, _place(planted, setting, budget), budget)


def _placed_beside(
    what: str, planted: PlantedModel, setting: Setting, free: int
) -> Iterator[Finding]:
    """All that is free, which is little, because something else lies there."""
    ballast = _ballast(free)
    placed = _place(planted, setting, None)
    del ballast
    _let_go(setting)
    yield finding(what, placed, free + placed.driver - CODE_BYTES)


def finding(what: str, placed: Placed, budget: int) -> Finding:
    """Whether the promise kept the budget, and what was taken the promise."""
    figures = {
        "budget": budget,
        "promised": placed.promised,
        "overhead": placed.overhead,
        "driver": placed.driver,
        "taken": placed.taken,
        "reserved": placed.reserved,
        "hot": placed.hot,
    }
    text = (
        f"budget {budget / _MIB:.1f} MiB, promised {placed.promised / _MIB:.1f}, "
        f"{placed.hot:.0%} of the neurons hot, {placed.where}"
    )
    if placed.taken is None or placed.reserved is None:
        is_right = placed.promised <= budget
        return Finding(what, verdict_of(is_right), f"{text}; taken: skipped: no CUDA", figures)
    # The driver's part was there before; the first model was placed without being looked at, so
    # that the code of all kernels was there too.
    own = placed.promised - placed.driver
    text += (
        f"; beside the driver's {own / _MIB:.1f} promised, {placed.reserved / _MIB:.1f} reserved "
        f"by torch, {placed.taken / _MIB:.1f} taken"
    )
    is_right = placed.promised <= budget and max(placed.taken, placed.reserved) <= own
    return Finding(what, verdict_of(is_right), text, figures)


def _place(planted: PlantedModel, setting: Setting, budget: int | None) -> Placed:
    """Load a model within a budget, read a prompt, write some tokens, let it go."""
    before, held = _free_bytes(setting), _reserved_bytes(setting)
    model = LLM(
        planted.path(setting.folder),
        device="cuda",
        vram_budget="16" if budget is None and not setting.is_cuda else _as_option(budget),
        solver="greedy",
        reset_gpu_index=True,
        threads=setting.threads,
        context_length=CONTEXT if setting.is_cuda else 64,
        batch_size=512 if setting.is_cuda else 16,
    )
    with model as llm:
        num_prompt, num_tokens = (512, 16) if setting.is_cuda else (9, 1)
        params = SamplingParams(max_tokens=num_tokens, temperature=0, ignore_eos=True)
        llm.generate([[260 + number % 200 for number in range(num_prompt)]], params)
        placement = llm.loaded.placement
        if placement is None:
            raise SystemExit("error: no GPU was used")
        plan, sizes = placement.plan, placement.problem.sizes
        hot = sum(len(layer.hot) for layer in plan.layers)
        found = Placed(
            promised=placement.gpu_bytes,
            full=sizes.full_bytes,
            overhead=sizes.overhead_bytes,
            driver=placement.task.driver_bytes,
            taken=before - _free_bytes(setting) if setting.is_cuda else None,
            reserved=_reserved_bytes(setting) - held if setting.is_cuda else None,
            hot=hot / (plan.num_neurons * len(plan.layers)),
            where=f"{llm.loaded.device}, {placement.handoff}",
        )
        del placement, plan, sizes
    del model, llm
    _let_go(setting)
    return found


def _whole_pages(num_bytes: int) -> int:
    """Rounded up to what an option can say exactly."""
    return -(-num_bytes // _PAGE) * _PAGE


def _as_option(budget: int | None) -> str | None:
    return None if budget is None else f"{budget / _MIB:.8f}MiB"


def _free_bytes(setting: Setting) -> int:
    if not setting.is_cuda:
        return 0
    import torch

    torch.cuda.synchronize()
    return int(torch.cuda.mem_get_info()[0])


def _reserved_bytes(setting: Setting) -> int:
    """Most that torch held at a time since memory was last let go."""
    if not setting.is_cuda:
        return 0
    import torch

    return int(torch.cuda.max_memory_reserved())


def _let_go(setting: Setting) -> None:
    gc.collect()
    if setting.is_cuda:
        import torch

        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _ballast(free: int) -> object:
    """Takes all memory of the GPU but so many bytes, as long as it is kept."""
    import torch

    now = int(torch.cuda.mem_get_info()[0])
    return torch.empty(max(0, now - free), dtype=torch.uint8, device="cuda")


def _context(setting: Setting) -> tuple[int | None, int | None]:
    """Bytes in use before this process used the GPU, and what its first use takes."""
    if not setting.is_cuda:
        return None, None
    from powerinfer.ops.gpu.devices import context_bytes, used_bytes

    return used_bytes(_FIRST_GPU), context_bytes(_FIRST_GPU)


def _context_finding(context: int | None) -> Finding:
    what = "the driver's own memory"
    if context is None:
        return Finding(what, Verdict.SKIPPED, "no CUDA, or NVML does not tell")
    text = f"{context / _MIB:.0f} MiB, {CONTEXT_BYTES // _MIB} MiB assumed where it is not measured"
    return Finding(what, verdict_of(context <= CONTEXT_BYTES), text, {"bytes": context})


def _code_finding(used: int | None, context: int | None) -> Finding:
    """What the driver has taken since, beside what torch holds: code, and memory for stacks."""
    what = "code of kernels"
    if used is None or context is None:
        return Finding(what, Verdict.SKIPPED, "no CUDA, or NVML does not tell")
    import torch

    from powerinfer.ops.gpu.devices import used_bytes

    code = (used_bytes(_FIRST_GPU) or 0) - used - context - int(torch.cuda.memory_reserved())
    text = f"{code / _MIB:.0f} MiB, {CODE_BYTES // _MIB} MiB allowed"
    return Finding(what, verdict_of(code <= CODE_BYTES), text, {"bytes": code})
