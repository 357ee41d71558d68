"""Wraps a traced jaxpr as the function of a program."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax

from shardviz.base.backend.jax_compat import jaxpr_as_fun
from shardviz.programs.backend.bridge import abstract_mesh
from shardviz.programs.backend.build_program import Returned, SpecsByName
from shardviz.programs.backend.trace import Traced, trace
from shardviz.programs.program import Program


# Without a `repr`, because jax reads the text of a function that it traces.
@dataclass(frozen=True, eq=False, repr=False)
class JaxprFunction:
    """A callable jaxpr that takes and returns the same pytrees as the traced function.

    Attributes:
        jaxpr: the closed jaxpr.
        returned: rebuilds the function's result from the jaxpr's results.
        name: name of the function.
    """

    jaxpr: Any
    returned: Returned
    name: str

    def __post_init__(self) -> None:
        # jax reads the function's name from `__name__`.
        object.__setattr__(self, "__name__", self.name)

    def __call__(self, *arguments: Any) -> Any:
        results = jaxpr_as_fun(self.jaxpr)(*jax.tree.leaves(arguments))
        if any(self.returned.before):
            # New values of changed arguments are not part of the result's pytree.
            return tuple(results)
        # Leaves that aren't arrays become None.
        arrays = replace(
            self.returned, non_arrays=dict.fromkeys(self.returned.non_arrays)
        )
        return arrays.unflatten(results)

    def with_jaxpr(self, jaxpr: Any) -> JaxprFunction:
        """Returns this function with another jaxpr."""
        return replace(self, jaxpr=jaxpr)


def as_jaxpr(program: Program, traced: Traced | None = None) -> Program:
    """Returns the program with its function as a JaxprFunction.

    Args:
        program: the program.
        traced: its trace; None to trace it here.

    Raises:
        Exception: any exception that the function raises during tracing.

    >>> from shardviz.base.array_spec import ArraySpec
    >>> from shardviz.base.mesh import make_mesh
    >>> program = Program(jax.numpy.sin, (ArraySpec("x", (8,)),), make_mesh(data=4))
    >>> as_jaxpr(program).fn.name
    'sin'
    """
    if isinstance(program.fn, JaxprFunction):
        return program
    if traced is None:
        traced = trace(program, abstract_mesh(program.mesh))
    jaxpr, returned, specs = traced.stage.jaxpr, traced.out_tree, program.out_specs
    if specs is not None and any(returned.before):
        by_number = enumerate(traced.out_specs)
        specs = SpecsByName({f"output[{i}]": spec for i, spec in by_number})
    function = JaxprFunction(jaxpr, returned, program.name)
    return program.replace(fn=function, out_specs=specs)
