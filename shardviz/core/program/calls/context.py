"""What surrounds a call and decides what jax compiles: settings, meshes, transformations.

jax keys its own caches on its trace context, which is private. It is read here and nowhere else;
where a version of jax has moved it away, the public settings that are known to matter stand in,
and a call inside another transformation is then told by its tracers alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax

#: the class of concrete arrays; None where this version of jax hides it
ArrayImpl: Any = None
#: whether no transformation is under way, said in the quickest way; True is always right
at_top: Callable[[], bool] = bool
_trace_context_names: Callable[[], Any] = tuple
try:
    import jax._src.config as _config
    from jax._src.array import ArrayImpl as _ArrayImpl
    from jax._src.config import trace_context as _trace_context
    from jax._src.core import trace_ctx as _trace_ctx
    from jax._src.core import trace_state_clean as _trace_state_clean
    from jax._src.mesh import get_concrete_mesh as _get_concrete_mesh

    ArrayImpl = _ArrayImpl
    at_top = _trace_ctx.is_top_level
    _trace_context_names = getattr(_config, "trace_context_names", tuple)
    _PRIVATE = True
except (ImportError, AttributeError):  # pragma: no cover  this jax has moved them
    _PRIVATE = False

_PUBLIC: tuple[str, ...] = (
    "jax_enable_x64",
    "jax_default_device",
    "jax_default_matmul_precision",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_threefry_partitionable",
    "jax_disable_jit",
)
_WORDS = {
    "jax_enable_x64": "x64 mode",
    "mesh_context_manager": "the mesh of `with mesh:`",
    "abstract_mesh_context_manager": "the mesh of jax.set_mesh",
    "concrete_mesh": "the devices of the mesh in force",
}


class Context:
    """One surrounding of calls; equal surroundings are one object, so that comparing is cheap.

    Attributes:
        settings: the names and values of all that surrounds the call.
    """

    __slots__ = ("settings",)

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings

    def differences(self, before: Context) -> list[str]:
        """What is set otherwise than in `before`, in words: `x64 mode: off became on`."""
        new, old = self.settings, before.settings
        changed = [n for n in new if n in old and new[n] != old[n]]
        if "abstract_mesh_context_manager" in changed and "concrete_mesh" in changed:
            changed.remove("concrete_mesh")  # another mesh has other devices or the same: no news
        return [f"{_name(n)}: {_text(n, old[n])} became {_text(n, new[n])}" for n in changed]


class Contexts:
    """The surroundings met so far."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Context] = {}
        self._last: tuple[Any, Any, Any] = (None, None, None)  # one tuple: other threads read it

    def current(self) -> Context:
        """The Context of this call."""
        if not _PRIVATE:
            return self._intern((_public(), _public_mesh()))
        now, mesh = _trace_context(), _get_concrete_mesh()
        settings, devices, context = self._last
        if settings == now and devices is mesh:
            return context
        context = self._intern((now, mesh))
        self._last = (now, mesh, context)
        return context

    def _intern(self, key: tuple[Any, Any]) -> Context:
        found = self._known.get(key)
        if found is None:
            names = _names()
            values: dict[str, Any] = dict(zip(_PUBLIC, _public(), strict=True))
            if len(names) == len(key[0]):
                values.update(zip(names, key[0], strict=True))
            # Of two threads that come at once one wins, and both get what it put there.
            made = Context({**values, "concrete_mesh": key[1]})
            found = self._known.setdefault(key, made)
        return found


def clean() -> bool:
    """Whether no transformation of jax is under way in this thread.

    >>> clean(), bool(jax.jit(lambda x: x * clean())(1))
    (True, False)
    """
    return not _PRIVATE or _trace_state_clean()


def why_not(config: Any = jax.config) -> str:
    """Why no call may take the fast path now, or an empty text.

    >>> why_not()
    ''
    """
    if not clean():
        return "called inside another transformation of jax"
    if config.jax_disable_jit:
        return "jax.disable_jit is on"
    if config.jax_debug_nans or config.jax_debug_infs:
        return "jax_debug_nans or jax_debug_infs is on"
    return ""


def _public() -> tuple[Any, ...]:
    return tuple(getattr(jax.config, name, None) for name in _PUBLIC)


def _public_mesh() -> Any:
    try:
        return jax.sharding.get_mesh()
    except ValueError:  # it refuses where jax is tracing
        return jax.sharding.get_abstract_mesh()


def _names() -> tuple[str, ...]:
    try:
        return tuple(_trace_context_names()) if _PRIVATE else ()
    except NotImplementedError:
        return ()  # an older jaxlib does not tell them


def _name(setting: str) -> str:
    return _WORDS.get(setting, setting.removeprefix("jax_").replace("_", " "))


def _text(setting: str, value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if setting == "concrete_mesh":
        devices = getattr(value, "devices", None)
        return "none" if devices is None or not devices.size else str([d.id for d in devices.flat])
    if isinstance(value, tuple):  # a stack of meshes
        return ", ".join(map(mesh_text, value)) or "none"
    return mesh_text(value) if hasattr(value, "axis_names") else str(value).lower()


def mesh_text(mesh: Any) -> str:
    """A jax mesh in a word: its axes and their sizes.

    >>> mesh_text(jax.sharding.AbstractMesh((4, 2), ("data", "model")))
    'data=4, model=2'
    """
    if not getattr(mesh, "axis_names", ()):
        return "none"
    sizes = zip(mesh.axis_names, mesh.axis_sizes, strict=True)
    return ", ".join(f"{name}={size}" for name, size in sizes)
