"""Programs on engines that ipyparallel starts by SSH, on this machine's loopback.

python -m tests.bench.cluster

It starts an sshd of its own, with keys and everything else in a temporary folder, and ends it; the
machine's own sshd, ~/.ssh and /etc/ssh are not read. The two engines name themselves as two
machines, so that nothing here is known of their processes but what ipyparallel says.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import shardviz as sv
from tests.hosts.programs import CASES, QUICK, orders, wrong

ROOT = Path(__file__).parents[2]
MACHINES = ("machine-a", "machine-b")
_SSHD = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
PidFile none
AuthorizedKeysFile {folder}/key.pub
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
Subsystem sftp internal-sftp
"""
_SSH = """
Host machine-*
  HostName 127.0.0.1
  Port {port}
  User {user}
  IdentityFile {folder}/key
  IdentitiesOnly yes
  BatchMode yes
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  GlobalKnownHostsFile /dev/null
  LogLevel ERROR
"""
# Python imports it at its start: the engine's name of its machine.
_NAME = """
import os, socket
if name := os.environ.get("MACHINE"):
    socket.gethostname = lambda: name
"""


def missing() -> str:
    """What this machine lacks, in a sentence; `""` for nothing."""
    try:
        import ipyparallel
    except ImportError:
        return 'ipyparallel is not installed: pip install "shardviz[hosts]".'
    del ipyparallel
    lacking = [name for name in ("ssh", "scp", "ssh-keygen", "sshd") if not found(name)]
    if lacking:
        return f"{', '.join(lacking)} not found: install openssh-server and openssh-client."
    if os.getuid() == 0 and not Path("/run/sshd").is_dir():
        return "sshd run by root needs the empty folder /run/sshd: mkdir /run/sshd."
    return ""


def found(program: str) -> str | None:
    """The path of a program, also where only root has its folder in PATH."""
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


@contextlib.contextmanager
def ssh_server(folder: Path) -> Iterator[Path]:
    """An sshd of one's own; gives the configuration with which ssh finds it.

    Raises:
        RuntimeError: with what it says, where it does not start.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name in ("host", "key"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True
        )
    given = {"port": port, "folder": folder, "user": getpass.getuser()}
    (folder / "sshd_config").write_text(_SSHD.format(**given))
    (folder / "ssh_config").write_text(_SSH.format(**given))
    with open(folder / "sshd.log", "wb") as log:
        server = subprocess.Popen(
            [found("sshd") or "sshd", "-D", "-e", "-f", str(folder / "sshd_config")],
            stderr=log,
            start_new_session=True,
        )
    try:
        until = time.monotonic() + 20
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if server.poll() is not None or time.monotonic() > until:
                said = (folder / "sshd.log").read_text().strip()
                raise RuntimeError(f"sshd did not start: {said}")
            time.sleep(0.05)
        yield folder / "ssh_config"
    finally:
        server.terminate()
        server.wait(20)


def configuration(folder: Path, ssh: Path, named: bool) -> Any:
    """What ipyparallel needs to know of the machines.

    Args:
        folder: for the profiles of the engines.
        ssh: the configuration of ssh.
        named: whether each engine has a name of its own for its machine.
    """
    from traitlets.config import Config

    (folder / "names").mkdir(exist_ok=True)
    (folder / "names" / "sitecustomize.py").write_text(_NAME)
    variables = {
        "PYTHONPATH": f"{folder / 'names'}{os.pathsep}{ROOT}",
        "JAX_PLATFORMS": "cpu",
        "IPYTHONDIR": str(folder / "ipython"),
    }
    engines = {
        machine: {
            "n": 1,
            "remote_profile_dir": str(folder / machine),
            "environment": {**variables, **({"MACHINE": machine} if named else {})},
        }
        for machine in MACHINES
    }
    return Config(
        {
            "SSHEngineSetLauncher": {
                "engines": engines,
                "remote_python": sys.executable,
                "ssh_args": ["-F", str(ssh)],
                "scp_args": ["-F", str(ssh)],
            }
        }
    )


@contextlib.contextmanager
def ssh_cluster(folder: Path, named: bool = True) -> Iterator[Any]:
    """An ipyparallel Cluster of two engines that were started by SSH, as a person starts one.

    Args:
        folder: an empty folder, for everything.
        named: as for `configuration`.
    """
    import ipyparallel as ipp

    with ssh_server(folder) as ssh:
        cluster = ipp.Cluster(
            n=2,
            engines="ssh",
            controller_ip="*",
            profile_dir=str(folder / "controller"),
            config=configuration(folder, ssh, named),
            load_profile=False,
            log_level=50,
            delay=0.0,
        )
        try:
            cluster.start_cluster_sync()
            yield cluster
        finally:
            with contextlib.suppress(Exception):  # also where only a part of it was started
                cluster.stop_cluster_sync()
            for pid in left_over(folder):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def left_over(folder: Path) -> list[int]:
    """The processes whose environment or command names a folder, this one aside."""
    pids, name = [], os.fsencode(folder)
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            text = (path / "environ").read_bytes() + (path / "cmdline").read_bytes()
            if name in text and int(path.name) != os.getpid():
                pids.append(int(path.name))
    return pids


def compared(hosts: Any, names: Sequence[str] = QUICK) -> list[str]:
    """Runs programs in both orders of the mesh; returns what is wrong, in words."""
    by_name = {case.name: case for case in CASES}
    problems = []
    for order, mesh in orders(hosts.device_ids).items():
        for name in names:
            values = by_name[name].values()
            report = sv.run(by_name[name].program(mesh), *values, target=hosts)
            problems += [f"{order}: {w}" for w in wrong(by_name[name], report, values)]
    print(f"{2 * len(names)} runs on {hosts.name}, {len(problems)} problems", flush=True)
    return problems


def main() -> None:
    if why := missing():
        print(why)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything is removed
    for named in (True, False):
        folder = Path(tempfile.mkdtemp(prefix="cluster-"))
        try:
            begun = time.monotonic()
            with ssh_cluster(folder, named) as cluster:
                print(f"engines by SSH, named as two machines: {named}", flush=True)
                hosts = sv.hosts(cluster, devices=4)
                print(f"up and joined in {time.monotonic() - begun:.1f} s", flush=True)
                print(sv.text(hosts))
                problems = compared(hosts)
                with cluster.connect_client_sync() as client:
                    client.wait_for_engines(2, timeout=60, interactive=False)
                    by_client = sv.hosts(client, devices=4)
                    problems += compared(by_client)
                    by_client.close()
                print("\n".join(problems))
                hosts.close()
            print(f"{len(left_over(folder))} processes left", flush=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
