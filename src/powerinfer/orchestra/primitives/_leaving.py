"""Leave for data to go out of the machine."""

from powerinfer.orchestra.primitives.primitive import Call, PrimitiveError

__all__ = ["check_may_leave"]


def check_may_leave(call: Call, name: str) -> None:
    """Refuse a call whose data come from untrusted text, unless the user lets such data leave.

    What a document or a page says can make the policy send what it has read to somebody.

    Raises:
        PrimitiveError: it is refused.
    """
    if call.has_untrusted_input and not call.permissions.let_data_leave:
        raise PrimitiveError(
            f"{name} may not carry data out of the machine that come from untrusted text; the user "
            "may let data leave"
        )
