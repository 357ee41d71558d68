"""Exceptions, and a context manager for imports of optional packages.

    ShardvizError (a ValueError)
    ├── MeshError           an impossible mesh: names, sizes, axis types, device ids
    ├── SpecError           a PartitionSpec that cannot be read, or does not fit
    ├── RuleError           rules or logical names that cannot be read
    ├── LayoutError         an array that cannot be laid out
    ├── ProgramError        arguments, specs or options that do not fit together
    │   └── OutOfMemory     a run that would need more memory than is free
    ├── RecompileError      a second compile under sv.watch(fn, recompiles="error")
    ├── TargetError         devices that are missing, too few, or too small
    └── MissingPackage      a package that is needed and not installed

    UntestedJax (a UserWarning): a jax newer than all that shardviz was tested with

    ContractError (an AssertionError): an expectation or a lock does not hold

Every message names the problem, the value that shardviz got, and the remedy, in that
order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


class ShardvizError(ValueError):
    """The base class of shardviz's errors. Messages can be shown to users unchanged.

    >>> import shardviz as sv
    >>> issubclass(sv.ShardvizError, ValueError)
    True
    """


class MeshError(ShardvizError):
    """An impossible mesh."""


class SpecError(ShardvizError):
    """A PartitionSpec that cannot be read, or that does not fit its mesh or array.

    >>> import shardviz as sv
    >>> sv.layout((8, 4), "model", "data=4")
    Traceback (most recent call last):
    ...
    shardviz.base.errors.SpecError: ...
    """


class RuleError(ShardvizError):
    """Axis rules or logical axis names that cannot be read."""


class LayoutError(ShardvizError):
    """An array that cannot be laid out as requested."""


class ProgramError(ShardvizError):
    """A program whose function, arguments, specs or options do not fit together."""


class TargetError(ShardvizError):
    """Devices that are missing, too few, or have too little memory."""


class OutOfMemory(ProgramError):
    """A run that would need more memory than is free, and was not started."""


class RecompileError(ShardvizError):
    """A function under `sv.watch(fn, recompiles="error")` needs a second compile.

    >>> issubclass(RecompileError, ShardvizError)
    True
    """

    @property
    def miss(self) -> Any:
        """The reason for the second compile: a `Miss` with `.differences`."""
        return self.args[0]


#: The newest version of jax that shardviz has been tested with.
NEWEST_JAX = (0, 12)


class UntestedJax(UserWarning):
    """The installed jax is newer than every version that shardviz was tested with."""


class MissingPackage(ShardvizError):
    """A package that is needed is not installed."""


class ContractError(AssertionError):
    """A program breaks an expectation or doesn't match its lock.

    An invalid expectation, such as one on an unknown axis, raises a ShardvizError.

    >>> import shardviz as sv
    >>> issubclass(sv.ContractError, AssertionError), issubclass(sv.ContractError, sv.ShardvizError)
    (True, False)
    """

    @property
    def broken(self) -> Any:
        """The broken expectation as a `Broken`; None if the error has only text."""
        return None if isinstance(self.args[0], str) else self.args[0]


#: Module name -> name to install it by, if they differ.
_DISTRIBUTIONS = {"yaml": "PyYAML", "ipyparallel": "shardviz[hosts]"}


@contextlib.contextmanager
def needed_by(feature: str) -> Iterator[None]:
    """A context manager for imports: reports a missing package in one sentence.

    Args:
        feature: the feature that needs the imports, for the message: `"sv.plot"`.

    Raises:
        MissingPackage: if an import fails because a package is not installed.

    >>> import shardviz as sv
    >>> with needed_by("sv.plot"):
    ...     import a_package_that_is_not_there
    Traceback (most recent call last):
        ...
    shardviz.base.errors.MissingPackage: sv.plot needs a_package_that_is_not_there, ...
    """
    try:
        yield
    except ImportError as error:
        module = (error.name or "").partition(".")[0]
        # Don't report a broken package, or a bug in shardviz, as a missing package.
        if module in ("", "shardviz"):
            raise
        package = _DISTRIBUTIONS.get(module, module)
        raise MissingPackage(
            f"{feature} needs {package}, which is not installed here: pip install {package}."
        ) from error
