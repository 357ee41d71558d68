"""A program whose function is a jaxpr, traced once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax

from shardviz.base.backend.jax_compat import jaxpr_as_fun
from shardviz.programs.backend.bridge import abstract_mesh
from shardviz.programs.backend.build_program import Returned, SpecsByName
from shardviz.programs.backend.trace import Traced, trace
from shardviz.programs.program import Program


@dataclass(frozen=True, eq=False)
class JaxprFunction:
    """A function that is a jaxpr, with the arguments and results of a traced function.

    Attributes:
        jaxpr: the closed jaxpr.
        returned: builds the function's result from the results of the jaxpr.
        name: the name of the function.
    """

    jaxpr: Any
    returned: Returned
    name: str

    def __post_init__(self) -> None:
        # jax reads the name from this attribute.
        object.__setattr__(self, "__name__", self.name)

    def __call__(self, *arguments: Any) -> Any:
        results = jaxpr_as_fun(self.jaxpr)(*jax.tree.leaves(arguments))
        if any(self.returned.before):
            # Arguments changed in place are not part of the result's tree.
            return tuple(results)
        # Leaves that are no arrays become None.
        arrays = replace(
            self.returned, non_arrays=dict.fromkeys(self.returned.non_arrays)
        )
        return arrays.unflatten(results)

    def with_jaxpr(self, jaxpr: Any) -> JaxprFunction:
        """The same function with another jaxpr, such as one rewritten."""
        return replace(self, jaxpr=jaxpr)


def as_jaxpr(program: Program, traced: Traced | None = None) -> Program:
    """The same program with a JaxprFunction, traced here unless `traced` is given.

    Raises:
        Exception: any that the function raises when it is traced.

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
