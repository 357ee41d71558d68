"""Every test here that needs devices finds jax started, whichever of them runs first."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _started(eight_devices):
    assert eight_devices
