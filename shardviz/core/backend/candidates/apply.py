"""apply_edit(): the program that an edit makes of another one."""

from __future__ import annotations

from collections.abc import Callable

from shardviz.core.backend.bridge import abstract_mesh
from shardviz.core.backend.tracing.build_program import SpecsByName
from shardviz.core.backend.tracing.edited import JaxprFunction, as_jaxpr
from shardviz.core.backend.tracing.trace import trace
from shardviz.core.errors import ProgramError
from shardviz.core.format import listed, shown
from shardviz.core.layout.layout import lay_out
from shardviz.core.program.candidates import Edit
from shardviz.core.program.program import Program


def apply_edit(program: Program, edit: Edit) -> Program:
    """The program after an edit. Nothing is compiled.

    An edit inside of the function is made on its jaxpr, so the new program's function
    is a `JaxprFunction`.

    Raises:
        ProgramError: for an edit that does not fit the program.
        Exception: what the function raises when it is traced.

    >>> from shardviz.core.layout.array_spec import ArraySpec
    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.layout.partition_spec import Spec
    >>> from shardviz.core.program.candidates import edit
    >>> program = Program(abs, (ArraySpec("x", (8,)),), make_mesh(data=4))
    >>> split = edit("argument", array="x", spec=Spec.parse("data"), before=None)
    >>> apply_edit(program, split).arrays[0].spec
    P('data')
    """
    apply = APPLY.get(edit.code)
    if apply is None:
        raise ProgramError(
            f"An edit is one of {listed(APPLY)}; {shown(edit.code)} is for people to make."
        )
    return apply(program, edit)


def _argument(program: Program, edit: Edit) -> Program:
    name, arrays = edit.fields["array"], []
    for array in program.arrays:
        if array.name == name:
            lay_out(array.shape, edit.fields["spec"], program.mesh)
            # Its own spec wins over the rules.
            array = array.replace(spec=edit.fields["spec"])
        arrays.append(array)
    return program.replace(arrays=tuple(arrays))


def _result(program: Program, edit: Edit) -> Program:
    traced = trace(program, abstract_mesh(program.mesh))
    specs = {}
    for output, spec in zip(traced.outputs, traced.out_specs, strict=True):
        specs[output.name] = spec
    if edit.fields["result"] not in specs:
        raise ProgramError(
            f"No result is called {shown(edit.fields['result'])}. There are"
            f" {listed(specs)}."
        )
    specs[edit.fields["result"]] = edit.fields["spec"]
    changed = program.replace(out_specs=SpecsByName(specs))
    return changed.replace(out_specs=_as_tree(changed, specs, traced.out_tree))


def _as_tree(program: Program, specs: dict, returned: object) -> object:
    """Specs in the tree of what the function returns, as users write them."""
    if any(getattr(returned, "before", ())):
        return SpecsByName(specs)
    leaves = iter(specs.values())
    tree, others = returned.tree, returned.others  # type: ignore[attr-defined]
    filled = [None if i in others else next(leaves) for i in range(tree.num_leaves)]
    return tree.unflatten(filled)


def _constraint(program: Program, edit: Edit) -> Program:
    fields, program = edit.fields, as_jaxpr(program)
    function = program.fn
    assert isinstance(function, JaxprFunction)
    changed = function.with_constraints(fields["places"], fields["spec"])
    return program.replace(fn=changed)


def _rule(program: Program, edit: Edit) -> Program:
    return program.replace(rules=edit.fields["rules"])


def _mesh(program: Program, edit: Edit) -> Program:
    return program.replace(mesh=edit.fields["mesh"])


def _donate(program: Program, edit: Edit) -> Program:
    options = {**program.options, "donate": tuple(edit.fields["arguments"])}
    return program.replace(options=options)


#: Code of an edit to what makes it. Files beside this one add theirs.
APPLY: dict[str, Callable[[Program, Edit], Program]] = {
    "argument": _argument,
    "result": _result,
    "constraint": _constraint,
    "rule": _rule,
    "mesh": _mesh,
    "device order": _mesh,
    "donate": _donate,
}
