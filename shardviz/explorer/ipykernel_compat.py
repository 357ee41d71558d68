"""The only private name of ipykernel that shardviz uses, and a check that it exists."""

from __future__ import annotations

from typing import Any

#: The full name, as listed by `python -m shardviz doctor`.
PRIVATE_NAME = "ipykernel.comm.comm.BaseComm._reply_subshell_for"


def keep_subshell(comm: Any) -> None:
    """Handles the page's messages in the subshell that each message names.

    ipykernel 7.4 redirects these messages to the subshell of the request for which the
    kernel last sent output. Output from a thread may belong to a request whose subshell
    was deleted. Then no edit would arrive after the page was reloaded or reconnected.
    Comms of other ipykernel versions are unchanged.
    """
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda data, named: named


def works() -> bool:
    """Whether the installed ipykernel has the name, or doesn't need it (before 7.4).

    Raises:
        ImportError: if ipykernel is not installed.
    """
    from ipykernel._version import version_info
    from ipykernel.comm.comm import BaseComm

    return version_info[:2] < (7, 4) or hasattr(BaseComm, "_reply_subshell_for")
