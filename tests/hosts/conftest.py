"""Engines that the tests share: starting them takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import shardviz as sv


@pytest.fixture(scope="module")
def two() -> Iterator[Any]:
    """Two processes of four simulated devices each."""
    pytest.importorskip("ipyparallel", reason="targets of several processes need ipyparallel")
    with sv.hosts(2, devices=4) as hosts:
        yield hosts
