"""Which effects a program has, by name. jax keeps its effect classes private: they are told apart
by class name, here and nowhere else.
"""

from __future__ import annotations

import re
from typing import Any

_WORDS = {
    "IOEffect": "io callback",
    "OrderedIOEffect": "io callback, ordered",
    "DebugEffect": "debug callback",
    "OrderedDebugEffect": "debug callback, ordered",
    "ReadEffect": "reads a ref",
    "WriteEffect": "writes a ref",
    "AccumEffect": "adds to a ref",
}
_CALLBACK = re.compile(r"custom_call @\"?\w*callback|stablehlo\.(?:send|recv)\b")


def effect_names(traced: Any) -> tuple[str, ...]:
    """The effects of a traced function, in words; an effect that is not known goes by its class.

    Args:
        traced: what `jax.jit(fn).trace(...)` gave, or a jaxpr.

    >>> import jax, jax.numpy as jnp
    >>> def noisy(x):
    ...     jax.debug.print("{x}", x=x)
    ...     return x
    >>> effect_names(jax.make_jaxpr(noisy)(jax.ShapeDtypeStruct((), jnp.float32)))
    ('debug callback',)
    """
    jaxpr = getattr(traced, "jaxpr", traced)
    names = {type(e).__name__ for e in getattr(jaxpr, "effects", ())}
    return tuple(sorted(_WORDS.get(n, _unknown(n)) for n in names))


def is_ordered(name: str) -> bool:
    """Whether an effect, as `effect_names` words it, keeps the order of the program.

    >>> is_ordered("io callback, ordered"), is_ordered("io callback")
    (True, False)
    """
    return name.endswith(", ordered")


def has_callbacks(text: str) -> bool:
    """Whether lowered text calls back into Python; such text says nothing of what is called.

    >>> has_callbacks("stablehlo.custom_call @xla_ffi_python_cpu_callback(%0)")
    True
    """
    return _CALLBACK.search(text) is not None


def _unknown(name: str) -> str:
    return f"{name}, ordered" if name.startswith("Ordered") else name
