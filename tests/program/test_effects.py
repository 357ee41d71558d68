"""Effects by name. What they allow is tested in tests/effects."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from shardviz.core.backend.tracing.effect_rules import effect_names, has_callbacks

SCALAR = jax.ShapeDtypeStruct((), jnp.float32)


def printing(x, ordered=False):
    jax.debug.print("{x}", x=x, ordered=ordered)
    return x


def calling(x, ordered=False):
    return io_callback(np.negative, SCALAR, x, ordered=ordered)


CASES = {
    "none": (jnp.sin, ()),
    "debug": (printing, ("debug callback",)),
    "ordered debug": (lambda x: printing(x, True), ("debug callback, ordered",)),
    "io": (calling, ("io callback",)),
    "ordered io": (lambda x: calling(x, True), ("io callback, ordered",)),
    "both": (lambda x: printing(calling(x, True)), ("debug callback", "io callback, ordered")),
    "inside a loop": (lambda x: jax.lax.fori_loop(0, 3, lambda i, y: printing(y), x),
                      ("debug callback",)),
    "pure callbacks are none": (lambda x: jax.pure_callback(np.negative, SCALAR, x), ()),
}  # fmt: skip


@pytest.mark.parametrize(("fn", "names"), CASES.values(), ids=CASES)
def test_effects_are_listed_by_name(fn, names):
    assert effect_names(jax.jit(fn).trace(SCALAR)) == names


def test_an_unknown_effect_goes_by_its_class():
    class OrderedSurprise:
        pass

    class Fake:
        effects = frozenset([OrderedSurprise()])

    assert effect_names(Fake()) == ("OrderedSurprise, ordered",)


@pytest.mark.parametrize(
    ("fn", "calls"),
    [(jnp.sin, False), (calling, True), (CASES["pure callbacks are none"][0], True),
     (printing, True), (lambda x: jnp.linalg.inv(x[None, None]), False)],
    ids=["sin", "io", "pure", "debug", "lapack"],
)  # fmt: skip
def test_callbacks_are_seen_in_the_text(fn, calls):
    assert has_callbacks(jax.jit(fn).lower(SCALAR).as_text()) is calls
