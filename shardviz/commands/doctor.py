"""What is installed, and which private names of jax and ipykernel work in it."""

from __future__ import annotations

import importlib.metadata
import platform

from shardviz.base.errors import needed_by

_PACKAGES = ("shardviz", "jax", "jaxlib", "flax", "libtpu", "numpy", "ipykernel")


def versions() -> dict[str, str]:
    """The versions of what matters for a bug report, by name; `""`: not installed.

    >>> list(versions())[:3]
    ['platform', 'python', 'shardviz']
    """
    found = {"platform": platform.platform(), "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = ""
    return found


def checked_names() -> list[tuple[str, str]]:
    """Each private name, and what went wrong with it, or `""`. Starts jax's backends.

    Raises:
        MissingPackage: jax is not installed.
    """
    from shardviz.explorer import ipykernel_compat

    with needed_by("python -m shardviz doctor"):
        from shardviz.base.backend.jax_compat_checks import PRIVATE_NAMES, check_names
        from shardviz.plans.backend.mlir_checks import MLIR_NAMES
        from shardviz.programs.backend.jaxpr_checks import JAXPR_NAMES
    page = {ipykernel_compat.PRIVATE_NAME: ipykernel_compat.works}
    return check_names({**PRIVATE_NAMES, **JAXPR_NAMES, **MLIR_NAMES, **page})
