"""Engines that end, fail or are stopped, kernels that are killed, and engines of somebody else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import pytest

import shardviz as sv
from shardviz.base.errors import MissingPackage, TargetError
from shardviz.programs.backend.worker.folders import dump_root
from shardviz.programs.failure import Cancelled, OthersWait
from shardviz.runs.backend.hosts.cluster import children_of, status_of
from shardviz.runs.backend.hosts.run import run_program
from shardviz.runs.cache import ExecutableCache
from tests.hosts.test_hosts import on_engine

ipyparallel = pytest.importorskip(
    "ipyparallel", reason="targets of several processes need ipyparallel"
)
X = sv.array("x", (64, 64), spec="data, None")


def endless(x):
    """Runs for minutes, and its devices wait for each other in every step."""
    return jax.lax.fori_loop(0, 10_000_000, lambda _, c: jnp.tanh(c @ c.T) + c.sum() / 1e6, x)


def quick(x):
    return x.sum()


def gone(pids, seconds: float = 10.0) -> bool:
    """Whether all of these processes end within some seconds."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if all(status_of(pid) == "ended" for pid in pids):
            return True
        time.sleep(0.02)
    return False


def left_by(pids) -> list[str]:
    """The folders that processes have left in shared memory, or wherever dumps are written."""
    return [f for f in os.listdir(dump_root()) for pid in pids if f.startswith("shardviz-dump-")
            and f"-{pid}-" in f]  # fmt: skip


FAIL = """
from shardviz.runs.backend.hosts import engine
def fail(self, executable, inputs, placed):
    raise MemoryError("no memory for this")
engine.HereForKernel.execute = fail
"""


@pytest.fixture
def hosts():
    with sv.hosts(2, devices=2, heartbeat=4) as found:
        yield found


def kill(pids):
    os.kill(pids[1], signal.SIGKILL)


def terminate(pids):
    os.kill(pids[1], signal.SIGTERM)


def terminate_the_coordinator(pids):
    os.kill(pids[0], signal.SIGTERM)


def stop_one_and_abort_the_other(pids):
    os.kill(pids[0], signal.SIGSTOP)
    # On a busy machine it goes on for a moment, and jax gives up after seconds only.
    while status_of(pids[0]) != "stopped":
        pass
    os.kill(pids[1], signal.SIGABRT)  # as jax does where it hears nothing of others


# What happens while both run, and who is named with what.
FAULTS = {
    "killed": (kill, 1, "(SIGKILL)"),
    "asked to end": (terminate, 1, "(SIGTERM)"),
    "asked to end, and it coordinates": (terminate_the_coordinator, 0, "(SIGTERM)"),
    "stopped, and another gives up": (stop_one_and_abort_the_other, 0, "has been stopped"),
    "cancelled": (None, None, ""),
}
CASES = [
    pytest.param(*case, id=name, marks=() if name == "killed" else pytest.mark.long)
    for name, case in FAULTS.items()
]


@pytest.mark.parametrize(("fault", "rank", "words"), CASES)
def test_who_is_lost_in_a_run_is_named_and_all_are_ended(hosts, fault, rank, words):
    mesh = hosts.mesh(data=4)
    assert sv.run(sv.program(quick, X, mesh=mesh), target=hosts).ok
    pids, done = [p.pid for p in hosts.processes], []
    hosts.stages.clear()  # of the run before

    def hit() -> bool:
        if hosts.stages == {0: "run", 1: "run"} and not done:
            done.append(time.monotonic())
            if fault is None:
                return True
            fault(pids)
        return False

    program = sv.program(endless, X, mesh=mesh)
    error = run_program(program, target=hosts, cache=ExecutableCache(), cancelled=hit).error
    assert time.monotonic() - done[0] < hosts.heartbeat + 30
    assert gone(pids)
    assert left_by(pids) == []
    assert hosts.problem
    assert "✗" in sv.text(hosts)
    again = sv.run(program, target=hosts).error
    assert again.stage == "target"
    if rank is None:
        assert isinstance(error.cause, Cancelled)
    else:
        assert error.stage == "run"
        for message in (error.message, again.message):
            assert message.startswith(f"Process {rank} (pid {pids[rank]} on ")
            assert words in message


def test_an_engine_that_fails_while_others_wait_is_named(hosts):
    pids = [p.pid for p in hosts.processes]
    on_engine(hosts, 1, FAIL)
    report = sv.run(sv.program(endless, X, mesh=hosts.mesh(data=4)), target=hosts)
    assert report.error.stage == "run"
    assert report.error.cause == OthersWait(1, (0,), "own")
    assert "no memory for this" in report.error.message
    assert report.error.lacks_memory
    assert gone(pids)


SCRIPT = """
import os, signal, warnings
warnings.simplefilter("ignore")
import shardviz as sv
hosts = sv.hosts(1, devices=2)
program = sv.program(lambda x: x.sum(), sv.array("x", (8,), spec="d"), mesh=hosts.mesh(d=2))
child = os.fork()
if child == 0:
    error = sv.run(program, target=hosts).error
    hosts.close()
    os._exit(0 if "belong to the process that started them" in error.message else 1)
assert os.waitpid(child, 0)[1] == 0, "the child has used its parent's processes"
assert sv.run(program, target=hosts).ok
from shardviz.runs.backend.hosts.cluster import children_of
controller = hosts._engines.controller
children = [child.pid for child in children_of(controller)]
print("started", hosts.processes[0].pid, controller, *children, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_nothing_outlives_a_killed_kernel_nor_does_a_fork_touch_it():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300
    )
    assert "started" in done.stdout, done.stderr
    assert done.returncode == -signal.SIGKILL, done.stderr
    pids = done.stdout.partition("started")[2].split()
    assert len(pids) >= 2  # the engine, the controller and the processes that it has started
    assert gone([int(pid) for pid in pids])


def test_closing_ends_the_controller_and_its_children():
    hosts = sv.hosts(1, devices=1)
    controller = hosts._engines.controller
    pids = [controller, *(child.pid for child in children_of(controller))]
    hosts.close()
    assert gone(pids)


OTHER = "from shardviz.runs.backend.hosts import engine; engine.jaxlib_version = {!r}"
GONE = "import sys; sys.modules['shardviz.runs.backend.hosts.engine'] = None"


@pytest.mark.long
def test_engines_of_a_person_are_joined_and_run_and_left_alone(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    cluster = ipyparallel.Cluster(n=2, log_level=50, delay=0.0)
    client = cluster.start_and_connect_sync()
    try:
        last = client[client.ids[1]]
        last.execute(OTHER.format("0.1.2"), block=True)
        with pytest.raises(TargetError, match=r"jaxlib 0\.1\.2"):
            sv.hosts(client, devices=2)
        last.execute(OTHER.format(jax.lib.__version__), block=True)
        hosts = sv.hosts(client, devices=2)
        assert hosts.device_ids[:2] == (0, 1)
        program = sv.program(quick, X, mesh=hosts.mesh(data=4))
        assert sv.run(program, target=hosts).ok
        again = sv.hosts(cluster, devices=2)  # they have joined each other already
        assert again.device_ids == hosts.device_ids
        hosts.close()
        assert len(client.ids) == 2  # closing has ended none
        os.kill(again.processes[0].pid, signal.SIGKILL)
        assert gone([again.processes[0].pid])
        error = sv.run(program, target=again).error
        assert error.message.startswith("Process 0 (pid ")
        last.execute(GONE, block=True)
        with pytest.raises(TargetError):
            sv.hosts(client, devices=1)
    finally:
        client.close(linger=0)
        cluster.stop_cluster_sync()


@pytest.mark.parametrize(
    ("what", "keywords"),
    [
        ("many", {}),
        (0, {}),
        (True, {}),
        (2, {"devices": 0}),
        (2, {"platform": "tpu"}),
        (2, {"heartbeat": "soon"}),
    ],
)
def test_what_is_no_target_is_refused(what, keywords):
    with pytest.raises(TargetError):
        sv.hosts(what, **keywords)


def test_without_ipyparallel_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ipyparallel", None)
    with pytest.raises(MissingPackage, match=r"pip install shardviz\[hosts\]"):
        sv.hosts(2)
