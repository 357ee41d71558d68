"""Bound and Roofline: the least times of a program's parts, as pure data; knows no jax."""

from __future__ import annotations

from dataclasses import dataclass

from shardviz.core.display import Displayed
from shardviz.core.errors import bytes_text
from shardviz.core.layout.chip import Chip


@dataclass(frozen=True)
class Bound:
    """The least time of one part of a program.

    Attributes:
        name: the part: `compute`, `memory`, `all-gather over model`, the name of an operation.
        part: `"compute"`, `"memory"`, `"collective"` or `"op"`.
        seconds: the least seconds, over all trips; None where a figure is not known.
        bound: what bounds it: `"FLOP/s"`, `"HBM"`, `"ICI"`, `"NVLink"`, `"network"`, `""`.
        amount: operations or bytes, once.
        trips: how often it runs; None where nobody knows, and then it counts once.
        source: the user's file and line.
        note: why there is no time, or what else to know.

    >>> Bound("compute", "compute", 0.5, "FLOP/s", 1e14).bound
    'FLOP/s'
    """

    name: str
    part: str
    seconds: float | None
    bound: str
    amount: float
    trips: int | None = 1
    source: str = ""
    note: str = ""


@dataclass(frozen=True, repr=False)
class Roofline(Displayed):
    """The least times of a program on some chips.

    Attributes:
        where: the topology or chip, as typed.
        chip: the chip whose figures were used.
        rows: compute, memory, then every collective, the longest first.
        ops: the operations of the plan, the longest first; empty where no plan was given.
        needed: bytes that each device needs; None where the compiler did not say.
        capacity: bytes that each device has; None where it is not published.
        notes: what was assumed, and what is not known.

    >>> from shardviz.core.layout.chips import find_chip
    >>> rows = (Bound("compute", "compute", 2.0, "FLOP/s", 4e14),)
    >>> found = Roofline("tpu:v5e:4x4", find_chip("v5e"), rows, needed=20 << 30, capacity=16 << 30)
    >>> found.seconds, found.bound, found.fits, found.times_capacity
    (2.0, 'compute', False, 1.25)
    """

    where: str
    chip: Chip
    rows: tuple[Bound, ...] = ()
    ops: tuple[Bound, ...] = ()
    needed: int | None = None
    capacity: int | None = None
    notes: tuple[str, ...] = ()

    def _seconds(self, part: str) -> float | None:
        known = [r.seconds for r in self.rows if r.part == part and r.seconds is not None]
        return sum(known) if known else None

    @property
    def compute_s(self) -> float | None:
        """The least seconds of arithmetic."""
        return self._seconds("compute")

    @property
    def memory_s(self) -> float | None:
        """The least seconds of reading and writing memory."""
        return self._seconds("memory")

    @property
    def collective_s(self) -> float | None:
        """The least seconds of all collectives whose time is known, one after another."""
        return self._seconds("collective")

    @property
    def seconds(self) -> float | None:
        """The least seconds of the whole, if arithmetic, memory and collectives overlap."""
        parts = [s for s in (self.compute_s, self.memory_s, self.collective_s) if s is not None]
        return max(parts) if parts else None

    @property
    def bound(self) -> str:
        """Which of `"compute"`, `"memory"` and `"collectives"` is the longest; `""` for none."""
        named = {
            "compute": self.compute_s,
            "memory": self.memory_s,
            "collectives": self.collective_s,
        }
        known = {name: s for name, s in named.items() if s is not None}
        return max(known, key=known.__getitem__) if known else ""

    @property
    def fits(self) -> bool | None:
        """Whether a device has the memory; None where that is not known."""
        share = self.times_capacity
        return None if share is None else share <= 1

    @property
    def times_capacity(self) -> float | None:
        """What each device needs, as a multiple of what it has."""
        return self.needed / self.capacity if self.needed is not None and self.capacity else None

    @property
    def words(self) -> str:
        """The whole in one or two sentences."""
        return _words(self)

    def __repr__(self) -> str:
        return f"Roofline({self.words})"


def _words(found: Roofline) -> str:
    from_parts = {
        "arithmetic": found.compute_s,
        "memory": found.memory_s,
        "collectives": found.collective_s,
    }
    said = [f"{name} {_time(s)}" for name, s in from_parts.items() if s is not None]
    words = f"At least {_time(found.seconds)} on {found.where}" if said else f"On {found.where}"
    words += f": {', '.join(said)}." if said else ": nothing is known of its cost."
    if found.needed is not None and found.capacity is not None:
        share = found.times_capacity or 0.0
        have = f"{bytes_text(found.needed)} of {bytes_text(found.capacity)} on each device"
        words += f" It fits: {have}." if share <= 1 else f" Too large by {share:.1f} times: {have}."
    return words


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "an unknown time"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
