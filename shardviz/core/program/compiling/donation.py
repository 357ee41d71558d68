"""Which donated arguments a compiled program really reuses, and the sentence for those it does not.

jax warns where it cannot place a donated argument itself; where the compiler is left to choose, it
says nothing. The head of the compiled text tells both.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from shardviz.core.errors import plural
from shardviz.core.program.compiling.tracing import donated_leaves, flat_names
from shardviz.core.program.program import Program

_ALIAS = re.compile(r"\{[\d, ]*\}: \((\d+), \{[\d, ]*\}, (?:may|must)-alias\)")
_PARAMETER = re.compile(r" parameter\((\d+)\).*op_name=\"([^\"]*)\"")
_MOST = 8


def reused_leaves(program: Program, text: str) -> tuple[int, ...] | None:
    """The positions of leaves whose memory an output takes; None where the text does not say.

    Args:
        program: what was compiled.
        text: the text of the compiled program.
    """
    if not donated_leaves(program) or not text:
        return None
    names = {name: position for position, name in enumerate(flat_names(program))}
    numbers = {int(n) for n in _ALIAS.findall(text.partition("\n")[0])}
    entry = text[max(0, text.find("\nENTRY ")) :]
    parameters = {int(number): name for number, name in _PARAMETER.findall(entry)}
    if any(number not in parameters for number in numbers):
        return None
    return tuple(sorted(names[parameters[n]] for n in numbers if parameters[n] in names))


def donation_note(program: Program, reused: Sequence[int] | None) -> str:
    """The sentence for donated arguments that no output takes the place of, or `""`.

    >>> from shardviz.core.layout.array import ArraySpec
    >>> from shardviz.core.layout.mesh import make_mesh
    >>> x = ArraySpec("x", (8, 8))
    >>> program = Program(abs, (x,), make_mesh(data=4), options={"donate": (0,)})
    >>> donation_note(program, (0,)), donation_note(program, ())
    ('', '1 donated array was not usable: x, f32[8, 8]. No output takes its memory: none of the \
same bytes on each device is left for it.')
    """
    if reused is None:
        return ""
    left = [p for p in donated_leaves(program) if p not in reused]
    if not left:
        return ""
    arrays = [f"{program.arrays[p].name}, {program.arrays[p].short}" for p in left]
    some = "; ".join(arrays[:_MOST])
    if len(arrays) > _MOST:
        some += f"; and {len(arrays) - _MOST} more"
    verb, whose = ("was", "its") if len(left) == 1 else ("were", "their")
    return (
        f"{plural(len(left), 'donated array')} {verb} not usable: {some}. No output takes {whose}"
        f" memory: none of the same bytes on each device is left for"
        f" {'it' if len(left) == 1 else 'them'}."
    )
