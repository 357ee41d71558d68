from __future__ import annotations

import jax
import pytest

from shardviz.api.doctor import checked_names, versions
from shardviz.core.backend import jax_compat
from shardviz.core.backend.jax_compat_checks import (
    PRIVATE_NAMES,
    NameState,
    PrivateName,
    check_names,
)
from shardviz.core.wording.doctor import USES, doctor_text
from shardviz.widgets import ipykernel_compat


@pytest.mark.parametrize("name", PRIVATE_NAMES, ids=lambda entry: entry.name)
def test_each_private_name_works_in_the_installed_version(name, eight_devices):
    assert check_names((name,)) == (NameState(name.name, "works"),)


def test_every_name_has_words():
    names = [entry.name for entry in PRIVATE_NAMES]
    assert list(USES) == [*names, ipykernel_compat.PRIVATE_NAME]


def raises(error):
    raise error


@pytest.mark.parametrize(
    ("check", "state"),
    [
        (lambda: True, "works"),
        (lambda: False, "wrong"),
        (lambda: raises(LookupError()), "missing"),
        (lambda: raises(ImportError()), "missing"),
        (lambda: raises(ZeroDivisionError()), "wrong"),
    ],
)
def test_what_a_check_finds(check, state):
    (row,) = check_names((PrivateName("a", check),))
    assert row.state == state


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
def test_a_name_that_is_gone_is_missing_and_nothing_breaks(name, monkeypatch, request):
    module, _, attribute = name.rpartition(".")
    found = jax_compat.private(module, attribute)
    assert found is not None
    owner = jax_compat.private(*module.rpartition(".")[::2]) or jax
    monkeypatch.delattr(owner, attribute)
    jax_compat.private.cache_clear()
    request.addfinalizer(jax_compat.private.cache_clear)
    assert WITHOUT[name]()
    (entry,) = (one for one in PRIVATE_NAMES if one.name == name)
    if name != "jax._src.effects":  # still in sys.modules
        assert check_names((entry,))[0].state == "missing"


def test_the_table_of_the_doctor(eight_devices):
    rows = checked_names()
    assert {state for _, state, _ in rows} == {"works"}
    text = doctor_text(versions(), rows)
    for word in (jax.__version__, *USES):
        assert word in text
