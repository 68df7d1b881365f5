"""What the hybrid backend cannot place."""

from powerinfer.errors import UnsupportedError

__all__ = ["refuse_experts"]


def refuse_experts(num_experts: int) -> None:
    """Refuse blocks with a router, before anything is uploaded.

    Raises:
        UnsupportedError: there is more than one expert.
    """
    if num_experts > 1:
        raise UnsupportedError(
            f"{num_experts} experts per layer cannot be placed on a GPU yet",
            remedy="leave the GPU out or take {device='cpu'} to run on the CPU",
        )
