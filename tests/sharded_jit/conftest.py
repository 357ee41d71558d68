"""Every test here runs on the 8 simulated devices, whichever of them runs first."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _started(eight_devices):
    assert eight_devices
