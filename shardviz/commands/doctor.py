"""Checks the private jax and ipykernel names that shardviz uses, and lists versions."""

from __future__ import annotations

import importlib.metadata
import platform

from shardviz.base.errors import needed_by

_PACKAGES = ("shardviz", "jax", "jaxlib", "flax", "libtpu", "numpy", "ipykernel")


def versions() -> dict[str, str]:
    """Returns the versions for a bug report, by package; `""` if not installed.

    >>> list(versions())[:3]
    ['platform', 'python', 'shardviz']
    """
    by_name = {"platform": platform.platform(), "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            by_name[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            by_name[package] = ""
    return by_name


def checked_names() -> list[tuple[str, str]]:
    """Checks each private name; returns (name, error) pairs, `""` if the name works.

    Starts jax's backend.

    Raises:
        MissingPackage: if jax is not installed.
    """
    from shardviz.explorer import ipykernel_compat

    with needed_by("python -m shardviz doctor"):
        from shardviz.base.backend.jax_compat_checks import PRIVATE_NAMES, check_names
        from shardviz.plans.backend.mlir_checks import MLIR_NAMES
        from shardviz.programs.backend.jaxpr_checks import JAXPR_NAMES
    page = {ipykernel_compat.PRIVATE_NAME: ipykernel_compat.works}
    return check_names({**PRIVATE_NAMES, **JAXPR_NAMES, **MLIR_NAMES, **page})
