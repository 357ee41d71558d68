"""The arguments of a program in pasted code: every array, and the pytrees that they form."""

from __future__ import annotations

import builtins
import keyword
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from shardviz.core.layout.array import ArraySpec
from shardviz.core.layout.request import Request
from shardviz.core.layout.spec import Spec
from shardviz.core.program.program import Program
from shardviz.widgets.code_values import Name, Unwritable, sharding_code, written

_BUILTIN = frozenset(vars(builtins))


class ArgumentCode(NamedTuple):
    """How the code makes the arguments.

    Attributes:
        source: the lines that make the pytrees; `""` where every array is an argument by itself.
        call: one expression an argument.
        imports: the modules that `source` needs.
    """

    source: str
    call: tuple[str, ...]
    imports: frozenset[str]


def variables(arrays: Iterable[ArraySpec], taken: Iterable[str]) -> list[str]:
    """A Python name for every array: its own where it is one that nothing else has.

    >>> variables([ArraySpec("params.w", (8,)), ArraySpec("class", (8,))], ["params_w"])
    ['params_w_2', 'a_class']
    """
    used = set(taken)
    return [_identifier(array.name, used) for array in arrays]


def _identifier(text: str, used: set[str]) -> str:
    """A name like `text` that is not used yet; it is from now on."""
    # Python itself takes names that look alike for one name.
    name = re.sub(r"\W", "_", unicodedata.normalize("NFKC", text)).rstrip("_") or "_"
    if not name.isidentifier() or keyword.iskeyword(name):
        name = f"a_{name}"
    base, count = name, 2
    while name in used or name in _BUILTIN:
        name, count = f"{base}_{count}", count + 1
    used.add(name)
    return name


def arrays_code(requests: Sequence[Request], names: Sequence[str]) -> str:
    """A line an array: made where it belongs, or a comment with the reason why it cannot be."""
    lines = []
    for name, asked in zip(names, requests, strict=True):
        if asked.layout is None or asked.spec is None:
            lines.append(f"# {name}: {asked.problem}\n")
        else:
            lines.append(f"{name} = {_array_code(asked.array, asked.spec)}\n")
    return "".join(lines)


def _array_code(array: ArraySpec, spec: Spec) -> str:
    # An argument cannot be left to the compiler: it is placed whole there, as a run does.
    whole = Spec(spec.dims, frozenset(), spec.unreduced, spec.reduced)
    placed = sharding_code(whole, array.memory_kind)
    if array.dtype.startswith("key<"):
        from shardviz.core.program.bridge import key_implementation  # loads jax

        seed = f"jax.random.key(0, impl={key_implementation(array.dtype)!r})"
        keys = f"jax.random.split({seed}, {array.shape!r})" if array.shape else seed
        return f"jax.device_put({keys}, {placed})"
    return f"jnp.ones({array.shape!r}, {array.dtype!r}, device={placed})"


def argument_code(program: Program, names: Sequence[str], taken: Iterable[str]) -> ArgumentCode:
    """The arguments in the form in which the function takes them.

    Args:
        program: what is called.
        names: the variable of every array, in order.
        taken: further names that no argument may have.
    """
    if program.tree is None:
        return ArgumentCode("", tuple(names), frozenset())
    from shardviz.core.program.given.arguments import parameter_names  # loads jax, as the tree did

    values = program.tree.unflatten([Name(n) for n in names])
    used, imports = {*names, *taken}, set()
    lines, call, begin = [], [], 0
    parameters = parameter_names(program.fn, len(values))
    for parameter, value, part in zip(parameters, values, program.tree.children(), strict=True):
        leaves = names[begin : begin + part.num_leaves]
        begin += part.num_leaves
        if isinstance(value, Name):
            call.append(value.text)
            continue
        call.append(_identifier(parameter, used))
        lines.append(_tree_code(call[-1], value, leaves, imports))
    return ArgumentCode("".join(lines), tuple(call), frozenset(imports))


def _tree_code(name: str, value: object, leaves: Sequence[str], imports: set[str]) -> str:
    found: set[str] = set()
    try:
        text = f"{name} = {written(value, imports=found)}\n"
    except Unwritable as error:
        kind = error.args[0].__name__
        return (
            f"# {name} holds a {kind}, which no short expression makes: set it above to what the"
            " program was\n# made with; its arrays are replaced by those here.\n"
            f"{name} = jax.tree.unflatten(jax.tree.structure({name}), [{', '.join(leaves)}])\n"
        )
    imports |= found
    return text
