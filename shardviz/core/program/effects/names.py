"""Which effects a program has, by name. jax keeps its effect classes private: they are told apart
by class name, here and nowhere else. What the effects allow stands in `effect_rules.py`, what they
mean for a program in `prediction.py`, and in which order they happened in `order.py`.
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
    "InternalMutableArrayEffect": "makes and uses a ref",
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
    return tuple(sorted({effect_word(e) for e in getattr(jaxpr, "effects", ())}))


def effect_word(effect: Any) -> str:
    """One of jax's own effects, in words; its class where it has none.

    >>> effect_word(object())
    'object'
    """
    name = type(effect).__name__
    return _WORDS.get(name, f"{name}, ordered" if name.startswith("Ordered") else name)


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


def forget_failed_callbacks() -> None:
    """Drops the tokens of callbacks that failed in this thread.

    Up to jax 0.11 they stay, and every later `jax.effects_barrier()`, jax's own at exit included,
    raises their error once more.
    """
    try:
        from jax._src.dispatch import runtime_tokens

        runtime_tokens.clear()
    except (ImportError, AttributeError):
        pass  # moved away; the barrier of newer versions drops them itself
