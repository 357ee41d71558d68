"""What Explicit axes refuse: the problem in words, and answers that jax really accepts."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from shardviz.core.backend.bridge import to_jax
from shardviz.core.backend.build_program import build_program
from shardviz.core.backend.shardy.explicit_axes import diagnose, price
from shardviz.core.backend.tracing import trace
from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.mesh import make_mesh
from shardviz.core.layout.mesh_context import MeshContext
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.rules import Dialect
from shardviz.core.program.plan_values import Diagnosis
from shardviz.core.program.program import Program
from shardviz.core.program.report import Collective

EXPLICIT = make_mesh(x=4, y=2, axis_types="Explicit")


class Case(NamedTuple):
    fn: Callable[..., Any]
    arrays: tuple[tuple[Any, ...], ...]
    """Shape, spec and perhaps dtype of each."""
    op: str
    problem: str
    words: tuple[str, ...]
    """What the first choices say."""


def convolved(a: Any, k: Any) -> Any:
    return lax.conv_general_dilated(a, k, (1, 1), "SAME")


def updated(a: Any, i: Any, u: Any) -> Any:
    return a.at[i].add(u)


ROWS, COLUMNS = ((8, 16), "x, None"), ((8, 16), "None, x")
OTHER = ((8, 16), "y, None")
FEW = ((4,), "None", "int32")
UNKNOWN = "what it costs is known once it is compiled."
GATHERED = (
    "Reshard the operand to P(None, 'x'); the result is P(None, 'x'): an all-to-all of 128 B"
    " over x.",
    "Reshard the operand to P(None, None); the result is P(None, None): an all-gather of 512 B"
    " over x.",
)


def along_split(op: str) -> str:
    return f"{op} works along dimension 0, which is split over x, and needs it not split."


def uneven(op: str, size: int) -> str:
    return (
        f"{op} makes a dimension of size {size} out of one that is split over x, and {size} does"
        " not divide by 4."
    )


REFUSED = {
    "contracting dimensions alike": Case(
        lambda a, b: a @ b,
        (COLUMNS, ((16, 4), "x, None")),
        "dot_general",
        "Both operands of dot_general are split over x along the dimension that it sums: each"
        " device has a part of the sum, and it is ambiguous how the result is split.",
        (
            "P('x', None): an all-reduce of 128 B over x.",
            "P(None, 'x'): an all-reduce of 128 B over x.",
            "P(None, None): an all-reduce of 128 B over x.",
        ),
    ),
    "contracting dimensions apart": Case(
        lambda a, b: a @ b,
        (COLUMNS, ((16, 4), "y, None")),
        "dot_general",
        "dot_general sums over a dimension that is split over x on the left and over y on the"
        " right.",
        ("P('x', 'y'): a collective-permute of 32 B over x and y and an all-reduce of 64 B"
         " over x.",),
    ),
    "batch dimensions apart": Case(
        lambda a, b: jnp.einsum("bij,bjk->bik", a, b),
        (((4, 8, 16), "x, None, None"), ((4, 16, 8), "y, None, None")),
        "dot_general",
        "The batch dimensions of dot_general are split over x on the left and over y on the"
        " right.",
        (),
    ),
    "one axis on both outer dimensions": Case(
        lambda a, b: a @ b,
        (ROWS, ((16, 4), "None, x")),
        "dot_general",
        "dot_general would split its result over x in two dimensions from operands that are"
        " P('x', None) and P(None, 'x'); a mesh axis can split one.",
        ("P('x', None): an all-gather of 256 B over x.",),
    ),
    "in a function called inside": Case(
        lambda a, b: jax.jit(lambda a: a @ b)(a),
        (COLUMNS, ((16, 4), "x, None")),
        "dot_general",
        "Both operands of dot_general are split over x along the dimension that it sums: each"
        " device has a part of the sum, and it is ambiguous how the result is split.",
        ("P('x', None): an all-reduce of 128 B over x.",),
    ),
    "in a gradient": Case(
        lambda a, b: jax.grad(lambda a: jnp.sum(jnp.dot(a, b)))(a),
        (COLUMNS, ((16, 16), "x, None")),
        "dot_general",
        "Both operands of dot_general are split over x along the dimension that it sums: each"
        " device has a part of the sum, and it is ambiguous how the result is split.",
        ("P(None, 'x'): an all-reduce of 512 B over x.",),
    ),
    "elementwise": Case(
        lambda a, b: a + b,
        (ROWS, OTHER),
        "add",
        "The operands of add are split differently: P('x', None) and P('y', None).",
        ("Reshard the left operand to P(None, 'x'); the result is P('y', 'x'): an all-to-all of"
         " 128 B over x.",),
    ),
    "elementwise with broadcasting": Case(
        lambda a, b: a * b,
        (ROWS, ((16,), "x")),
        "mul",
        "mul would split its result over x in two dimensions from operands that are P('x', None)"
        " and P(None, 'x'); a mesh axis can split one.",
        ("Reshard the right operand to P(None, None); the result is P('x', None): an all-gather of"
         " 64 B over x.",),
    ),
    "where": Case(
        lambda a, b: jnp.where(a > 0, a, b),
        (ROWS, COLUMNS),
        "select_n",
        "The operands of select_n are split differently: P('x', None) and P(None, 'x').",
        ("Reshard the case for false to P('x', None); the result is P('x', None): an all-to-all of"
         " 128 B over x.",),
    ),
    "reshape that merges": Case(
        lambda a: a.reshape(-1),
        (((8, 16), "None, y"),),
        "reshape",
        "reshape from (8, 16) to (128,) takes apart a dimension that is split (P(None, 'y')), and"
        " no mesh axis can follow it.",
        ("P('y'): an all-to-all of 256 B over y.", "P(None): an all-gather of 512 B over y."),
    ),
    "reshape that splits": Case(
        lambda a: a.reshape(2, 4, 16),
        (ROWS,),
        "reshape",
        "reshape from (8, 16) to (2, 4, 16) takes apart a dimension that is split (P('x', None)),"
        " and no mesh axis can follow it.",
        ("P(None, None, 'x'): an all-to-all of 128 B over x.",),
    ),
    "concatenate": Case(
        lambda a, b: jnp.concatenate([a, b]),
        (ROWS, OTHER),
        "concatenate",
        "The operands of concatenate are split differently: P('x', None) and P('y', None).",
        (),
    ),
    "gather": Case(
        lambda a, i: a[i],
        (ROWS, FEW),
        "gather",
        "Indexing reads an array that is P('x', None) by indices that are P(None, None), and it is"
        " ambiguous how the result is split.",
        (f"P('x', None): {UNKNOWN}",),
    ),
    "scatter": Case(
        updated,
        (ROWS, FEW, ((4, 16), "None, None")),
        "scatter-add",
        "Indexing writes into an array that is P('x', None) by indices that are P(None, None), and"
        " it is ambiguous how the result is split.",
        (f"P('x', None): {UNKNOWN}", f"P(None, 'x'): {UNKNOWN}"),
    ),
    "slice": Case(lambda a: a[:3], (ROWS,), "slice", uneven("slice", 3), GATHERED),
    "pad": Case(
        lambda a: jnp.pad(a, ((1, 1), (0, 0))), (ROWS,), "pad", uneven("pad", 10), ()
    ),
    "window": Case(
        lambda a: lax.reduce_window(a, 0.0, lax.add, (2, 1), (1, 1), "VALID"),
        (ROWS,),
        "reduce_window_sum",
        uneven("reduce_window_sum", 7),
        GATHERED,
    ),
    "convolution": Case(
        convolved,
        (((4, 8, 16, 16), "None, x"), ((8, 8, 3, 3), "None, x")),
        "conv_general_dilated",
        "The operands of the convolution are P(None, 'x', None, None) and P(None, 'x', None,"
        " None), and it is ambiguous how the result is split.",
        ("P(None, 'x', None, None): an all-reduce of 32 KiB over x.",),
    ),
    "sort": Case(lambda a: jnp.sort(a, 0), (ROWS,), "sort", along_split("sort"), GATHERED),
    "cumsum": Case(lambda a: jnp.cumsum(a, 0), (ROWS,), "cumsum", along_split("cumsum"), GATHERED),
    "tile": Case(lambda a: jnp.tile(a, (2, 1)), (ROWS,), "tile", along_split("tile"), ()),
    "top_k": Case(
        lambda a: lax.top_k(a, 2),
        (COLUMNS,),
        "top_k",
        "top_k works along dimension 1, which is split over x, and needs it not split.",
        ("Reshard the operand to P('x', None); the result is P('x', None): an all-to-all of 128 B"
         " over x.",),
    ),
    "repeat": Case(
        lambda a: jnp.repeat(a, 2, 0),
        (ROWS,),
        "repeat",
        "jax does not infer a sharding for repeat: it has to be given.",
        ("P('x', None): nothing moves.",),
    ),
    "ragged dot": Case(
        lax.ragged_dot,
        (COLUMNS, ((2, 16, 4), "None, x"), ((2,), "None", "int32")),
        "ragged_dot_general",
        "jax does not infer a sharding for ragged_dot_general: it has to be given.",
        (f"Put it inside of jax.sharding.auto_axes(..., out_sharding=P('x', None)): {UNKNOWN}",),
    ),
    "scan": Case(
        lambda a, b: lax.scan(lambda c, _: (c @ b, None), a, None, length=2)[0],
        (ROWS, ((16, 16), "None, y")),
        "scan",
        "The carry c goes into the loop as P('x', None) and comes out of its body as"
        " P('x', 'y').",
        ("Reshard to P('x', None) at the end of the body: an all-gather of 128 B over y.",),
    ),
    "while": Case(
        lambda a, b: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] @ b), (0, a)),
        (ROWS, ((16, 16), "None, y")),
        "while_loop",
        "The carry c[1] goes into the loop as P('x', None) and comes out of its body as"
        " P('x', 'y').",
        ("Reshard to P('x', None) at the end of the body: an all-gather of 128 B over y.",),
    ),
    "cond": Case(
        lambda a, b: lax.cond(True, lambda: (a, a), lambda: (a, b)),
        (ROWS, OTHER),
        "cond",
        "One branch gives P('x', None) and the other P('y', None).",
        ("Reshard to P('x', None) at the end of the other branch: a collective-permute of 128 B"
         " over x and y.",),
    ),
    "constraint": Case(
        lambda a: lax.with_sharding_constraint(a, Spec.parse("y").to_jax()),
        (ROWS,),
        "with_sharding_constraint",
        "With Explicit axes a constraint only checks: the value is P('x', None) and not"
        " P('y', None). jax.sharding.reshard changes it.",
        ("Reshard to P('y', None) in place of the constraint: a collective-permute of 128 B over x"
         " and y and an all-gather of 256 B over x.",),
    ),
}  # fmt: skip


def program(fn: Callable[..., Any], *arrays: Any, mesh: Any = EXPLICIT) -> Program:
    names = inspect.signature(fn).parameters
    specs = [
        ArraySpec(name, shape, None, dtype[0] if dtype else "float32", Spec.parse(spec))
        for name, (shape, spec, *dtype) in zip(names, arrays, strict=False)
    ]
    made = build_program(fn, specs, mesh, None, Dialect.LINEN, None, None, (), "")
    return made.replace(context=MeshContext(abstract=mesh))  # as under jax.set_mesh


def diagnosed(made: Program) -> Diagnosis | None:
    mesh = to_jax(made.mesh)
    try:
        trace(made, mesh)
    except Exception as error:  # noqa: BLE001  whatever it is, it is diagnosed
        return diagnose(error, made, mesh)
    raise AssertionError("jax took it")


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    case = REFUSED[name]
    found = diagnosed(program(case.fn, *case.arrays))
    assert found is not None
    assert (found.op, found.problem) == (case.op, case.problem)
    assert tuple(c.words for c in found.choices)[: len(case.words)] == case.words
    assert found.source.startswith("test_diagnosis.py:") or name == "ragged dot"


# One of each way to answer, written as a person would write it.
ANSWERS = {
    "contracting dimensions alike": lambda spec: lambda a, b: jnp.dot(a, b, out_sharding=spec),
    "reshape that splits": lambda spec: lambda a: lax.reshape(a, (2, 4, 16), out_sharding=spec),
    "gather": lambda spec: lambda a, i: a.at[i].get(out_sharding=spec),
    "scatter": lambda spec: lambda a, i, u: a.at[i].add(u, out_sharding=spec),
    "repeat": lambda spec: lambda a: jnp.repeat(a, 2, 0, out_sharding=spec),
    "convolution": lambda spec: (
        lambda a, k: lax.conv_general_dilated(a, k, (1, 1), "SAME", out_sharding=spec)
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_every_choice_is_accepted_as_a_person_writes_it(name):
    case = REFUSED[name]
    found = diagnosed(program(case.fn, *case.arrays))
    assert found is not None
    assert len(found.choices) >= 3
    for choice in found.choices:
        answered = program(ANSWERS[name](choice.out_sharding.to_jax()), *case.arrays)
        (aval,) = trace(answered, to_jax(EXPLICIT)).stage.jaxpr.out_avals
        assert aval.sharding.spec == choice.out_sharding.to_jax()


@pytest.mark.parametrize("name", REFUSED)
def test_the_cheapest_comes_first_and_sums_put_off_last(name):
    case = REFUSED[name]
    found = diagnosed(program(case.fn, *case.arrays))
    assert found is not None
    assert found.choices
    now = [c for c in found.choices if not c.out_sharding.unreduced]
    sent = [sum(k.sent_bytes or 0 for k in c.collectives or ()) for c in now]
    assert sent == sorted(sent)
    assert list(found.choices[: len(now)]) == now
    specs = [c.out_sharding for c in found.choices]
    assert len(set(specs)) == len(specs)


@pytest.mark.parametrize("name", ["gather", "scatter", "ragged dot"])
def test_no_price_is_given_where_the_compiler_decides_inside(name):
    found = diagnosed(program(REFUSED[name].fn, *REFUSED[name].arrays))
    assert found is not None
    assert found.choices
    assert {(c.collectives, c.bytes_per_device) for c in found.choices} == {(None, None)}


def test_a_sum_may_be_put_off():
    case = REFUSED["contracting dimensions alike"]
    found = diagnosed(program(case.fn, *case.arrays))
    assert found is not None
    last = found.choices[-1]
    assert last.out_sharding == Spec.parse("None, None, unreduced={x}")
    assert last.words.endswith("; by its type the sum over x is still due.")


def test_a_cost_names_the_operand_that_causes_it():
    case = REFUSED["contracting dimensions apart"]
    found = diagnosed(program(case.fn, *case.arrays))
    assert found is not None
    causes = [k.cause for choice in found.choices for k in choice.collectives or ()]
    assert any("left operand" in c or "right operand" in c for c in causes), causes
    assert not any("values[" in c for c in causes), causes


def test_operands_as_jax_writes_them():
    case = REFUSED["contracting dimensions alike"]
    found = diagnosed(program(case.fn, *case.arrays))
    assert found is not None
    assert found.operands == ("float32[8,16@x]", "float32[16@x,4]")


def test_costs_the_same_on_a_million_devices():
    big = make_mesh(x=1024, y=1024, axis_types="Explicit")
    arrays = (((8192, 4096), "None, x"), ((4096, 2048), "x, None"))
    found = diagnosed(program(lambda a, b: a @ b, *arrays, mesh=big))
    assert found is not None
    (collective,) = found.choices[0].collectives
    assert (collective.kind, collective.group_size) == ("all-reduce", 1024)


def test_other_errors_are_not_about_shardings():
    def broken(a):
        raise KeyError("no such layer")

    assert diagnosed(program(broken, ROWS)) is None
    assert diagnosed(program(lambda a, b: a @ b, ROWS, ROWS)) is None
    assert diagnosed(program(lambda a: lax.scan(lambda c, _: (c[:4], 0), a, None, 2), ROWS)) is None


def test_auto_axes_are_never_diagnosed():
    auto = make_mesh(x=4, y=2)
    made = program(lambda a, b: a @ b, ROWS, ROWS, mesh=auto)
    assert diagnosed(made) is None


def test_a_function_that_changes_its_mind_is_still_diagnosed():
    calls = []

    def fickle(a, b):
        calls.append(1)
        return a @ b if len(calls) == 1 else a

    found = diagnosed(program(fickle, COLUMNS, ((16, 4), "x, None")))
    assert found is not None
    assert found.choices == ()
    assert found.problem.startswith("ShardingTypeError: Contracting dimensions are sharded")


def test_tracebacks_are_filtered_again_afterwards():
    before = jax.config.values["jax_traceback_filtering"]
    diagnosed(program(REFUSED["sort"].fn, ROWS))
    assert jax.config.values["jax_traceback_filtering"] == before


PRICES = {
    "nothing": ((), "nothing moves"),
    "one": (
        (Collective("all-reduce", ("model",), 131072),),
        "an all-reduce of 128 KiB over model",
    ),
    "three": (
        (
            Collective("reduce-scatter", ("x",), 8),
            Collective("collective-permute", ("x", "y"), 16),
            Collective("all-gather", (), 1),
        ),
        "a reduce-scatter of 8 B over x, a collective-permute of 16 B over x and y and an"
        " all-gather of 1 B over the devices",
    ),
}


@pytest.mark.parametrize("name", PRICES)
def test_prices_in_words(name):
    collectives, words = PRICES[name]
    assert price(collectives) == words
