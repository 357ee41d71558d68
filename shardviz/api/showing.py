"""How a value shows itself at the end of a notebook cell."""

from __future__ import annotations

import contextlib
from typing import Any

from shardviz.api.adopting import room
from shardviz.core.errors import MissingPackage
from shardviz.picture.text import to_text


def mimebundle(value: Any) -> dict[str, Any]:
    """How a value shows itself in a notebook: text always, PNG where matplotlib is there."""
    bundle: dict[str, Any] = {"text/plain": to_text(value)}
    with contextlib.suppress(MissingPackage):
        figures = room("shardviz.plots.figures", "a picture", "matplotlib")
        bundle["image/png"] = figures.png(value)
    return bundle
