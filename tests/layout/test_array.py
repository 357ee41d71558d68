"""ArraySpec, shapes, names and element types: every writing."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from shardviz.base.array_spec import (
    DTYPE_BITS,
    ArraySpec,
    dtype_name,
    read_names,
    read_shape,
    size_in_bytes,
)
from shardviz.base.errors import LayoutError, RuleError


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
    ("count", "dtype", "size"),
    [(0, "float32", 0), (3, "float32", 12), (3, "int4", 2), (4, "int2", 1), (5, "int2", 2),
     (7, "bool", 7), (2, "key<fry>", 16), (1 << 60, "complex128", 1 << 64)],
)  # fmt: skip
def test_bytes_are_packed(count, dtype, size):
    assert size_in_bytes(count, dtype) == size


def test_a_copy_is_checked_anew_and_a_renamed_one_is_the_same_but_for_its_name():
    array = ArraySpec("w", (8, 4), "embed mlp", "bf16")
    with pytest.raises(RuleError):
        array.replace(shape=(8,))
    other = array.renamed("v")
    assert other == ArraySpec("v", (8, 4), "embed mlp", "bf16")
    assert array.name == "w"


@pytest.mark.parametrize(("wrong", "meant"), [("float", "float32"), ("int", "int32")])
def test_a_type_of_python_is_meant_as_jax_has_it(wrong, meant):
    with pytest.raises(LayoutError, match=rf"Did you mean '{meant}'\?"):
        ArraySpec("w", (2,), dtype=wrong)
