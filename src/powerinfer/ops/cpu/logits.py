"""What the choice of a token asks of all logits: native functions, without Python around them."""

from powerinfer._core import all_finite, write_largest

__all__ = ["all_finite", "write_largest"]
