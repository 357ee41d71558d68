"""apply_edit(): applies an edit to a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from shardviz.advise.backend.edited import (
    with_constrained_argument,
    with_constrained_value,
)
from shardviz.advise.backend.loop_sums import with_sums_after_loop
from shardviz.advise.backend.remat import with_rematerialisation
from shardviz.advise.backend.unreduced import with_unreduced_products
from shardviz.advise.edits import (
    CastBeforeLoop,
    ChangeConstraint,
    ConstrainArgument,
    ConstrainValue,
    Edit,
    FunctionEdit,
    ProgramEdit,
    Rematerialise,
    SumAfterLoop,
    SumUnreduced,
)
from shardviz.base.errors import ProgramError
from shardviz.base.mesh import MeshSpec
from shardviz.programs.backend.jaxpr_function import JaxprFunction, as_jaxpr
from shardviz.programs.program import Program

#: Edit type -> function that applies it: `(jaxpr, edit, mesh) -> changed jaxpr`.
FUNCTION_EDITS: dict[type[FunctionEdit], Callable[[Any, Any, MeshSpec], Any]] = {
    ConstrainArgument: with_constrained_argument,
    ConstrainValue: with_constrained_value,
    ChangeConstraint: with_constrained_value,
    Rematerialise: with_rematerialisation,
    SumAfterLoop: with_sums_after_loop,
    CastBeforeLoop: with_sums_after_loop,
    SumUnreduced: with_unreduced_products,
}


def apply_edit(program: Program, edit: Edit) -> Program:
    """Returns the program after an edit, without compiling it.

    An edit inside the function changes its jaxpr, so the new program's function is a
    `JaxprFunction`.

    Raises:
        ProgramError: if the edit does not fit the program.
        Exception: any error that the user's function raises when traced.

    >>> from shardviz.advise.edits import SplitArgument
    >>> from shardviz.base.array_spec import ArraySpec
    >>> from shardviz.base.mesh import make_mesh
    >>> from shardviz.base.partition_spec import Spec
    >>> program = Program(abs, (ArraySpec("x", (8,)),), make_mesh(data=4))
    >>> apply_edit(program, SplitArgument("x", Spec.parse("data"))).arrays[0].spec
    P('data')
    """
    if isinstance(edit, ProgramEdit):
        return edit.apply(program)
    if not isinstance(edit, FunctionEdit):
        raise ProgramError(
            f"An edit of the program's types ({edit.code!r}) belongs to the program that"
            " it was found for, and cannot be applied to another one."
        )
    program = as_jaxpr(program)
    function = cast(JaxprFunction, program.fn)
    jaxpr = FUNCTION_EDITS[type(edit)](function.jaxpr, edit, program.mesh)
    return program.replace(fn=function.with_jaxpr(jaxpr))
