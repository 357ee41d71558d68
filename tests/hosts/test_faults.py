"""Engines that end, fail or are stopped, kernels that are killed, and engines of somebody else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import shardviz as sv
from shardviz.core.backend.run.folders import dump_root, owner_of
from shardviz.core.backend.run.hosts.cluster import status_of
from shardviz.core.backend.run.hosts.run import run_program
from shardviz.core.errors import MissingPackage, TargetError
from shardviz.core.program.cache import ExecutableCache
from tests.hosts.test_hosts import on_engine

ipyparallel = pytest.importorskip(
    "ipyparallel", reason="targets of several processes need ipyparallel"
)
X = sv.array("x", (64, 64), spec="data, None")
LIMIT = 9.0  # seconds: the heartbeat and 5 more


def endless(x):
    """Runs for minutes, and its devices wait for each other in every step."""
    return jax.lax.fori_loop(0, 10_000_000, lambda _, c: jnp.tanh(c @ c.T) + c.sum() / 1e6, x)


def quick(x):
    return x.sum()


@pytest.fixture(scope="module")
def hosts():
    with sv.hosts(2, devices=2, heartbeat=4) as found:
        yield found


def usable(hosts):
    if hosts.problem:
        hosts.restart()
    assert sv.run(sv.program(quick, X, mesh=hosts.mesh(data=4)), target=hosts).ok
    return hosts


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
    return [path for path in os.listdir(dump_root()) if owner_of(path) in pids]


@pytest.mark.parametrize(
    ("rank", "number", "words"),
    [
        (1, signal.SIGKILL, "ended in the stage 'run': killed from outside"),
        (1, signal.SIGTERM, "ended in the stage 'run': asked to end from outside (SIGTERM)"),
        (0, signal.SIGSTOP, "was stopped, or its machine is gone: silent for"),
    ],
    ids=["killed", "asked to end", "stopped"],
)
def test_an_engine_that_is_ended_or_stopped_is_named_and_all_are_ended(hosts, rank, number, words):
    usable(hosts)
    pids, begun = [p.pid for p in hosts.processes], []

    def hit() -> bool:
        if not begun and set(hosts.stages.values()) == {"run"} and len(hosts.stages) == 2:
            begun.append(time.monotonic())
            os.kill(pids[rank], number)
        return False

    program = sv.program(endless, X, mesh=hosts.mesh(data=4))
    hosts.stages.clear()  # of the run before
    report = run_program(program, target=hosts, cache=ExecutableCache(), cancelled=hit)
    assert time.monotonic() - begun[0] < LIMIT
    assert report.error.stage == "run"
    assert report.error.message.startswith(f"Process {rank} (pid {pids[rank]} on ")
    assert words in report.error.message
    assert "hosts.restart() starts them anew" in report.error.message
    assert gone(pids)
    assert left_by(pids) == []
    again = sv.run(program, target=hosts)
    assert again.error.stage == "target"
    assert f"Process {rank} (pid {pids[rank]}" in again.error.message
    assert "✗" in sv.text(hosts)


def test_where_one_is_stopped_and_another_gives_up_the_stopped_one_is_named(hosts):
    usable(hosts)
    pids, begun = [p.pid for p in hosts.processes], []

    def hit() -> bool:
        if not begun and hosts.stages == {0: "run", 1: "run"}:
            begun.append(time.monotonic())
            os.kill(pids[0], signal.SIGSTOP)
            os.kill(pids[1], signal.SIGABRT)  # as jax does where it hears nothing of others
        return False

    program = sv.program(endless, X, mesh=hosts.mesh(data=4))
    hosts.stages.clear()  # of the run before
    report = run_program(program, target=hosts, cache=ExecutableCache(), cancelled=hit)
    assert report.error.message.startswith(f"Process 0 (pid {pids[0]} on ")
    assert "was stopped" in report.error.message
    assert gone(pids)


def test_a_run_leaves_no_folder_in_shared_memory(hosts):
    usable(hosts)
    assert left_by([p.pid for p in hosts.processes]) == []


LATE = """
import time
from shardviz.core.backend.run.hosts import engine
def enter(self, stage, plain=engine._EngineJob.enter):
    time.sleep(1 if stage == "place" else 0)
    plain(self, stage)
    time.sleep(3 if stage == "place" else 0)
engine._EngineJob.enter = enter
"""


def test_a_process_that_is_late_turns_no_stage_back_and_is_named_with_its_own(hosts):
    usable(hosts)
    on_engine(hosts, 1, LATE)
    pid, stages, begun = hosts.processes[1].pid, [], []

    def hit() -> bool:
        if not begun and hosts.stages == {0: "run", 1: "place"}:
            begun.append(time.monotonic())
            os.kill(pid, signal.SIGKILL)
        return False

    program = sv.program(endless, X, mesh=hosts.mesh(data=4))
    hosts.stages.clear()  # of the run before
    report = run_program(
        program, target=hosts, cache=ExecutableCache(), progress=stages.append, cancelled=hit
    )
    assert stages[-1] == "run"
    assert stages.count("place") <= 1  # seen where the kernel looked at that moment
    assert report.error.stage == "place"
    assert report.error.message.startswith(f"Process 1 (pid {pid} on ")
    assert "ended in the stage 'place': killed from outside" in report.error.message


FAIL = """
from shardviz.core.backend.run.hosts import engine
def fail(self, executable, inputs, placed):
    raise MemoryError("no memory for this")
engine._OnEngine.execute = fail
"""


def test_an_engine_that_fails_while_others_wait_is_named(hosts):
    usable(hosts)
    pids = [p.pid for p in hosts.processes]
    on_engine(hosts, 1, FAIL)
    report = sv.run(sv.program(endless, X, mesh=hosts.mesh(data=4)), target=hosts)
    assert report.error.stage == "run"
    assert report.error.message.startswith("Process 1: The memory of the machine")
    assert "no memory for this" in report.error.message
    assert "It would be waited for by process 0." in report.error.message
    assert gone(pids)


def test_a_run_that_is_cancelled_ends_the_engines(hosts):
    usable(hosts)
    pids, stages = [p.pid for p in hosts.processes], []
    report = run_program(
        sv.program(endless, X, mesh=hosts.mesh(data=4)),
        target=hosts,
        cache=ExecutableCache(),
        progress=stages.append,
        cancelled=lambda: "run" in stages,
    )
    assert report.error.stage == "cancelled"
    assert gone(pids)
    assert "hosts.restart()" in hosts.problem


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
    os._exit(0 if "belongs to the process that started it" in error.message else 1)
assert os.waitpid(child, 0)[1] == 0, "the child has used its parent's processes"
assert sv.run(program, target=hosts).ok
parts = [str(hosts._engines.folder), *(str(l.pid) for l in hosts._engines._launchers())]
print("started", *parts, str(hosts.processes[0].pid), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_nothing_outlives_a_killed_kernel_nor_does_a_fork_touch_it():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300
    )
    assert "started" in done.stdout, done.stderr
    assert done.returncode == -signal.SIGKILL, done.stderr
    folder, *pids = done.stdout.partition("started")[2].split()
    assert len(pids) >= 3  # the controller, the engine, and the engine as it names itself
    assert gone([int(pid) for pid in pids])
    until = time.monotonic() + 10
    while Path(folder).exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert not Path(folder).exists()


@pytest.fixture(scope="module")
def own_cluster():
    """A cluster that a person has started."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_PLATFORMS", "cpu")
        cluster = ipyparallel.Cluster(n=2, log_level=50, delay=0.0)
        client = cluster.start_and_connect_sync()
        try:
            yield cluster, client
        finally:
            client.close(linger=0)
            cluster.stop_cluster_sync()


OTHER = "from shardviz.core.backend.run.hosts import engine; engine.jaxlib_version = {!r}"


def test_engines_of_a_person_are_joined_and_left_alone(own_cluster):
    _, client = own_cluster
    version = jax.lib.__version__
    last = client[client.ids[1]]
    last.execute(OTHER.format("0.1.2"), block=True)
    with pytest.raises(TargetError, match=r"Engine 1 on .* has jaxlib 0\.1\.2, and this kernel"):
        sv.hosts(client, devices=2)
    last.execute(OTHER.format(version), block=True)
    hosts = sv.hosts(client, devices=2)
    assert hosts.device_ids[:2] == (0, 1)
    assert len(hosts.device_ids) == 4
    assert hosts.name.startswith("2 hosts x 2, ")
    program = sv.program(quick, X, mesh=hosts.mesh(data=4))
    assert sv.run(program, target=hosts).ok
    again = sv.hosts(client, devices=2)  # they have joined each other already
    assert again.device_ids == hosts.device_ids
    hosts.close()
    assert len(client.ids) == 2  # closing has ended none


def test_engines_of_a_person_that_are_lost_are_restarted_and_wrong_ones_refused(own_cluster):
    cluster, _ = own_cluster
    hosts = sv.hosts(cluster, devices=2)
    program = sv.program(quick, X, mesh=hosts.mesh(data=2))
    assert sv.run(program, target=hosts).ok
    os.kill(hosts.processes[0].pid, signal.SIGKILL)
    assert gone([hosts.processes[0].pid])
    report = sv.run(program, target=hosts)
    assert report.error.message.startswith("Process 0 (pid ")
    assert "restart the engines where they were started" in report.error.message
    with pytest.raises(TargetError, match="not started here"):
        hosts.restart()
    cluster.restart_engines_sync()
    hosts = sv.hosts(cluster, devices=2)
    assert sv.run(program, target=hosts).ok
    code = "from shardviz.core.backend.run.hosts import engine; engine._GROUP.clear()"
    hosts._engines.client[:].execute(code, block=True)
    with pytest.raises(TargetError, match="jax has started its devices in engine 0"):
        sv.hosts(cluster, devices=1)
    code = "import sys; sys.modules['shardviz.core.backend.run.hosts.engine'] = None"
    hosts._engines.client[:].execute(code, block=True)
    with pytest.raises(TargetError, match="not all of what shardviz needs"):
        sv.hosts(cluster, devices=1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("many",), "how many processes to start here, as in sv.hosts(2, devices=4)"),
        ((0,), "From 1 to 64 processes are started on one machine; got 0."),
        ((True,), "got True"),
        ((2, {"devices": 0}), "The number of devices per process"),
        ((2, {"platform": "tpu"}), "'cpu' (simulated) or 'gpu'; got 'tpu'"),
        ((2, {"heartbeat": "soon"}), "The heartbeat, in seconds,"),
    ],
)
def test_what_is_no_target_is_refused(arguments, words):
    what, keywords = (*arguments, {})[:2]
    with pytest.raises(TargetError) as caught:
        sv.hosts(what, **keywords)
    assert words in str(caught.value)


def test_without_ipyparallel_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ipyparallel", None)
    with pytest.raises(MissingPackage, match=r'pip install "shardviz\[hosts\]"'):
        sv.hosts(2)
