"""Addresses of hosts: looked up once, checked, and connected to as checked."""

import asyncio
import ipaddress
import socket
from collections.abc import Sequence

from powerinfer.orchestra.primitives.primitive import PrimitiveError

__all__ = ["is_public", "public_address"]

_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")


def is_public(address: str) -> bool:
    """Whether an address belongs to the internet, and to nothing that leads back into a network.

    IPv6 addresses that contain one of IPv4 (mapped, NAT64, 6to4, Teredo) are none.
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    if not found.is_global or found.is_multicast or found.is_reserved:
        return False
    if isinstance(found, ipaddress.IPv4Address):
        return True
    is_ordinary = found.sixtofour is None and found.teredo is None and found.ipv4_mapped is None
    return is_ordinary and found in _GLOBAL_UNICAST


async def public_address(host: str, port: int) -> str:
    """Look a host up and return the address to connect to; the name is not looked up again.

    Raises:
        PrimitiveError: it has no address, or any that is not public.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
        )
    except (OSError, UnicodeError):
        raise PrimitiveError(f"{host} has no address") from None
    addresses: Sequence[str] = [str(entry[4][0]) for entry in found]
    private = [address for address in addresses if not is_public(address)]
    if private or not addresses:
        raise PrimitiveError(f"{host} has an address that is not public: {', '.join(private)[:80]}")
    return addresses[0]
