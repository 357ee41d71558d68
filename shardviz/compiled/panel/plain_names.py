"""Names that the page shows for values: the user's functions and lines, not XLA's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace

from shardviz.base.cause import Cause, ValueName
from shardviz.compiled.memory import Buffer
from shardviz.compiled.words import memory as wording
from shardviz.plans.plan import Plan
from shardviz.plans.plan_causes import MoveCause, PrintCause, SumCause

# The number that jax appends to a repeated name, or several numbers, as `mul_{3..6}`.
_NUMBER = re.compile(r"_(\d+|\{[^}]*\})$")
_PRODUCT = "dot_general"


def function_of(op: str) -> str:
    """Returns the function that an operation belongs to, from jax's name of it.

    >>> function_of("jit(f)/jvp(bse,ef->bsf)/dot_general"), function_of("jit(f)/mul")
    ('einsum', 'mul')
    """
    # XLA puts the names of combined operations in parentheses.
    name = op.rpartition("/")[2].removesuffix(")")
    # `jnp.einsum` names its scope by its formula.
    return "einsum" if name == _PRODUCT and "->" in op else name


def name_of_buffer(buffer: Buffer, arguments: Sequence[str] = ()) -> str:
    """Returns the name of a buffer's value or operation, without XLA's number.

    >>> name_of_buffer(Buffer("fusion.3", 8, "f32[2]", "temporaries", "jit(f)/mul"))
    'mul'
    """
    if not buffer.op and not buffer.value:
        return wording.BY_XLA
    if buffer.value in arguments or buffer.kind in ("arguments", "outputs"):
        return buffer.value or wording.BY_XLA
    name = _NUMBER.sub("", buffer.value) or _PRODUCT
    if name == _PRODUCT and buffer.op:
        return function_of(buffer.op)
    return name


class PlainNames:
    """Names of a program's values.

    Args:
        plan: the program's plan; None if unknown.
        ops: pairs of jax's name of an operation and its line, for a program without a
            plan.

    >>> names = PlainNames(None, [("jit(f)/ab,bc->ac/dot_general", "mlp.py:3")])
    >>> names.cause(SumCause("dot_general", ("model",), "inner"))[:18]
    'dot_general sums o'
    """

    def __init__(self, plan: Plan | None, ops: Iterable[tuple[str, str]] = ()):
        self._values = {} if plan is None else plan.without_error.by_name
        places = {*ops, *((op.op, op.source) for op in self._values.values())}
        self._einsum_lines = {
            source for op, source in places if function_of(op) == "einsum"
        }

    def value(self, name: str) -> str:
        """Returns the name of a plan's value, without XLA's number.

        >>> PlainNames(None).value("x")
        'x'
        """
        op = self._values.get(name)
        if op is None or op.kind != "op":
            return name
        if function_of(op.op) == "einsum":
            return "einsum"
        return _NUMBER.sub("", name)

    def argument(self, cause: object) -> str:
        """Returns the argument that a collective moves, or whose gradient it sums."""
        if isinstance(cause, MoveCause):
            op = self._values.get(cause.value)
            return cause.value if op is not None and op.kind == "argument" else ""
        for field in ("gradient_of", "operand"):
            value = getattr(cause, field, None)
            if isinstance(value, ValueName) and value.is_argument:
                return value.name
            if isinstance(value, str):
                return value
        return ""

    def cause(self, cause: object, line: str = "") -> str:
        """Returns a cause's sentence with plain names.

        Args:
            cause: the cause of a collective.
            line: a line that is shown next to the sentence, which leaves it out.
        """
        if isinstance(cause, Cause):
            renamed = {}
            for field in fields(cause):
                value = getattr(cause, field.name)
                if isinstance(value, ValueName) and value.name == _PRODUCT:
                    if value.source in self._einsum_lines:
                        renamed[field.name] = replace(value, name="einsum")
            cause = replace(cause, **renamed)
        elif isinstance(cause, SumCause | MoveCause | PrintCause):
            names = ["value"]
            if isinstance(cause, MoveCause):
                names += ["user", "through"]
            renamed = {n: self._with_line(getattr(cause, n), line) for n in names}
            cause = replace(cause, **renamed)
        return str(cause).replace(f" ({line})", "") if line else str(cause)

    def _with_line(self, name: str, line: str) -> str:
        op = self._values.get(name)
        if op is None or op.kind != "op" or op.source in ("", line):
            return self.value(name)
        return f"{self.value(name)} ({op.source})"
