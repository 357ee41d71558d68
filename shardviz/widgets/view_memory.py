"""The Memory tab as plain data: bytes on each device against its capacity, cost, roofline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardviz.core.program.costs.bounds import Bound, Roofline
from shardviz.core.program.costs.roofline import with_operations
from shardviz.core.program.hlo.memory import host_bytes
from shardviz.core.program.propagation.plan import Plan
from shardviz.core.program.report import Memory, Report
from shardviz.picture.units import bytes_text, count_text, seconds_text

# What takes memory at the same time, in the order in which the bar shows it.
_PARTS = ("arguments", "outputs", "temporaries", "generated_code")
_TITLES = {"generated_code": "generated code"}
MOST_COSTS = 12
MOST_TIMES = 60


def memory_view(report: Report | None, plan: Plan | None = None) -> dict[str, Any]:
    """What the Memory tab shows of a report.

    >>> view = memory_view(Report("f", "t", memory=Memory(arguments=1 << 30, capacity=4 << 30)))
    >>> view["sentence"], [part["share"] for part in view["parts"]]
    ('1 GiB of 4 GiB on each device: 25 %.', [0.25])
    """
    empty: dict[str, Any] = {"parts": [], "sentence": "", "over": False, "cost": []}
    empty |= {"times": [], "operations": [], "timesNote": ""}
    if report is None:
        return empty
    memory = report.memory
    sizes = [(name, getattr(memory, name) or 0) for name in _PARTS]
    # Donated outputs stand where an argument stood: they take that memory once.
    total = max(0, sum(size for _, size in sizes) - (memory.aliased or 0))
    whole = max(total, memory.capacity or 0) or 1
    return {
        **empty,
        "parts": [
            {"name": _TITLES.get(n, n), "bytes": bytes_text(size), "share": size / whole}
            for n, size in sizes
            if size
        ],
        "capacity": (memory.capacity or 0) / whole,
        "sentence": _sentence(memory, total) if total or host_bytes(memory) else "",
        "over": bool(memory.capacity and total > memory.capacity),
        "target": report.target,
        "cost": [[n, _cost(n, v)] for n, v in list(report.cost.items())[:MOST_COSTS]],
        **_roofline(with_operations(report, plan)),
    }


def _cost(name: str, value: float) -> str:
    if "bytes" in name:
        return bytes_text(int(value))
    return seconds_text(value) if "seconds" in name else count_text(value)


def _sentence(memory: Memory, total: int) -> str:
    reused = ""
    if memory.aliased:
        reused = f" {bytes_text(memory.aliased)} of outputs reuse donated arguments."
    if beside := host_bytes(memory):
        reused += f" Beside that, {bytes_text(beside)} a device lie in the memory of the host."
    if not memory.capacity:
        return f"{bytes_text(total)} on each device; its capacity is not known.{reused}"
    share = total / memory.capacity
    words = "less than 1 %" if share < 0.01 else f"{share:.0%}".replace("%", " %")
    if share > 1:
        words = f"{share:.3g} times what it has"
    return f"{bytes_text(total)} of {bytes_text(memory.capacity)} on each device: {words}.{reused}"


def _roofline(found: Roofline | None) -> dict[str, Any]:
    """The least time of each part and operation, the longest first."""
    if found is None:
        return {}
    return {
        "times": _times(found.rows),
        "operations": _times(found.ops),
        "timesNote": found.words if found.rows else "",
    }


def _times(some: Sequence[Bound]) -> list[dict[str, Any]]:
    """What is not known stays out of the bars."""
    rows = sorted(some, key=lambda row: -(row.seconds or 0.0))[:MOST_TIMES]
    most = max((row.seconds or 0.0 for row in rows), default=0.0) or 1.0
    return [
        {
            "name": row.name,
            "seconds": seconds_text(row.seconds),
            "share": (row.seconds or 0.0) / most,
            "bound": row.bound,
            "source": row.source,
        }
        for row in rows
    ]
