"""Spec: what people type, what JAX writes, and the words of every refusal."""

from __future__ import annotations

import subprocess
import sys

import jax
import pytest

from shardviz.core.errors import LayoutError, SpecError
from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.layout import lay_out
from shardviz.core.layout.mesh import make_mesh
from shardviz.core.layout.partition_spec import Spec

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
    ],
)  # fmt: skip
def test_typed_marks_are_read(text, spec):
    assert Spec.parse(text) == spec


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("P('x'", """Cannot read "P('x'": expected a closing ) at position 6, found the end."""),
        ("x)", "Cannot read 'x)': expected a comma at position 2, found ')'."),
        (
            "P('x'))",
            """Cannot read "P('x'))": expected nothing more at position 7, found ')'.""",
        ),
        ("x y", "Cannot read 'x y': expected a comma at position 3, found 'y'."),
        (
            "x,,y",
            "Cannot read 'x,,y': expected a mesh axis, None or a tuple at position 3, found ','.",
        ),
        (
            "f(x)",
            "Cannot read 'f(x)': expected P( or a list of mesh axes at position 1, found 'f'.",
        ),
        ("(x", "Cannot read '(x': expected a comma or ) at position 3, found the end."),
        ("'x", """Cannot read "'x" at position 1; is a quote missing?"""),
        (
            "unreduced={x",
            "Cannot read 'unreduced={x': expected a comma or } at position 13, found the end.",
        ),
        (
            "((x, y), z)",
            "A tuple in a spec holds names, not tuples; got [['x', 'y'], 'z']. Write the axes of"
            " one dimension side by side, major to minor.",
        ),
        (
            "(" * 10,
            "Cannot read '((((((((((': brackets nest too deeply at position 10, found '('.",
        ),
        (
            "x, ''",
            "The name of a mesh axis must not be empty or have blanks around it; got ''.",
        ),
    ],
)  # fmt: skip
def test_words_about_typed_specs(text, words):
    with pytest.raises(SpecError) as caught:
        Spec.parse(text)
    assert str(caught.value) == words


AUTO = make_mesh(x=4, y=2)
EXPLICIT = make_mesh(x=4, y=2, axis_types="Explicit")
MANUAL = make_mesh(x=4, y=2, axis_types=("Auto", "Manual"))


@pytest.mark.parametrize(
    ("spec", "mesh", "words"),
    [
        (
            "q", AUTO,
            "Dimension 0 is to be split over 'q', which is no axis of the mesh (x=4, y=2). Known:"
            " 'x' and 'y'.",
        ),
        (
            "x, None, x", AUTO,
            "Mesh axis 'x' splits both dimension 0 and dimension 2; it can split one. Take it out"
            " of one of them.",
        ),
        ("(x, x)", AUTO, "Mesh axis 'x' is named twice in dimension 0; once is enough."),
        (
            "UNCONSTRAINED", EXPLICIT,
            "P.UNCONSTRAINED leaves a dimension to the compiler, which needs an Auto mesh axis;"
            " this mesh has only 'Explicit' ones.",
        ),
        (
            "unreduced={x}, reduced={x}", EXPLICIT,
            "'x' cannot be both unreduced and reduced.",
        ),
        (
            "unreduced={q}", EXPLICIT,
            "Unreduced axis 'q' is not in the mesh (x=4, y=2). Known: 'x' and 'y'.",
        ),
        ("x, reduced={x}", EXPLICIT, "Axis 'x' cannot split dimension 0 and be reduced."),
        (
            "unreduced={x}", AUTO,
            "Axis 'x' is Auto; only Explicit axes can be unreduced. Give the mesh Explicit axis"
            " types.",
        ),
        (
            "reduced={x}", AUTO,
            "Axis 'x' is Auto; only Explicit axes can be reduced. Give the mesh Explicit axis"
            " types.",
        ),
        (
            "x, None, None, y", AUTO,
            "The spec P('x', None, None, 'y') has 4 entries and the array has 3 dimensions. Take"
            " away 'y'.",
        ),
        (
            "x, None, None, None, (x, y)", AUTO,
            "The spec P('x', None, None, None, ('x', 'y')) has 5 entries and the array has 3"
            " dimensions. Take away None and ('x', 'y').",
        ),
        (
            "None, x", AUTO,
            "Dimension 1: 510 does not divide by 4 (x): 2 left over. Sizes that do: 508 and 512; or"
            " pad by 2. It would divide over 'y'.",
        ),
        (
            "None, (x, y)", AUTO,
            "Dimension 1: 510 does not divide by 8 (x × y): 6 left over. Sizes that do: 504 and"
            " 512; or pad by 2.",
        ),
        (
            "x", MANUAL,
            "Mesh axis 'y' is Manual: what a device holds along it is up to the code inside"
            " shard_map. JAX lays out an array over such a mesh only if every axis splits a"
            " dimension, and 'y' splits none. Make 'y' Auto or Explicit.",
        ),
    ],
)  # fmt: skip
def test_words_about_specs_that_do_not_fit(spec, mesh, words):
    with pytest.raises((SpecError, LayoutError)) as caught:
        lay_out((8, 510, 8), Spec.parse(spec), mesh)
    assert str(caught.value) == words


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ((1,), "An entry of a spec is a mesh axis, a tuple of them, or None; got 1."),
        (((("x",),),), "A tuple in a spec holds names, not tuples; got (('x',),)."),
        (((None, "x"),), "The name of a mesh axis must be text; got None."),
        ((b"x",), "An entry of a spec is a mesh axis, a tuple of them, or None; got b'x'."),
        ((None,) * 65, "A spec has at most 64 entries; got 65."),
    ],
)
def test_words_about_entries(entries, words):
    with pytest.raises(SpecError) as caught:
        Spec.of(*entries)
    assert str(caught.value).startswith(words)


@pytest.mark.parametrize(
    "theirs",
    [P(), P(None), P("x"), P("x", None), P(("x",)), P(()), P(["x", "y"]), P(None, ("y", "x")),
     P(P.UNCONSTRAINED, "x"), P("x", unreduced={"y"}), P(reduced={"x"}, unreduced={"y"})],
    ids=str,
)  # fmt: skip
def test_jax_reads_and_writes_the_same(theirs):
    entries = getattr(theirs, "partitions", None)  # jax 0.10.2 and later
    entries = tuple(theirs) if entries is None else entries
    ours = Spec.of(*entries, unreduced=theirs.unreduced, reduced=theirs.reduced)
    assert ours.to_jax() == theirs
    assert Spec.parse(str(ours)).to_jax() == theirs


def test_short_specs_are_equivalent_and_not_equal():
    short, long = Spec.of("x"), Spec.of("x", None, None)
    assert short != long
    assert short.equivalent(long)
    assert not short.equivalent(Spec.of(None, "x"))
    assert not short.equivalent(Spec.parse("x, UNCONSTRAINED"))
    assert Spec.of(None, None).equivalent(Spec())


def test_longer_specs_are_refused_by_arrays():
    with pytest.raises(LayoutError, match="has 2 entries and the array has 1 dimension"):
        ArraySpec("w", (8,), spec="x, y")  # type: ignore[arg-type]


def test_without_jax_a_spec_says_what_it_needs():
    code = (
        "import sys; sys.modules['jax'] = None\n"
        "from shardviz.core.layout.partition_spec import Spec\n"
        "from shardviz.core.errors import MissingPackage\n"
        "try: Spec.of('x').to_jax()\n"
        "except MissingPackage as error: print(error)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    said = "A PartitionSpec needs jax, which is not installed: pip install jax.\n"
    assert ran.stdout == said
