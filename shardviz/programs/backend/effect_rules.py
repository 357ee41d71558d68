"""Names jax's effects, and looks up where jax allows them.

jax doesn't export its effect classes, so they are identified by name. jax keeps sets of
classes: the effects allowed in each construct, the ordered effects, and the ordered
effects that can run on several devices.
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
# Patterns in jax's messages when it refuses an effect, and their `Refusal.cause`.
_CAUSES = (
    (r"side effects: |do not support (?:JVP|transpose)", "not differentiable"),
    (r"`vmap` ordered|not supported in vmap\.", "ordered under vmap"),
    (r"vmap-of-cond|batched predicate", "branch under vmap"),
)
_CALLBACK = re.compile(r"custom_call @\"?\w*callback|stablehlo\.(?:send|recv)\b")


def effect_names(jaxpr: AnyJaxpr) -> tuple[str, ...]:
    """Returns the names of a jaxpr's effects; unknown effects are named by class.

    >>> import jax
    >>> effect_names(jax.make_jaxpr(lambda x: jax.debug.print("{x}", x=x))(1.0))
    ('debug callback',)
    """
    return tuple(sorted({effect_name(effect) for effect in jaxpr.effects}))


def effect_name(effect: object) -> str:
    """Returns the name of a jax effect; an unknown effect is named by its class.

    >>> effect_name(object())
    'object'
    """
    name = effect_class(effect)
    if name in _NAMES:
        return _NAMES[name]
    return f"{name}, ordered" if name.startswith("Ordered") else name


def has_callbacks(text: str) -> bool:
    """True if a lowered module calls back into Python.

    >>> has_callbacks("stablehlo.custom_call @xla_ffi_python_cpu_callback(%0)")
    True
    """
    return _CALLBACK.search(text) is not None


def is_ordered_effect(effect: object) -> bool:
    """True if jax keeps this effect in program order."""
    sets = effect_sets()
    if sets is None:
        return effect_class(effect).startswith("Ordered")
    return sets.ordered_effects.contains(effect)


def is_shardable(effect: object) -> bool:
    """True if a program with this effect can run on several devices."""
    if not is_ordered_effect(effect):
        return True
    sets = effect_sets()
    return sets is not None and sets.shardable_ordered_effects.contains(effect)


def allowed_constructs(effect: object) -> tuple[str, ...] | None:
    """Returns the entries of `CONSTRUCTS` that allow this effect; None if unknown."""
    sets = effect_sets()
    if sets is None:
        return None
    allowed = []
    for construct, name in CONSTRUCTS.items():
        if getattr(sets, name).contains(effect):
            allowed.append(construct)
    return tuple(allowed)


def refusal_on(effects: Iterable[object], devices: int) -> str | None:
    """Returns why these effects cannot run on this many devices; None if they can.

    >>> refusal_on([], 8)
    """
    single = sorted(effect_name(e) for e in effects if not is_shardable(e))
    if not single or devices == 1:
        return None
    return str(OrderedOnOne(devices, single[0]))


def refusal_cause(message: str) -> str:
    """Classifies jax's message about a refused program; `""` if unknown.

    >>> refusal_cause("ValueError: Cannot `vmap` ordered IO callback.")
    'ordered under vmap'
    """
    for pattern, cause in _CAUSES:
        if re.search(pattern, message):
            return cause
    return ""
