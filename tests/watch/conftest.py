"""Starts jax on eight devices before each test here."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _started(eight_devices):
    assert eight_devices
