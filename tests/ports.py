"""Ports of this machine for servers that tests start."""

from __future__ import annotations

import random
import socket

# Linux gives ports from 32768 on to outgoing connections, a browser's among them, so one of those
# could be gone before the server that it is meant for has started.
_PORTS = range(20_000, 32_000)


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens at.

    Raises:
        RuntimeError: if fifty ports in a row are taken.
    """
    for port in random.sample(_PORTS, 50):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("Fifty ports in a row are taken.")
