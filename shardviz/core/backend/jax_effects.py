"""Effects as jax has them: their names in words, and where jax allows them.

jax keeps the classes of effects and these sets private; they are read here and nowhere else.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from typing import Any

from shardviz.core.backend.failures import in_words
from shardviz.core.program.effects import single_device_words

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


#: Where jax may allow an effect, and its private set that says so.
CONSTRUCTS = {
    "control flow": "control_flow_allowed_effects",
    "remat": "remat_allowed_effects",
    "custom derivatives": "custom_derivatives_allowed_effects",
    "lowering": "lowerable_effects",
}
_ADVICE = (
    (
        r"Effects not supported in",
        "jax keeps a list of the effects that it allows there, and this one is not on it.",
    ),
    (
        r"side effects: |do not support (?:JVP|transpose)",
        "jax cannot differentiate what happens on the host. Give the function its derivative with"
        " jax.custom_jvp, or put jax.lax.stop_gradient around what the callback takes.",
    ),
    (
        r"`vmap` ordered|not supported in vmap\.",
        "The calls for the elements of a batch have no order among them. Take ordered=True away,"
        " or loop with jax.lax.map in place of vmap.",
    ),
    (
        r"vmap-of-cond|batched predicate",
        "Under vmap the elements share one loop or take both branches, so the callback would be"
        " called for elements that asked for none. Use jax.lax.map in place of vmap.",
    ),
    (
        r"no partial automatic sharding",
        "Give shard_map all axes of the mesh, or call the host outside of it.",
    ),
    (
        r"Cannot lower jaxpr with effects",
        "jax keeps a list of the effects that it knows how to lower, and this one is not on it.",
    ),
    (
        r"state discharge rule",
        "jax turns reads and writes of a ref into plain values before it lowers, and knows no way"
        " to do so inside this operation. Make the ref inside a function that is not wrapped so.",
    ),
)


def effect_sets() -> Any:
    """jax's module of effect sets, or None where this jax keeps them elsewhere."""
    try:
        found = importlib.import_module("jax._src.effects")
    except ImportError:
        return None
    names = (*CONSTRUCTS.values(), "ordered_effects", "shardable_ordered_effects")
    return found if all(hasattr(getattr(found, n, None), "contains") for n in names) else None


def without_sets() -> str:
    """What to say where jax's sets are gone; `""` where they are there.

    >>> without_sets()
    ''
    """
    if effect_sets() is not None:
        return ""
    return (
        "This jax keeps its lists of effects in another module than shardviz knows, so what"
        " is ordered is known by name only, and where an effect is allowed is not known before"
        " tracing."
    )


def is_ordered_effect(effect: Any) -> bool:
    """Whether an effect keeps the order of the program."""
    sets = effect_sets()
    if sets is None:
        return type(effect).__name__.startswith("Ordered")
    return sets.ordered_effects.contains(effect)


def is_shardable(effect: Any) -> bool:
    """Whether the program that has this effect may run on several devices."""
    if not is_ordered_effect(effect):
        return True
    sets = effect_sets()
    return sets is not None and sets.shardable_ordered_effects.contains(effect)


def allowed_constructs(effect: Any) -> tuple[str, ...]:
    """Where jax allows this effect, of `CONSTRUCTS`; empty where its lists are gone."""
    sets = effect_sets()
    if sets is None:
        return ()
    return tuple(
        construct for construct, name in CONSTRUCTS.items() if getattr(sets, name).contains(effect)
    )


def refusal_on(names: Iterable[str], devices: int) -> str | None:
    """Why these effects, ordered and not shardable, may not run on so many devices; None if they
    may.

    Args:
        names: the effects that are ordered and not shardable, in words.
        devices: how many devices.

    >>> refusal_on(["debug callback, ordered"], 1)
    >>> print(refusal_on(["debug callback, ordered"], 8))
    jax orders debug callbacks on one device only, and the mesh has 8. Take ordered=True away...
    """
    found = tuple(names)
    return single_device_words(found[0], devices) if found and devices > 1 else None


def single_device_effects(effects: Iterable[Any]) -> tuple[str, ...]:
    """Those of jax's own effects that may run on one device only, in words."""
    return tuple(sorted({effect_word(e) for e in effects if not is_shardable(e)}))


def in_our_words(error: BaseException) -> str:
    """What jax said when it refused, and what it means and helps, where that is known.

    >>> print(in_our_words(ValueError("Cannot `vmap` ordered IO callback.")))
    ValueError: Cannot `vmap` ordered IO callback. The calls for the elements of a batch have ...
    """
    said = in_words(error)
    said += "" if said.endswith((".", "!", "?", "…")) else "."
    for pattern, advice in _ADVICE:
        if re.search(pattern, said):
            return f"{said} {advice}"
    return said
