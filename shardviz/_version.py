"""The version, read by the build and by `shardviz.__version__`."""

from __future__ import annotations

__version__ = "0.1.0"
