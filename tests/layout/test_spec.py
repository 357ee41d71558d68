"""Spec: what people type, what JAX writes, and what does not fit."""

from __future__ import annotations

import subprocess
import sys

import jax
import pytest

import shardviz as sv
from shardviz.axis_rules.libraries import spec_of
from shardviz.base.errors import LayoutError, SpecError
from shardviz.base.layout import lay_out
from shardviz.base.mesh import make_mesh
from shardviz.base.partition_spec import Spec

P = jax.sharding.PartitionSpec
X, Y, YZ = ("x",), ("y",), ("y", "z")


@pytest.mark.parametrize(
    ("text", "dims"),
    [
        ("P('x', None, ('y', 'z'))", (X, (), YZ)),
        ('P("x", None, ["y", "z"])', (X, (), YZ)),
        ("PartitionSpec('x')", (X,)),
        ("jax.sharding.PartitionSpec('x', None)", (X, ())),
        ("jax.P('x',)", (X,)),
        ("x, None, (y, z)", (X, (), YZ)),
        ("x,\n  None,\n  (y, z),\n", (X, (), YZ)),
        ("x # the rows", (X,)),
        ("null, x", ((), X)),
        ("(x)", (X,)),
        ("(x,)", (X,)),
        ("()", ((),)),
        ("(y, z)", (YZ,)),
        ("P((y, z))", (YZ,)),
        ("", ()),
        ("P()", ()),
        ("  P(  )  ", ()),
        ("'None'", (("None",),)),
        ("'two words'", (("two words",),)),
        (r"'it\'s'", (("it's",),)),
        ("x, x", (X, X)),
    ],
)
def test_typed_specs_are_read(text, dims):
    assert Spec.parse(text).dims == dims


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("P(P.UNCONSTRAINED, 'x')", Spec(((), X), frozenset({0}))),
        ("x, UNCONSTRAINED", Spec((X, ()), frozenset({1}))),
        ("P('x', unreduced={'y'})", Spec((X,), unreduced=frozenset("y"))),
        ("x, unreduced=y, reduced={'z', w}",
         Spec((X,), unreduced=frozenset("y"), reduced=frozenset("zw"))),
        ("unreduced={}", Spec()),
        ("x, unreduced=y, unreduced_kind=max",
         Spec((X,), unreduced=frozenset("y"), unreduced_kind="max")),
        ("P('x', unreduced={'y'}, unreduced_kind=jax.sharding.UnreducedKind.min)",
         Spec((X,), unreduced=frozenset("y"), unreduced_kind="min")),
    ],
)  # fmt: skip
def test_typed_marks_are_read(text, spec):
    assert Spec.parse(text) == spec


AUTO = make_mesh(x=4, y=2)
EXPLICIT = make_mesh(x=4, y=2, axis_types="Explicit")
MANUAL = make_mesh(x=4, y=2, axis_types=("Auto", "Manual"))


@pytest.mark.parametrize(
    ("spec", "mesh"),
    [
        ("q", AUTO),
        ("x, None, x", AUTO),
        ("(x, x)", AUTO),
        ("UNCONSTRAINED", EXPLICIT),
        ("unreduced={x}, reduced={x}", EXPLICIT),
        ("unreduced={q}", EXPLICIT),
        ("x, reduced={x}", EXPLICIT),
        ("unreduced={x}", AUTO),
        ("reduced={x}", AUTO),
        ("x, None, None, y", AUTO),
        ("None, x", AUTO),
        ("None, (x, y)", AUTO),
        ("x", MANUAL),
    ],
)
def test_specs_that_do_not_fit_are_refused(spec, mesh):
    with pytest.raises((SpecError, LayoutError)):
        lay_out((8, 510, 8), Spec.parse(spec), mesh)


@pytest.mark.parametrize(
    "theirs",
    [P(), P(None), P("x"), P("x", None), P(("x",)), P(()), P(["x", "y"]), P(None, ("y", "x")),
     P(P.UNCONSTRAINED, "x"), P("x", unreduced={"y"}), P(reduced={"x"}, unreduced={"y"})],
    ids=str,
)  # fmt: skip
def test_jax_reads_and_writes_the_same(theirs):
    ours = spec_of(theirs)
    assert ours.to_jax() == theirs
    assert Spec.parse(str(ours)).to_jax() == theirs


@pytest.mark.parametrize("kind", ["sum", "max", "min"])
def test_the_kind_of_partial_results_round_trips(kind):
    kinds = getattr(jax.sharding, "UnreducedKind", None)
    ours = Spec.of("x", unreduced={"y"}, unreduced_kind=kind)
    assert Spec.parse(str(ours)) == ours != Spec.of("x")
    if kinds is None and kind != "sum":  # before jax 0.12
        with pytest.raises(SpecError):
            ours.to_jax()
        return
    marks = {} if kinds is None else {"unreduced_kind": kinds[kind]}
    theirs = P("x", unreduced={"y"}, **marks)
    assert ours.to_jax() == theirs
    layout = sv.layout((8,), theirs, EXPLICIT)
    assert layout.spec == ours
    assert sv.to_jax(layout).spec == theirs


@pytest.mark.parametrize("spec", ["unreduced_kind=max", "unreduced=x, unreduced_kind=mean"])
def test_kinds_of_no_partial_result_are_refused(spec):
    with pytest.raises(SpecError):
        Spec.parse(spec)


def test_short_specs_are_equivalent_and_not_equal():
    short, long = Spec.of("x"), Spec.of("x", None, None)
    assert short != long
    assert short.equivalent(long)
    assert not short.equivalent(Spec.of(None, "x"))
    assert not short.equivalent(Spec.parse("x, UNCONSTRAINED"))
    assert Spec.of(None, None).equivalent(Spec())


def test_partial_results_of_two_kinds_differ():
    total, largest = (Spec.of(unreduced={"x"}, unreduced_kind=kind) for kind in ("sum", "max"))
    assert total != largest
    assert not total.equivalent(largest)


def test_without_jax_a_spec_says_what_it_needs():
    code = (
        "import sys; sys.modules['jax'] = None\n"
        "from shardviz.base.partition_spec import Spec\n"
        "from shardviz.base.errors import MissingPackage\n"
        "try: Spec.of('x').to_jax()\n"
        "except MissingPackage: print('missing')\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "missing\n"


@pytest.mark.parametrize(
    ("spec", "jax_spec", "equal"),
    [
        ("x", P("x"), True),
        ("x", P(("x",)), True),
        ("(), (y, z)", P((), ("y", "z")), True),
        ("P.UNCONSTRAINED, x", P(P.UNCONSTRAINED, "x"), True),
        ("x, unreduced={y}", P("x", unreduced={"y"}), True),
        ("x", P("x", unreduced={"y"}), False),
        ("x", P("x", None), False),
        ("x", P("y"), False),
        ("x, unreduced={x}", P("x"), False),  # jax has no such spec
    ],
)
def test_a_spec_equals_the_partition_spec_of_its_entries(spec, jax_spec, equal):
    ours = Spec.parse(spec)
    assert (ours == jax_spec, jax_spec == ours) == (equal, equal)
    assert (ours != jax_spec, jax_spec != ours) == (not equal, not equal)


def test_equal_specs_are_one_key():
    specs = [Spec.parse("x"), Spec.of("x"), Spec.trusted((X,)), Spec.parse("x, None")]
    assert len({*specs}) == 2
    assert specs[0] != "x"
    assert specs[0] != ("x",)
