"""The loss of training, against torch's own cross entropy and divergence."""

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  (torch's own convention)

from powerinfer.train import fused
from powerinfer.train.fused import PredictionLoss

WEIGHT = 0.7


def _loss(logits: Tensor, targets: Tensor, wanted: Tensor | None) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor] = PredictionLoss.apply(  # type: ignore[no-untyped-call]
        logits, targets, wanted, WEIGHT
    )
    return found


def _case(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, targets and a teacher's logits of 7 rows over 50 tokens."""
    generator = torch.Generator().manual_seed(3)
    logits, wanted = (torch.randn(7, 50, generator=generator).mul(4).to(dtype) for _ in range(2))
    targets = torch.randint(0, 50, (7,), generator=generator)
    return logits.requires_grad_(), targets, wanted


@pytest.fixture(autouse=True)
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rows at once: two whole parts and a rest."""
    monkeypatch.setattr(fused, "_AT_ONCE", {"cpu": 150})


@pytest.mark.parametrize("has_teacher", [True, False])
def test_the_gradient_is_that_of_the_loss(has_teacher: bool) -> None:
    logits, targets, wanted = _case(torch.float64)
    given = wanted if has_teacher else None
    assert torch.autograd.gradcheck(lambda x: _loss(x, targets, given)[0], (logits,))


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)], ids=["f32", "bf16"]
)
@pytest.mark.parametrize("has_teacher", [True, False])
def test_loss_and_gradient_are_torchs(
    dtype: torch.dtype, tolerance: float, has_teacher: bool
) -> None:
    logits, targets, wanted = _case(dtype)
    found, loss = _loss(logits, targets, wanted if has_teacher else None)
    (got,) = torch.autograd.grad(found * 0.3, logits)
    expected_loss = F.cross_entropy(logits.float(), targets)
    expected = expected_loss
    if has_teacher:
        ours, theirs = (each.float().log_softmax(-1) for each in (logits, wanted))
        divergence = F.kl_div(ours, theirs, log_target=True, reduction="batchmean")
        expected = expected + WEIGHT * divergence
    (gradient,) = torch.autograd.grad(expected * 0.3, logits)
    assert got.dtype == dtype
    torch.testing.assert_close(loss, expected_loss.detach(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got, gradient, rtol=tolerance, atol=tolerance * 1e-2)
