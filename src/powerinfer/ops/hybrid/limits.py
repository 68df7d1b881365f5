"""What the hybrid backend cannot place."""

from powerinfer.errors import UnsupportedError

__all__ = ["refuse_experts"]


def refuse_experts(num_experts: int) -> None:
    """Refuse blocks with a router, before anything is uploaded.

    Raises:
        UnsupportedError: there are any.
    """
    if num_experts:
        raise UnsupportedError(
            f"{num_experts} experts per layer cannot be placed on a GPU yet",
            remedy="leave the GPU out or take {device='cpu'} to run on the CPU",
        )
