"""The names of MLIR operations and attributes that plans read.

`mlir_checks.py` checks that the installed jaxlib has all of them; `python -m shardviz
doctor` prints the result.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardviz.base.collective_kind import KINDS

# --- operations -----------------------------------------------------------------------

MODULE_FUNCTION, FUNCTION_CALL, FUNCTION_RETURN = (
    "func.func",
    "func.call",
    "func.return",
)

WHILE, CASE, IF = "stablehlo.while", "stablehlo.case", "stablehlo.if"
OPTIMIZATION_BARRIER = "stablehlo.optimization_barrier"
STABLEHLO_RETURN, COMPOSITE = "stablehlo.return", "stablehlo.composite"
CUSTOM_CALL, CHOLESKY = "stablehlo.custom_call", "stablehlo.cholesky"
CONSTANT, BROADCAST = "stablehlo.constant", "stablehlo.broadcast_in_dim"
ADD, COMPARE, IS_FINITE = "stablehlo.add", "stablehlo.compare", "stablehlo.is_finite"
TANH, ATAN2, RESHAPE = "stablehlo.tanh", "stablehlo.atan2", "stablehlo.reshape"
CONCATENATE, GATHER, SCATTER = (
    "stablehlo.concatenate",
    "stablehlo.gather",
    "stablehlo.scatter",
)
DOT_GENERAL, CONVOLUTION = "stablehlo.dot_general", "stablehlo.convolution"
REDUCE, SLICE, TRANSPOSE = "stablehlo.reduce", "stablehlo.slice", "stablehlo.transpose"

#: Collectives that a program calls in a `shard_map`: name of the operation, or target
#: of the custom call -> kind.
WRITTEN_COLLECTIVES: Mapping[str, str] = {
    kind.stablehlo: name for name, kind in KINDS.items()
}

TOP_K, ERF, RAGGED_DOT = "chlo.top_k", "chlo.erf", "chlo.ragged_dot"

SHARDY_MESH, SHARDY_CONSTANT, SHARDY_RETURN = (
    "sdy.mesh",
    "sdy.constant",
    "sdy.return",
)
CONSTRAINT, RESHARD = "sdy.sharding_constraint", "sdy.reshard"
MANUAL_COMPUTATION, SHARDING_GROUP = "sdy.manual_computation", "sdy.sharding_group"
ALL_GATHER, ALL_REDUCE = "sdy.all_gather", "sdy.all_reduce"
REDUCE_SCATTER, ALL_SLICE = "sdy.reduce_scatter", "sdy.all_slice"
SHARDED_TO_UNREDUCED, REPLICATED_TO_UNREDUCED = (
    "sdy.sharded_to_unreduced",
    "sdy.replicated_to_unreduced",
)

#: All operations above, for `mlir_checks.py`.
OPERATIONS: tuple[str, ...] = (
    *(
        name
        for name in list(globals().values())
        if isinstance(name, str)
        and name.startswith(("func.", "stablehlo.", "chlo.", "sdy."))
    ),
    *(name for name in WRITTEN_COLLECTIVES if "." in name),
    *(kind.shardy for kind in KINDS.values() if kind.shardy),
)

# --- attributes -----------------------------------------------------------------------

# Attributes that Shardy sets on an operation, an argument or a result.
SHARDING_ATTRIBUTE, RULE_ATTRIBUTE = "sdy.sharding", "sdy.sharding_rule"
ORIGINS, EDGES = "sdy.sharding_origins", "sdy.propagation_edges"
RESULT_ORIGINS, RESULT_EDGES = (
    "sdy.result_sharding_origins",
    "sdy.result_propagation_edges",
)
ORIGIN_NAME = "sdy.sharding_origin_name"

FUNCTION_NAME, CALLEE = "sym_name", "callee"
ARGUMENT_ATTRIBUTES, RESULT_ATTRIBUTES = "arg_attrs", "res_attrs"
# Attributes that jax sets on the module, and on arguments and results.
DEVICE_COUNTS = "mhlo.num_partitions", "mhlo.num_replicas"
DONATED, MEMORY_KIND = ("jax.buffer_donor", "tf.aliasing_output"), "mhlo.memory_kind"
RESULT_INFO, GSPMD_SHARDING = "jax.result_info", "mhlo.sharding"
FRONTEND_ATTRIBUTES = "mhlo.frontend_attributes"
#: A key in the frontend attributes of a call.
INLINEABLE = "inlineable"

MESH = "mesh"
ASKED_SHARDING = "sharding"
OUT_SHARDINGS, MANUAL_AXES = "out_shardings", "manual_axes"

CALL_TARGET, HAS_SIDE_EFFECT = "call_target_name", "has_side_effect"
BACKEND_CONFIG, DECOMPOSITION = "backend_config", "decomposition"
COMPARISON_DIRECTION, VALUE = "comparison_direction", "value"
CONCATENATED_DIM, REDUCED_DIMS = "dimension", "dimensions"
PERMUTATION, BROADCAST_DIMS = "permutation", "broadcast_dimensions"
GATHER_NUMBERS = "dimension_numbers"
START_INDICES, LIMIT_INDICES, STRIDES = "start_indices", "limit_indices", "strides"
SOURCE_TARGET_PAIRS, REPLICA_GROUPS = "source_target_pairs", "replica_groups"

#: Shardy's collective -> the attribute that holds its mesh axes.
COLLECTIVE_AXES: Mapping[str, str] = {
    kind.shardy: kind.shardy_axes
    for kind in KINDS.values()
    if kind.shardy and kind.shardy_axes
}

#: Operation -> the attributes that plans read from it.
ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    MODULE_FUNCTION: (FUNCTION_NAME, ARGUMENT_ATTRIBUTES, RESULT_ATTRIBUTES),
    FUNCTION_CALL: (CALLEE, FRONTEND_ATTRIBUTES),
    SHARDY_MESH: (MESH,),
    CONSTRAINT: (ASKED_SHARDING,),
    RESHARD: (ASKED_SHARDING, ORIGIN_NAME),
    MANUAL_COMPUTATION: (OUT_SHARDINGS, MANUAL_AXES, ORIGIN_NAME),
    CUSTOM_CALL: (CALL_TARGET, HAS_SIDE_EFFECT),
    COMPOSITE: (DECOMPOSITION,),
    COMPARE: (COMPARISON_DIRECTION,),
    CONSTANT: (VALUE,),
    CONCATENATE: (CONCATENATED_DIM,),
    REDUCE: (REDUCED_DIMS,),
    TRANSPOSE: (PERMUTATION,),
    BROADCAST: (BROADCAST_DIMS,),
    GATHER: (GATHER_NUMBERS,),
    SLICE: (START_INDICES, LIMIT_INDICES, STRIDES),
    "stablehlo.collective_permute": (SOURCE_TARGET_PAIRS,),
    "stablehlo.all_gather": (REPLICA_GROUPS,),
    "stablehlo.all_reduce": (REPLICA_GROUPS,),
    DOT_GENERAL: (SHARDING_ATTRIBUTE, RULE_ATTRIBUTE, ORIGINS, EDGES),
    WHILE: (RESULT_ORIGINS, RESULT_EDGES),
    **{name: (attribute,) for name, attribute in COLLECTIVE_AXES.items()},
}
