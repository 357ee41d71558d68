"""Which line of the user's code an instruction of a compiled module comes from.

The head of a module holds four tables: FileNames, FunctionNames, FileLocations and StackFrames;
an instruction's metadata names a frame by `stack_frame_id`. Older text has `source_file` and
`source_line` in the metadata itself.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from shardviz.core.hlo.module import Module, operands

_NAME = re.compile(r'^(\d+) "(.*)"$', re.M)
_LOCATION = re.compile(r"^(\d+) \{file_name_id=(\d+) function_name_id=\d+ line=(\d+)", re.M)
_FRAME = re.compile(r"^(\d+) \{file_location_id=(\d+)(?: parent_frame_id=(\d+))?", re.M)
_FRAME_ID = re.compile(r"stack_frame_id=(\d+)")
_DIRECT = re.compile(r'source_file="([^"]*)"(?: source_line=(\d+))?')

_SOURCE_LINE = re.compile(r'loc\("((?:[^"\\]|\\.)*)":(\d+):(\d+)')

_OWN = str(Path(__file__).parents[2]) + os.sep
_GALLERY = _OWN + "gallery" + os.sep
_NOT_USER = ("site-packages", "dist-packages", "/lib/python3", "\\lib\\python3", "<frozen")


def is_user_file(path: str) -> bool:
    """Whether a file is the user's own code: in no installed package and not in this one.

    >>> is_user_file("/home/me/model.py"), is_user_file("/venv/lib/site-packages/jax/core.py")
    (True, False)
    """
    if path.startswith(_OWN):
        return path.startswith(_GALLERY)
    return not any(part in path for part in _NOT_USER)


def line_in_words(path: str, line: int | str) -> str:
    """`model.py:12`; a notebook's cell is called `cell`.

    >>> line_in_words("/home/me/model.py", 12), line_in_words("/tmp/ipykernel_7/31.py", 3)
    ('model.py:12', 'cell:3')
    """
    in_cell = "ipykernel_" in path or path.startswith("<ipython-input")
    return f"{'cell' if in_cell else os.path.basename(path)}:{line}"


def source_lines(text: str) -> list[tuple[str, str]]:
    """File and line of the user's code in a lowered module, in the order of the text.

    Lines of the calls that are running now are left out: they are where the program is compiled or
    run from, which differs from cell to cell, and no part of it. A function that is written inside
    such a call is at another column, so it stays.

    Args:
        text: StableHLO with its locations.

    >>> source_lines('#loc1 = loc("/home/me/model.py":12:4 to :9)')
    [('/home/me/model.py', '12')]
    """
    frame, running = sys._getframe(), set()
    while frame is not None:
        running.add((frame.f_code.co_filename, *_running(frame)))
        frame = frame.f_back
    return [p[:2] for p in _SOURCE_LINE.findall(text) if p not in running and is_user_file(p[0])]


def _running(frame: FrameType) -> tuple[str, str]:
    """Line and column of what a frame is at, as jax writes them."""
    positions = frame.f_code.co_positions()  # one for each two bytes of code
    line, _, column, _ = next(itertools.islice(positions, frame.f_lasti // 2, None))
    return str(line or 0), str(column or 0)


class Sources:
    """The source tables of one module's text, read once when needed."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._stacks: dict[int, tuple[str, ...]] = {}

    def of(self, line: str) -> str:
        """The user's file and line for one line of the module, or `""`."""
        stack = self.stack_of(line)
        return stack[0] if stack else ""

    def stack_of(self, line: str) -> tuple[str, ...]:
        """The user's files and lines for one line of the module, innermost first."""
        frame = _FRAME_ID.search(line)
        if frame:
            return self._of_frame(int(frame[1]))
        direct = _DIRECT.search(line)
        if direct and direct[2] and is_user_file(direct[1]):
            return (line_in_words(direct[1], direct[2]),)
        return ()

    def _of_frame(self, frame: int) -> tuple[str, ...]:
        if frame not in self._stacks:
            user_lines = (line_in_words(*f) for f in self.stack(frame) if is_user_file(f[0]))
            # Several calls on one line are shown once.
            self._stacks[frame] = tuple(line for line, _ in itertools.groupby(user_lines))
        return self._stacks[frame]

    def stack(self, frame: int) -> Iterator[tuple[str, int]]:
        """File and line of every caller, innermost first."""
        files, locations, frames, root = self._tables
        seen: set[int] = set()
        while frame in frames and frame not in seen:
            seen.add(frame)
            location, parent = frames[frame]
            if location in locations:
                file, line = locations[location]
                yield files.get(file, ""), line
            frame = parent - root

    @cached_property
    def _tables(self) -> tuple[dict[int, str], dict[int, tuple[int, int]], dict, int]:
        files = {int(i): name for i, name in _NAME.findall(self._section("FileNames"))}
        locations = {
            int(i): (int(file), int(line))
            for i, file, line in _LOCATION.findall(self._section("FileLocations"))
        }
        frames = {
            int(i): (int(location), int(parent or 0))
            for i, location, parent in _FRAME.findall(self._section("StackFrames"))
        }
        # XLA prints parents one too high, which makes the outermost frame its own parent.
        root = 1 if any(parent == i for i, (_, parent) in frames.items()) else 0
        return files, locations, frames, root

    def _section(self, name: str) -> str:
        start = self._text.find(f"\n{name}\n")
        return "" if start < 0 else self._text[start : self._text.find("\n\n", start + 1)]


_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_MAX_STEPS = 4  # instructions further away come from other lines


class InstructionSource(NamedTuple):
    """The source of an instruction: its operation in jax and the user's line.

    Attributes:
        op: as jax names it, `jit(f)/dot_general`.
        source: the user's file and line.
        stack: every frame of the user's code, innermost first.
    """

    op: str
    source: str
    stack: tuple[str, ...]


NO_SOURCE = InstructionSource("", "", ())


def instruction_source(
    module: Module, sources: Sources, start: int, kind: str, computation: str
) -> InstructionSource:
    """The source of the collective at `start`.

    Where the compiler gives none, that of the nearest instruction which has one: the call of its
    fusion; for a sum the instruction that made its operand; else the one that reads its result.
    """
    own = read_source(module, sources, start)
    if own.source and "/" in own.op:
        return own
    at = [start]
    at += [c.start for c in module.calls.get(computation, []) if c.attribute == "calls"][:2]
    for _ in range(_MAX_STEPS):
        for near in (read_source(module, sources, start) for start in at):
            if near.source:
                op = own.op if "/" in own.op else near.op
                return own._replace(op=op) if own.source else near._replace(op=op)
        at = _around(module, at, kind)
    return own


def read_source(module: Module, sources: Sources, start: int) -> InstructionSource:
    """The name and line in the metadata of the instruction at `start`, where it has any.

    >>> read_source(Module('  %a = f32[] add(%b, %c), metadata={op_name="f/add"}'), Sources(""), 0)
    InstructionSource(op='f/add', source='', stack=())
    """
    line = module.line_at(start)
    op = _OP_NAME.search(line)
    stack = sources.stack_of(line)
    return InstructionSource(op[1] if op else "", stack[0] if stack else "", stack)


def _around(module: Module, starts: list[int], kind: str) -> list[int]:
    makers = [m for start in starts for m in _makers(module, start)]
    readers = [r for start in starts for r in module.users(start)]
    sums = kind in ("all-reduce", "reduce-scatter")
    return makers + readers if sums else readers + makers


def _makers(module: Module, start: int) -> list[int]:
    begin, _ = module.span_at(start)
    names = [o.name for o in operands(module.line_at(start))[:3]]
    made = [module.text.rfind(f"%{name} = ", begin, start) for name in names]
    return [module.line_start(at) for at in made if at >= 0]
