"""ArraySpec, shapes, names and element types: every writing, and the words of every refusal."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from shardviz.core.errors import LayoutError, RuleError
from shardviz.core.layout.array_spec import (
    DTYPE_BITS,
    ArraySpec,
    dtype_name,
    read_names,
    read_shape,
    size_in_bytes,
    unique_names,
)
from shardviz.core.layout.partition_spec import Spec


@pytest.mark.parametrize(
    ("written", "shape"),
    [
        ("512, 2048", (512, 2048)),
        ("(512, 2_048)", (512, 2048)),
        ("[8]", (8,)),
        ("8x4", (8, 4)),
        ("8 × 4 × 2", (8, 4, 2)),
        ("8*4", (8, 4)),
        ("8,", (8,)),
        ("", ()),
        ("( )", ()),
        ("0", (0,)),
        (5, (5,)),
        (np.int64(5), (5,)),
        (np.array([2, 3]), (2, 3)),
        (range(2, 4), (2, 3)),
        ((), ()),
    ],
    ids=repr,
)
def test_shapes_are_read(written, shape):
    assert read_shape(written) == shape


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("-8", "Dimension 0 has size -8; sizes are 0 or more."),
        ("8.5", "A size must be a whole number; got '8.5'. Write a shape as 512, 2048."),
        ("8,,8", "A size must be a whole number; got ''. Write a shape as 512, 2048."),
        ("(8", "A size must be a whole number; got '(8'. Write a shape as 512, 2048."),
        (
            "281474976710657",
            "Dimension 0 has 281474976710657 elements; at most 281,474,976,710,656 are planned for"
            " here.",
        ),
        (
            "281474976710656, 281474976710656",
            "The array has about 10^29 elements; at most 1.2e+18 are planned for here.",
        ),
        ((8.0,), "The size of a dimension must be a whole number; got 8.0."),
        ((True,), "The size of a dimension must be a whole number; got True."),
        (
            (-(10**5000),),
            "Dimension 0 has size a number of about 5,001 digits; sizes are 0 or more.",
        ),
        (b"8", "A shape is a tuple of sizes; got b'8'."),
        ((1,) * 65, "An array has at most 64 dimensions; got more."),
        ("8" * 3000, "A shape is short text such as 512, 2048; got 3,000 letters."),
    ],
)
def test_words_about_shapes(written, words):
    with pytest.raises(LayoutError) as caught:
        read_shape(written)
    assert str(caught.value) == words


@pytest.mark.parametrize(
    ("written", "names"),
    [
        ("embed mlp", ("embed", "mlp")),
        ("embed, mlp", ("embed", "mlp")),
        ("(embed, None, mlp)", ("embed", None, "mlp")),
        ("['embed', 'mlp']", ("embed", "mlp")),
        ("embed _ mlp", ("embed", None, "mlp")),
        ("- mlp", (None, "mlp")),
        ("embed · mlp", ("embed", "mlp")),
        ("'_' '·' 'None'", ("_", "·", "None")),
        ("'two words', mlp,", ("two words", "mlp")),
        ("", ()),
        (["embed", None], ("embed", None)),
        pytest.param(iter(("a", "b")), ("a", "b"), id="iterator-('a', 'b')"),
    ],
    ids=repr,
)
def test_names_are_read(written, names):
    assert read_names(written) == names


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (
            "(embed",
            "Cannot read '(embed': expected a closing ) at position 7, found the end.",
        ),
        (
            "embed=mlp",
            "Cannot read 'embed=mlp': expected a logical axis name at position 6, found '='.",
        ),
        ("'embed", """Cannot read "'embed" at position 1; is a quote missing?"""),
        (5, "Logical names are text or a tuple of names; got 5."),
        ((1,), "The name of a logical axis must be text; got 1."),
        (("n",) * 65, "The logical names of an array can be at most 64; got 65."),
    ],
)
def test_words_about_names(written, words):
    with pytest.raises(RuleError) as caught:
        read_names(written)
    assert str(caught.value) == words


@pytest.mark.parametrize(
    ("given", "name"),
    [("bf16", "bfloat16"), (" F32 ", "float32"), ("i8", "int8"), ("s8", "int8"), ("u4", "uint4"),
     ("pred", "bool"), ("c64", "complex64"), ("key<fry>", "key<fry>"), (np.float32, "float32"),
     (np.dtype("float64"), "float64"), (np.dtype(bool), "bool"), (jnp.bfloat16, "bfloat16"),
     (jnp.dtype("int4"), "int4"), (jnp.float8_e4m3fn, "float8_e4m3fn"), (bool, "bool"),
     (int, "int32"), (float, "float32"), (complex, "complex64"), (np.float16(3), "float16")],
)  # fmt: skip
def test_dtypes_are_read(given, name):
    assert dtype_name(given) == name


@pytest.mark.parametrize("name", sorted(DTYPE_BITS))
def test_bits_are_those_of_the_real_types(name):
    real = jnp.dtype(name)
    bits = DTYPE_BITS[name]
    if bits >= 8:
        assert real.itemsize * 8 == bits
    else:  # held in a byte by numpy, packed by compilers
        assert bits == (jnp.iinfo(real) if "int" in name else jnp.finfo(real)).bits


@pytest.mark.parametrize(
    ("dtype", "words"),
    [
        ("float33", "No element type is called 'float33'. Did you mean 'float32'?"),
        (None, "An element type has a name such as 'bfloat16'; got None."),
        (32, "An element type has a name such as 'bfloat16'; got 32."),
    ],
)
def test_words_about_dtypes(dtype, words):
    with pytest.raises(LayoutError) as caught:
        dtype_name(dtype)
    assert str(caught.value) == words


@pytest.mark.parametrize(
    ("count", "dtype", "size"),
    [(0, "float32", 0), (3, "float32", 12), (3, "int4", 2), (4, "int2", 1), (5, "int2", 2),
     (7, "bool", 7), (2, "key<fry>", 16), (1 << 60, "complex128", 1 << 64)],
)  # fmt: skip
def test_bytes_are_packed(count, dtype, size):
    assert size_in_bytes(count, dtype) == size


def test_an_array_shows_itself():
    array = ArraySpec("w", (8, 4), "embed mlp", "bf16", Spec.parse("x"))
    assert repr(array) == (
        "ArraySpec('w', (8, 4), 'embed mlp', dtype='bfloat16', spec=P('x'))"
    )  # fmt: skip
    assert (array.short, array.bytes, array.rank) == ("bf16[8, 4]", 64, 2)
    assert ArraySpec("s", ()).short == "f32[]"


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (
            lambda: ArraySpec("w", (8, 4), "embed"), RuleError,
            "w has 2 dimensions and 1 logical name. Give one name a dimension; write _ for a"
            " dimension without one.",
        ),
        (
            lambda: ArraySpec("", (8, 4)), LayoutError,
            "The name of an array must not be empty or have blanks around it; got ''.",
        ),
        (
            lambda: ArraySpec("w", ()).renamed("a\tb"), LayoutError,
            "The name of an array has control characters: 'a\\tb'. Use plain text.",
        ),
        (
            lambda: unique_names([ArraySpec("w", ()), ArraySpec("w", (8,))]), LayoutError,
            "Each array has its own name; 'w' is used more than once.",
        ),
    ],
)  # fmt: skip
def test_words_about_arrays(make, error, words):
    with pytest.raises(error) as caught:
        make()
    assert str(caught.value) == words


def test_a_copy_is_checked_anew_and_a_renamed_one_is_the_same_but_for_its_name():
    array = ArraySpec("w", (8, 4), "embed mlp", "bf16")
    with pytest.raises(RuleError):
        array.replace(shape=(8,))
    other = array.renamed("v")
    assert other == ArraySpec("v", (8, 4), "embed mlp", "bf16")
    assert array.name == "w"
