"""The only private name of ipykernel that shardviz uses, and a check that it exists."""

from __future__ import annotations

from typing import Any

#: Its full name, as `python -m shardviz doctor` lists it.
PRIVATE_NAME = "ipykernel.comm.comm.BaseComm._reply_subshell_for"


def keep_subshell(comm: Any) -> None:
    """Handles the page's messages in the subshell that each message names.

    ipykernel 7.4 redirects them to the subshell of the last request for which the kernel
    sent something. Messages from threads belong to any request, often to a subshell that
    was deleted, so no edit would arrive after a page was reloaded or lost its connection.
    Comms of other versions are left unchanged.
    """
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda data, named: named


def works() -> bool:
    """Whether the installed ipykernel has the name, or is older than 7.4.

    Raises:
        ImportError: if ipykernel is not installed.
    """
    from ipykernel._version import version_info
    from ipykernel.comm.comm import BaseComm

    return version_info[:2] < (7, 4) or hasattr(BaseComm, "_reply_subshell_for")
