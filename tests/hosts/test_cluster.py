"""Engines started by SSH: programs run on them, and one that is stopped is named."""

from __future__ import annotations

import signal

import pytest

import shardviz as sv
from tests.bench import cluster as by_ssh

if why := by_ssh.missing():
    pytest.skip(why, allow_module_level=True)


def test_programs_run_on_engines_started_by_ssh_and_the_silent_one_is_named(tmp_path):
    with by_ssh.ssh_cluster(tmp_path) as cluster:
        hosts = sv.hosts(cluster, devices=4, heartbeat=6)
        assert [p.host for p in hosts.processes] == list(by_ssh.MACHINES)
        assert by_ssh.compared(hosts, by_ssh.QUICK[:1]) == []
        message, seconds = by_ssh.hit_in_run(hosts, 1, signal.SIGSTOP)
        assert message.startswith(f"Process 1 (pid {hosts.processes[1].pid} on machine-b) ")
        assert seconds < hosts.heartbeat + 5
    assert by_ssh.left_over(tmp_path) == []
