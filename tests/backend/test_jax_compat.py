from __future__ import annotations

import jax
import pytest

import shardviz as sv
from shardviz.base.backend import jax_compat
from shardviz.base.errors import UntestedJax
from shardviz.commands.doctor import checked_names, versions
from shardviz.commands.words.doctor import LOSSES, doctor_text


def test_each_private_name_works_in_the_installed_version(eight_devices):
    rows = checked_names()
    assert [row for row in rows if row[1]] == []
    assert sorted(LOSSES) == sorted(name for name, _ in rows)
    text = doctor_text(versions(), rows)
    for word in (jax.__version__, *LOSSES):
        assert word in text


# Of a name that is gone: what is used in its place.
WITHOUT = {
    "jax._src.distributed.global_state": lambda: jax_compat.key_value_store() is None,
    "jax._src.xla_bridge.backends_are_initialized": lambda: not jax_compat.backend_started(),
    "jax._src.mesh.get_concrete_mesh": lambda: jax_compat.concrete_mesh() is None,
    "jax._src.mesh.thread_resources": lambda: jax_compat.entered_meshes() is None,
    "jax._src.core.trace_state_clean": lambda: not jax_compat.is_tracing(),
    "jax._src.config.trace_context": lambda: jax_compat.trace_settings() is None,
    "jax._src.effects": lambda: jax_compat.effect_sets() is None,
    "jax._src.dispatch.runtime_tokens": lambda: jax_compat.forget_failed_callbacks() is None,
}


@pytest.mark.parametrize("name", WITHOUT)
def test_nothing_breaks_without_a_name(name, monkeypatch, request):
    module, _, attribute = name.rpartition(".")
    owner = jax_compat.private(*module.rpartition(".")[::2]) or jax
    monkeypatch.delattr(owner, attribute)
    jax_compat.private.cache_clear()
    request.addfinalizer(jax_compat.private.cache_clear)
    assert WITHOUT[name]()


@pytest.fixture
def a_newer_jax(monkeypatch):
    monkeypatch.setattr(jax, "__version_info__", (0, 14, 1))
    monkeypatch.setattr(jax, "__version__", "0.14.1")
    jax_compat.warn_if_untested.cache_clear()
    yield
    jax_compat.warn_if_untested.cache_clear()


def test_a_newer_jax_gives_one_line_once_and_plans_as_before(eight_devices, a_newer_jax):
    arguments = {"mesh": "data=4", "in_specs": jax.sharding.PartitionSpec("data")}
    struct = jax.ShapeDtypeStruct((8,), "float32")
    with pytest.warns(UntestedJax, match=r"jax 0\.14\.1 is newer") as caught:
        plans = [sv.plan(sv.program(jax.numpy.sin, struct, **arguments)) for _ in range(3)]
    assert len(caught) == 1
    assert len(str(caught[0].message).splitlines()) == 1
    assert all(plan.ok for plan in plans)


def test_a_tested_jax_gives_no_warning():
    jax_compat.warn_if_untested.cache_clear()
    jax_compat.warn_if_untested()
