"""Eight simulated devices, for whichever test comes first."""

import pytest


@pytest.fixture(scope="session")
def eight_devices():
    import jax
    from jax._src import xla_bridge

    if not xla_bridge.backends_are_initialized() and jax.config.jax_num_cpu_devices < 8:
        jax.config.update("jax_num_cpu_devices", 8)
    devices = jax.devices("cpu")
    assert len(devices) >= 8, f"these tests need 8 CPU devices; {len(devices)} were started"
    return devices[:8]
