"""device_events(): reads what ran on each device from a profile of jax.

A profile is an `XSpace` of XLA's `xplane.proto`. We parse it, because jaxlib's own
reader ends the process under jax 0.12 if Python's warnings are errors, and leaves out
the data that all events of a kind share, such as the HLO operation of a kernel.

On CPUs, each thread has a line, and an event names its device. On GPUs and TPUs, each
device has a plane.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from shardviz.compiled.wire import Message, signed

# The field numbers of each message, by their names in `xplane.proto`.
_PLANES = 1
_PLANE = {"name": 2, "lines": 3, "event_kinds": 4, "stat_kinds": 5}
_LINE = {"name": 2, "start_ns": 3, "events": 4}
_EVENT = {"kind": 1, "offset_ps": 2, "duration_ps": 3, "stats": 4}
_KIND = {"name": 2, "stats": 5}
_STAT = {"kind": 1, "numbers": (3, 4), "text": 5, "reference": 7}
_DEVICE = re.compile(r"/device:(GPU|TPU):(\d+)")
# A TPU's event has the text of its instruction as its name.
_TPU_NAME = re.compile(r"%?([\w.\-]+)")
#: The lines of a TPU's plane with operations; other lines repeat their times.
_TPU_LINES = ("XLA Ops", "Async XLA Ops")
_TPU_PROGRAMS = "XLA Modules"
_PER_NS = 1000


class ProfiledEvent(NamedTuple):
    """The execution of one instruction on one device.

    Attributes:
        device: the device's number in its process.
        instruction: the name of the HLO instruction; `""` if the profile has none.
        start, end: picoseconds on a clock that all devices share.
    """

    device: int
    instruction: str
    start: int
    end: int


def device_events(profile: bytes, program: str) -> list[ProfiledEvent]:
    """Returns the events of a program's instructions on its devices.

    Args:
        profile: the contents of an `.xplane.pb` file.
        program: the name of the HLO module.
    """
    events: list[ProfiledEvent] = []
    for data in Message(profile).each(_PLANES):
        plane = _Plane(Message(data))
        device = _DEVICE.fullmatch(plane.name)
        if plane.name == "/host:CPU":
            events += _on_cpus(plane, program)
        elif device and device[1] == "GPU":
            events += _on_gpu(plane, program, int(device[2]))
        elif device:
            events += _on_tpu(plane, program, int(device[2]))
    return events


class _Event(NamedTuple):
    name: str
    start: int
    end: int
    stats: Mapping[str, str | int]


class _Plane:
    """The lines of a plane, with names in place of numbers."""

    def __init__(self, message: Message) -> None:
        self.name = message.text(_PLANE["name"])
        self._lines = message.messages(_PLANE["lines"])
        # Both tables are maps: an entry has a number and a message.
        self._stat_names: dict[int, str] = {}
        for entry in message.messages(_PLANE["stat_kinds"]):
            self._stat_names[entry.number(1)] = entry.message(2).text(_KIND["name"])
        self._kinds: dict[int, tuple[str, Mapping[str, str | int]]] = {}
        for entry in message.messages(_PLANE["event_kinds"]):
            kind = entry.message(2)
            stats = self._stats(kind.messages(_KIND["stats"]))
            self._kinds[entry.number(1)] = kind.text(_KIND["name"]), stats

    def lines(self) -> Iterator[tuple[str, Iterator[_Event]]]:
        """Yields the name and the events of each line."""
        for line in self._lines:
            yield line.text(_LINE["name"]), self._events(line)

    def _events(self, line: Message) -> Iterator[_Event]:
        begun = signed(line.number(_LINE["start_ns"])) * _PER_NS
        for event in line.messages(_LINE["events"]):
            name, shared = self._kinds.get(event.number(_EVENT["kind"]), ("", {}))
            start = begun + signed(event.number(_EVENT["offset_ps"]))
            end = start + event.number(_EVENT["duration_ps"])
            stats = self._stats(event.messages(_EVENT["stats"]))
            yield _Event(name, start, end, {**shared, **stats})

    def _stats(self, messages: list[Message]) -> dict[str, str | int]:
        stats: dict[str, str | int] = {}
        for stat in messages:
            name = self._stat_names.get(stat.number(_STAT["kind"]), "")
            if _STAT["reference"] in stat:
                reference = stat.number(_STAT["reference"])
                stats[name] = self._stat_names.get(reference, "")
            elif _STAT["text"] in stat:
                stats[name] = stat.text(_STAT["text"])
            for field in _STAT["numbers"]:
                if field in stat:
                    stats[name] = signed(stat.number(field))
        return stats


def _on_cpus(plane: _Plane, program: str) -> Iterator[ProfiledEvent]:
    starts: list[_Event] = []
    # An operation may go on in another thread; a second event then marks its end.
    ends: dict[object, int] = {}
    for _, events in plane.lines():
        for event in events:
            if event.stats.get("hlo_module") == program and "hlo_op" in event.stats:
                starts.append(event)
            elif event.name.startswith("end: "):
                key = event.stats.get("_ct"), event.stats.get("_c")
                ends[key] = event.start
    for event in starts:
        key = event.stats.get("_pt"), event.stats.get("_p")
        end = max(event.end, ends.get(key, 0))
        device = int(event.stats.get("device_ordinal", 0))
        yield ProfiledEvent(device, str(event.stats["hlo_op"]), event.start, end)


def _on_gpu(plane: _Plane, program: str, device: int) -> Iterator[ProfiledEvent]:
    for name, events in plane.lines():
        if not name.startswith("Stream"):
            continue
        for event in events:
            # A kernel without a program may be this one's, but copies of arguments from
            # the host are not.
            module = event.stats.get("hlo_module")
            if module == program or (module is None and "H2D" not in name):
                instruction = str(event.stats.get("hlo_op", ""))
                yield ProfiledEvent(device, instruction, event.start, event.end)


def _on_tpu(plane: _Plane, program: str, device: int) -> Iterator[ProfiledEvent]:
    lines = {name: list(events) for name, events in plane.lines()}
    runs: list[_Event] = []
    for event in lines.get(_TPU_PROGRAMS, ()):
        if event.name.partition("(")[0] == program:
            runs.append(event)
    for name in _TPU_LINES:
        for event in lines.get(name, ()):
            if any(run.start <= event.start < run.end for run in runs):
                match = _TPU_NAME.match(event.name)
                instruction = match[1] if match else ""
                yield ProfiledEvent(device, instruction, event.start, event.end)
