"""Every test here finds jax started on eight devices."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _started(eight_devices):
    assert eight_devices
