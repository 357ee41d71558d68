"""The effects of a jaxpr by name, and where jax allows each.

jax does not export its classes of effects, so they are identified by name. jax has sets
of classes: where it allows an effect, whether an effect is ordered, and whether an
ordered effect may run on several devices.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from shardviz.base.backend.jax_compat import CONSTRUCTS, effect_class, effect_sets
from shardviz.programs.effects import OrderedOnOne

if TYPE_CHECKING:
    from shardviz.programs.backend.jaxpr_names import AnyJaxpr

_NAMES = {
    "IOEffect": "io callback",
    "OrderedIOEffect": "io callback, ordered",
    "DebugEffect": "debug callback",
    "OrderedDebugEffect": "debug callback, ordered",
    "ReadEffect": "reads a ref",
    "WriteEffect": "writes a ref",
    "AccumEffect": "increments a ref",
    "InternalMutableArrayEffect": "makes a ref",
}
# Patterns of jax's messages when it refuses an effect, and the `Refusal.cause`.
_CAUSES = (
    (r"side effects: |do not support (?:JVP|transpose)", "not differentiable"),
    (r"`vmap` ordered|not supported in vmap\.", "ordered under vmap"),
    (r"vmap-of-cond|batched predicate", "branch under vmap"),
)
_CALLBACK = re.compile(r"custom_call @\"?\w*callback|stablehlo\.(?:send|recv)\b")


def effect_names(jaxpr: AnyJaxpr) -> tuple[str, ...]:
    """The effects of a jaxpr by name; an unknown one goes by its class.

    >>> import jax
    >>> effect_names(jax.make_jaxpr(lambda x: jax.debug.print("{x}", x=x))(1.0))
    ('debug callback',)
    """
    return tuple(sorted({effect_name(effect) for effect in jaxpr.effects}))


def effect_name(effect: object) -> str:
    """The name of one of jax's effects; that of its class if it has no other.

    >>> effect_name(object())
    'object'
    """
    name = effect_class(effect)
    if name in _NAMES:
        return _NAMES[name]
    return f"{name}, ordered" if name.startswith("Ordered") else name


def has_callbacks(text: str) -> bool:
    """True if a lowered module calls Python. The text does not name the function.

    >>> has_callbacks("stablehlo.custom_call @xla_ffi_python_cpu_callback(%0)")
    True
    """
    return _CALLBACK.search(text) is not None


def is_ordered_effect(effect: object) -> bool:
    """True if an effect keeps the order of the program."""
    sets = effect_sets()
    if sets is None:
        return effect_class(effect).startswith("Ordered")
    return sets.ordered_effects.contains(effect)


def is_shardable(effect: object) -> bool:
    """True if a program with this effect may run on several devices."""
    if not is_ordered_effect(effect):
        return True
    sets = effect_sets()
    return sets is not None and sets.shardable_ordered_effects.contains(effect)


def allowed_constructs(effect: object) -> tuple[str, ...] | None:
    """Where jax allows this effect, of `CONSTRUCTS`; None if unknown."""
    sets = effect_sets()
    if sets is None:
        return None
    allowed = []
    for construct, name in CONSTRUCTS.items():
        if getattr(sets, name).contains(effect):
            allowed.append(construct)
    return tuple(allowed)


def refusal_on(effects: Iterable[object], devices: int) -> str | None:
    """Why a program with these effects may not run on so many devices; None if it may.

    >>> refusal_on([], 8)
    """
    single = sorted(effect_name(e) for e in effects if not is_shardable(e))
    if not single or devices == 1:
        return None
    return str(OrderedOnOne(devices, single[0]))


def refusal_cause(message: str) -> str:
    """The cause of jax's message when it refuses a program; `""` if unknown.

    >>> refusal_cause("ValueError: Cannot `vmap` ordered IO callback.")
    'ordered under vmap'
    """
    for pattern, cause in _CAUSES:
        if re.search(pattern, message):
            return cause
    return ""
