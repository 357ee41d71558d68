"""The effects of a jaxpr by name, and what jax allows of each.

jax keeps its classes of effects private, so they are known by name; it says in sets of
classes where it allows an effect, whether it keeps its order, and whether it may then
run on several devices.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from shardviz.base.backend.jax_compat import CONSTRUCTS, effect_class, effect_sets
from shardviz.programs.effects import OrderedOnOne

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
# What jax says when it refuses an effect, and the cause as `Refusal.cause` names it.
_CAUSES = (
    (r"side effects: |do not support (?:JVP|transpose)", "not differentiable"),
    (r"`vmap` ordered|not supported in vmap\.", "ordered under vmap"),
    (r"vmap-of-cond|batched predicate", "branch under vmap"),
)
_CALLBACK = re.compile(r"custom_call @\"?\w*callback|stablehlo\.(?:send|recv)\b")


def effect_names(jaxpr: Any) -> tuple[str, ...]:
    """The effects of a jaxpr by name; an unknown one goes by its class.

    >>> import jax
    >>> effect_names(jax.make_jaxpr(lambda x: jax.debug.print("{x}", x=x))(1.0))
    ('debug callback',)
    """
    return tuple(sorted({effect_name(effect) for effect in jaxpr.effects}))


def effect_name(effect: Any) -> str:
    """The name of one of jax's effects; that of its class where it has no other.

    >>> effect_name(object())
    'object'
    """
    name = effect_class(effect)
    if name in _NAMES:
        return _NAMES[name]
    return f"{name}, ordered" if name.startswith("Ordered") else name


def has_callbacks(text: str) -> bool:
    """Whether lowered text calls Python; such text does not say what is called.

    >>> has_callbacks("stablehlo.custom_call @xla_ffi_python_cpu_callback(%0)")
    True
    """
    return _CALLBACK.search(text) is not None


def is_ordered_effect(effect: Any) -> bool:
    """Whether an effect keeps the order of the program."""
    sets = effect_sets()
    if sets is None:
        return effect_class(effect).startswith("Ordered")
    return sets.ordered_effects.contains(effect)


def is_shardable(effect: Any) -> bool:
    """Whether a program with this effect may run on several devices."""
    if not is_ordered_effect(effect):
        return True
    sets = effect_sets()
    return sets is not None and sets.shardable_ordered_effects.contains(effect)


def allowed_constructs(effect: Any) -> tuple[str, ...] | None:
    """Where jax allows this effect, of `CONSTRUCTS`; None where it does not say."""
    sets = effect_sets()
    if sets is None:
        return None
    allowed = []
    for construct, name in CONSTRUCTS.items():
        if getattr(sets, name).contains(effect):
            allowed.append(construct)
    return tuple(allowed)


def refusal_on(effects: Iterable[Any], devices: int) -> str | None:
    """Why a program with these effects may not run on so many devices; None if it may.

    >>> refusal_on([], 8)
    """
    single = sorted(effect_name(e) for e in effects if not is_shardable(e))
    if not single or devices == 1:
        return None
    return str(OrderedOnOne(devices, single[0]))


def refusal_cause(said: str) -> str:
    """The cause behind what jax said when it refused a program; `""` where not known.

    >>> refusal_cause("ValueError: Cannot `vmap` ordered IO callback.")
    'ordered under vmap'
    """
    for pattern, cause in _CAUSES:
        if re.search(pattern, said):
            return cause
    return ""
