"""The one private name of ipykernel that shardviz uses, with a check of it."""

from __future__ import annotations

from typing import Any

#: Its full name, as `python -m shardviz doctor` lists it.
PRIVATE_NAME = "ipykernel.comm.comm.BaseComm._reply_subshell_for"


def keep_subshell(comm: Any) -> None:
    """What the page sends is handled in the subshell that it names.

    ipykernel 7.4 leads it to that of the request for which the kernel sent something
    last; for what a thread sends that is any request, often of a subshell that is
    deleted by then: after a page was loaded anew or its connection was lost, no edit
    would arrive. Other comms stay as they are.
    """
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda data, named: named


def works() -> bool:
    """Whether the installed ipykernel has the name, or needs none: before 7.4.

    Raises:
        ImportError: there is no ipykernel.
    """
    from ipykernel._version import version_info
    from ipykernel.comm.comm import BaseComm

    return version_info[:2] < (7, 4) or hasattr(BaseComm, "_reply_subshell_for")
