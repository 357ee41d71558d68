"""No import and no call changes what belongs to the user's whole process."""

from __future__ import annotations

import json

from tests.structure.isolation import printed

SNAPSHOT = """
import faulthandler, gc, json, logging, os, signal, sys, threading, warnings
import jax, numpy as np

def snapshot():
    loggers = {"root": logging.root, **logging.Logger.manager.loggerDict}
    levels = {
        name: (logger.level, list(map(repr, logger.handlers)))
        for name, logger in loggers.items()
        if isinstance(logger, logging.Logger) and (logger.level or logger.handlers)
    }
    monitoring = getattr(sys, "monitoring", None)
    return {
        "environment": dict(os.environ),
        "garbage collector": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()),
        "warnings": (list(map(repr, warnings.filters)), repr(warnings.showwarning)),
        "signals": {n: repr(signal.getsignal(n)) for n in signal.valid_signals()},
        "hooks": list(map(repr, (sys.excepthook, sys.displayhook, threading.excepthook))),
        "limits": (sys.getrecursionlimit(), sys.getswitchinterval(), sys.get_int_max_str_digits()),
        "profilers": (sys.getprofile() is None, sys.gettrace() is None, threading._profile_hook),
        "monitoring": monitoring and [monitoring.get_tool(n) for n in range(6)],
        "faulthandler": faulthandler.is_enabled(),
        "logging": levels,
        "jax.config": {name: repr(value) for name, value in jax.config.values.items()},
        "numpy": np.geterr(),
        "folder": os.getcwd(),
        "sys.path": list(sys.path),
    }

before = snapshot()

def check(name):
    after = snapshot()
    for kind in before:
        if after[kind] != before[kind]:
            changed.append((name, kind))

changed = []
"""

CALLS = """
import shardviz as sv
check("import")
import jax.numpy as jnp

def function(x, w):
    return jnp.tanh(x @ w).sum()

def explored():
    explorer = sv.explore(program)
    explorer.follow()
    explorer.wait(60)
    explorer.page()
    explorer.close()

def printed(x):
    jax.debug.print("{}", x.sum())
    return x * 2

mesh = sv.mesh(data=4, model=2)
x, w = sv.array("x", (16, 32), spec="data"), sv.array("w", (32, 64), spec="None, model")
program = sv.program(function, x, w, mesh=mesh)
rules = [("mlp", "model")]
audit = sv.audit([("w", (32, 64), "embed mlp")], rules, mesh)
found = sv.resolve("embed mlp", rules, mesh=mesh, shape=(32, 64))
calls = {
    "rules": lambda: sv.rules(r'[("a\\d", P("model"))]'),
    "path rules": lambda: sv.resolve("ab", [("(a+)+b", ("model",))], dialect="regex").explain(),
    "remedies": lambda: sv.remedies(found, "split embed"),
    "layout": lambda: sv.layout((16, 32), "data", mesh),
    "reshard": lambda: sv.reshard({"w": ((32, 64), "embed mlp")}, (mesh, rules), ("data=8", [])),
    "process_rows": lambda: sv.process_rows((256, 512), "data", sv.mesh("data=4", processes=2)),
    "text": lambda: sv.text(audit),
    "plot": lambda: sv.plot(audit),
    "topology": lambda: sv.topology("tpu:v5e:4x4"),
    "targets": sv.targets,
    "mesh_context": sv.mesh_context,
    "effects": lambda: sv.effects(program),
    "plan": lambda: sv.plan(program),
    "compile": lambda: sv.compile(program, target="cpu"),
    "run": lambda: sv.run(program, target="cpu"),
    "callbacks": lambda: sv.run(sv.program(printed, x, mesh=mesh), target="cpu"),
    "stages": lambda: sv.stages(program),
    "lock": lambda: sv.lock(program).write(os.path.join(sys.argv[1], "lock.json")),
    "expect": lambda: sv.expect(program).at_most("1 GiB"),
    "movement": lambda: sv.movement(sv.run(program, target="cpu").collectives[0], mesh=mesh),
    "changes": lambda: sv.changes(program),
    "explore": explored,
    "watch": lambda: sv.watch(lambda x: x * 2)(jnp.ones(8)),
    "compiles": lambda: sv.watch().__enter__().__exit__(),
}
for name, call in calls.items():
    call()
    check(name)
"""


def test_nothing_of_the_process_changes(tmp_path):
    code = f"import sys; sys.argv[1:] = [{str(tmp_path)!r}]\n{SNAPSHOT}{CALLS}"
    last = printed(code + "\nprint(json.dumps(changed))").splitlines()[-1]
    assert json.loads(last) == []
