"""apply_edit(): the program that an edit makes of another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardviz.advise.backend.edited import with_constraint
from shardviz.advise.candidates import Edit
from shardviz.base.errors import ProgramError
from shardviz.base.format import listed, shown
from shardviz.base.layout import lay_out
from shardviz.base.mesh import MeshSpec
from shardviz.programs.backend.jaxpr_function import as_jaxpr
from shardviz.programs.program import Program


def apply_edit(program: Program, edit: Edit) -> Program:
    """The program after an edit. Nothing is compiled.

    One inside of the function is made on its jaxpr, so the new program's function is a
    `JaxprFunction`.

    Raises:
        ProgramError: for an edit that does not fit the program.
        Exception: what the function raises when it is traced.

    >>> from shardviz.base.array_spec import ArraySpec
    >>> from shardviz.base.mesh import make_mesh
    >>> from shardviz.base.partition_spec import Spec
    >>> from shardviz.advise.candidates import edit
    >>> program = Program(abs, (ArraySpec("x", (8,)),), make_mesh(data=4))
    >>> split = edit("argument", array="x", spec=Spec.parse("data"), before=None)
    >>> apply_edit(program, split).arrays[0].spec
    P('data')
    """
    inside, apply = INSIDE.get(edit.code), APPLY.get(edit.code)
    if inside is not None:
        program = as_jaxpr(program)
        function: Any = program.fn
        changed = inside(function.jaxpr, edit, program.mesh)
        return program.replace(fn=function.with_jaxpr(changed))
    if apply is None:
        raise ProgramError(
            f"An edit is one of {listed(INSIDE | APPLY)}; {shown(edit.code)} is for"
            " people to make."
        )
    return apply(program, edit)


def _argument(program: Program, edit: Edit) -> Program:
    arrays = []
    for array in program.arrays:
        if array.name == edit.fields["array"]:
            lay_out(array.shape, edit.fields["spec"], program.mesh)
            # Its own spec wins over the rules.
            array = array.replace(spec=edit.fields["spec"])
        arrays.append(array)
    return program.replace(arrays=tuple(arrays))


def _donate(program: Program, edit: Edit) -> Program:
    options = {**program.options, "donate": tuple(edit.fields["arguments"])}
    return program.replace(options=options)


#: Code of an edit inside of the function to what makes it, given a jaxpr, the edit and
#: the mesh; and of the others given the program. Files beside this one add theirs.
INSIDE: dict[str, Callable[[Any, Edit, MeshSpec], Any]] = {
    "constraint": with_constraint
}
APPLY: dict[str, Callable[[Program, Edit], Program]] = {
    "argument": _argument,
    "result": lambda program, edit: program.replace(out_specs=edit.fields["out_specs"]),
    "rule": lambda program, edit: program.replace(rules=edit.fields["rules"]),
    "mesh": lambda program, edit: program.replace(mesh=edit.fields["mesh"]),
    "device order": lambda program, edit: program.replace(mesh=edit.fields["mesh"]),
    "donate": _donate,
}
