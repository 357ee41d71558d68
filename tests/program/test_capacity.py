"""What memory there is, and what does not fit."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from shardviz.base.errors import OutOfMemory
from shardviz.compiled.report import Memory
from shardviz.runs.backend import device_memory
from shardviz.runs.backend.device_memory import (
    Capacity,
    capacity_of,
    fit_now,
    host_available,
    refuse_too_big,
    run_bytes,
)

GIB = 1 << 30
MEMORY = Memory(arguments=4 * GIB, outputs=2 * GIB, temporaries=GIB, aliased=2 * GIB)


def gpu(limit, used, process=0):
    stats = None if limit is None else {"bytes_limit": limit, "bytes_in_use": used}
    return SimpleNamespace(platform="gpu", process_index=process, memory_stats=lambda: stats)


def test_aliased_outputs_take_nothing():
    assert run_bytes(MEMORY) == 5 * GIB
    assert run_bytes(Memory()) == 0


def test_a_device_is_asked_for_itself():
    found = capacity_of([gpu(80 * GIB, 30 * GIB), gpu(80 * GIB, 50 * GIB), gpu(1, 1, process=1)])
    assert (found.free, found.shared, found.total) == (30 * GIB, False, 80 * GIB)
    assert found.per_device(2) == 30 * GIB


@pytest.mark.parametrize("error", [NotImplementedError, RuntimeError])
def test_a_device_that_does_not_count_limits_nothing(error):
    def refuse():
        raise error("UNIMPLEMENTED")

    device = SimpleNamespace(platform="tpu", process_index=0, memory_stats=refuse)
    assert capacity_of([device]).free is None
    assert capacity_of([gpu(None, None)]).free is None
    assert fit_now(MEMORY, Capacity(None), 8).ok is not False


def test_simulated_devices_share_the_host(monkeypatch):
    monkeypatch.setattr(device_memory, "host_available", lambda: 39 * GIB)
    found = capacity_of([SimpleNamespace(platform="cpu", process_index=0)] * 8)
    assert found.shared
    assert fit_now(MEMORY, found, 7).ok is not False
    assert fit_now(MEMORY, found, 8).ok is False
    with pytest.raises(OutOfMemory):
        refuse_too_big(MEMORY, found, 8)


def test_attached_devices_are_counted_one_by_one():
    assert fit_now(MEMORY, Capacity(5 * GIB), 8).ok is not False
    assert fit_now(MEMORY, Capacity(5 * GIB - 1), 8).ok is False


def test_arguments_that_lie_there_already_are_not_counted_again():
    assert fit_now(MEMORY, Capacity(GIB), 8, placed=4 * GIB).ok is not False
    assert fit_now(MEMORY, Capacity(GIB), 8, placed=3 * GIB).ok is False


def test_a_container_may_leave_less(monkeypatch, tmp_path):
    for name, text in {"memory.max": "1000", "memory.current": "700",
                       "memory.stat": "anon 500\ninactive_file 100"}.items():  # fmt: skip
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(device_memory, "_CGROUP", tmp_path)
    assert host_available() == 400
    (tmp_path / "memory.max").write_text("max")
    free = host_available()
    assert free is not None
    assert free > 400
