"""Names of the primitives, and of their parameters, that shardviz reads in jaxprs.

jax renames some of them between releases, so each name is written once, here.
`jaxpr_checks.py` traces an example of each primitive and checks its names; `python -m
shardviz doctor` reports the result. Reading a parameter that this jax version lacks
raises `UnknownParameter`. Callers then skip the feature that needs it, with a note.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from shardviz.base.errors import ShardvizError

if TYPE_CHECKING:
    from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
    from jax.lax import ConvDimensionNumbers, GatherDimensionNumbers
    from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec, Sharding

    #: A jaxpr with or without constants.
    AnyJaxpr = ClosedJaxpr | Jaxpr
    #: An operand of an equation.
    Atom = Var | Literal
    #: (contracting dimensions, batch dimensions), each for the left and right operand.
    DotDimensionNumbers = tuple[
        tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]
    ]

T = TypeVar("T")
D = TypeVar("D")

SCAN, WHILE, COND = "scan", "while", "cond"
JIT, SHARD_MAP, CHECKPOINT = "jit", "shard_map", "remat2"
CUSTOM_JVP, CUSTOM_VJP = "custom_jvp_call", "custom_vjp_call"
CONSTRAINT, RESHARD = "sharding_constraint", "reshard"
PSUM, PSUM_INVARIANT, PVARY = "psum", "psum_invariant", "pvary"
PPERMUTE, ALL_GATHER, ALL_TO_ALL = "ppermute", "all_gather", "all_to_all"
PMAX, PMIN, AXIS_INDEX = "pmax", "pmin", "axis_index"
DOT_GENERAL, CONVOLUTION = "dot_general", "conv_general_dilated"
RESHAPE, TRANSPOSE, SQUEEZE = "reshape", "transpose", "squeeze"
BROADCAST, IOTA, CONCATENATE, GATHER = (
    "broadcast_in_dim",
    "iota",
    "concatenate",
    "gather",
)
SELECT, INTEGER_POW, REDUCE_SUM, ADD_ANY = (
    "select_n",
    "integer_pow",
    "reduce_sum",
    "add_any",
)
RANDOM_BITS, PLATFORM_INDEX = "random_bits", "platform_index"
DEBUG_CALLBACK, DEBUG_PRINT = "debug_callback", "debug_print"

#: Primitives that only wrap a function, so they add no level of nesting.
CALLS = (JIT, "pjit", "closed_call")
#: Primitives of `jax.debug.callback` and `jax.debug.print`, which have no results.
DEBUG_CALLS = (DEBUG_CALLBACK, DEBUG_PRINT)
#: Sums over devices in a `shard_map`. jax chooses one by the operand's type.
SUMS = (PSUM, PSUM_INVARIANT)


class UnknownParameter(ShardvizError):
    """This jax version has no parameter of this name.

    Attributes:
        primitive: name of the primitive.
        name: name of the parameter.
    """

    def __init__(self, primitive: str, name: str) -> None:
        super().__init__(f"This jax has no parameter {name!r} of {primitive}.")
        self.primitive, self.name = primitive, name


@dataclass(frozen=True)
class Parameter(Generic[T]):
    """A parameter of a primitive, as stored in an equation.

    >>> import jax
    >>> (equation,) = jax.make_jaxpr(lambda x: x.T)(jax.numpy.zeros((2, 3))).eqns
    >>> PERMUTATION.of(equation), LENGTH.find(equation, 1)
    ((1, 0), 1)
    """

    primitive: str
    name: str

    def of(self, equation: JaxprEqn) -> T:
        """Returns the parameter's value in an equation of this primitive.

        Raises:
            UnknownParameter: if this jax version names it differently.
        """
        try:
            return equation.params[self.name]
        except KeyError:
            raise UnknownParameter(equation.primitive.name, self.name) from None

    def find(self, equation: JaxprEqn, default: D) -> T | D:
        """Returns the value in an equation of any primitive, or `default`."""
        return equation.params.get(self.name, default)


LENGTH: Parameter[int] = Parameter(SCAN, "length")
REVERSE: Parameter[bool] = Parameter(SCAN, "reverse")
UNROLL: Parameter[int] = Parameter(SCAN, "unroll")
SCAN_BODY: Parameter[ClosedJaxpr] = Parameter(SCAN, "jaxpr")

WHILE_CONDITION: Parameter[ClosedJaxpr] = Parameter(WHILE, "cond_jaxpr")
WHILE_BODY: Parameter[ClosedJaxpr] = Parameter(WHILE, "body_jaxpr")
CONDITION_CONSTANTS: Parameter[int] = Parameter(WHILE, "cond_nconsts")
BODY_CONSTANTS: Parameter[int] = Parameter(WHILE, "body_nconsts")
BRANCHES: Parameter[Sequence[ClosedJaxpr]] = Parameter(COND, "branches")

CALL_NAME: Parameter[str] = Parameter(JIT, "name")
CALL_BODY: Parameter[ClosedJaxpr] = Parameter(JIT, "jaxpr")
IN_SHARDINGS: Parameter[tuple[Sharding, ...]] = Parameter(JIT, "in_shardings")
OUT_SHARDINGS: Parameter[tuple[Sharding, ...]] = Parameter(JIT, "out_shardings")
CHECKPOINT_BODY: Parameter[Jaxpr] = Parameter(CHECKPOINT, "jaxpr")
PREVENT_CSE: Parameter[bool] = Parameter(CHECKPOINT, "prevent_cse")
POLICY: Parameter[Callable[..., bool] | None] = Parameter(CHECKPOINT, "policy")

SHARD_MAP_BODY: Parameter[Jaxpr] = Parameter(SHARD_MAP, "jaxpr")
SHARD_MAP_MESH: Parameter[Mesh | AbstractMesh] = Parameter(SHARD_MAP, "mesh")
IN_SPECS: Parameter[Sequence[PartitionSpec]] = Parameter(SHARD_MAP, "in_specs")
OUT_SPECS: Parameter[Sequence[PartitionSpec]] = Parameter(SHARD_MAP, "out_specs")
MANUAL_AXES: Parameter[frozenset[str]] = Parameter(SHARD_MAP, "newly_manual_axes")
CHECK_VMA: Parameter[bool] = Parameter(SHARD_MAP, "check_vma")

CONSTRAINT_SHARDING: Parameter[NamedSharding] = Parameter(CONSTRAINT, "sharding")
RESHARD_SHARDING: Parameter[NamedSharding] = Parameter(RESHARD, "dst_sharding")
RESHAPE_SHARDING: Parameter[NamedSharding | None] = Parameter(RESHAPE, "sharding")
DOT_SHARDING: Parameter[NamedSharding | None] = Parameter(DOT_GENERAL, "out_sharding")

SUMMED_AXES: Parameter[Sequence[str]] = Parameter(PSUM_INVARIANT, "axes")
VARIED_AXES: Parameter[Sequence[str]] = Parameter(PVARY, "axes")
SUM_GROUPS: Parameter[object] = Parameter(PSUM, "axis_index_groups")
PERMUTED_AXES: Parameter[Sequence[str] | str] = Parameter(PPERMUTE, "axis_name")
PERMUTED_PAIRS: Parameter[Sequence[tuple[int, int]]] = Parameter(PPERMUTE, "perm")
INDEXED_AXES: Parameter[Sequence[str] | str] = Parameter(AXIS_INDEX, "axis_name")
GATHERED_AXES: Parameter[Sequence[str] | str] = Parameter(ALL_GATHER, "axis_name")
GATHERED_DIM: Parameter[int] = Parameter(ALL_GATHER, "all_gather_dimension")
IS_TILED: Parameter[bool] = Parameter(ALL_GATHER, "tiled")

DOT_DIMENSIONS: Parameter[DotDimensionNumbers] = Parameter(
    DOT_GENERAL, "dimension_numbers"
)
CONVOLUTION_DIMENSIONS: Parameter[ConvDimensionNumbers] = Parameter(
    CONVOLUTION, "dimension_numbers"
)
BATCH_GROUPS: Parameter[int] = Parameter(CONVOLUTION, "batch_group_count")
GATHER_DIMENSIONS: Parameter[GatherDimensionNumbers] = Parameter(
    GATHER, "dimension_numbers"
)
REDUCED_DIMS: Parameter[Sequence[int]] = Parameter(REDUCE_SUM, "axes")
PERMUTATION: Parameter[Sequence[int]] = Parameter(TRANSPOSE, "permutation")
BROADCAST_DIMS: Parameter[Sequence[int]] = Parameter(BROADCAST, "broadcast_dimensions")
SQUEEZED_DIMS: Parameter[Sequence[int]] = Parameter(SQUEEZE, "dimensions")
IOTA_DIM: Parameter[int] = Parameter(IOTA, "dimension")
CONCATENATED_DIM: Parameter[int] = Parameter(CONCATENATE, "dimension")
EXPONENT: Parameter[int] = Parameter(INTEGER_POW, "y")

#: All parameters above, for the doctor's check.
PARAMETERS: tuple[Parameter[object], ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, Parameter)
)


def collective_axes(equation: JaxprEqn) -> tuple[str, ...]:
    """Returns the mesh axes of a collective in a `shard_map`; otherwise `()`."""
    axes = SUMMED_AXES.find(equation, None)
    if axes is None:
        axes = PERMUTED_AXES.find(equation, ())
    return (axes,) if isinstance(axes, str) else tuple(axes)
