"""What became of every constraint call, compared with what jax traced at that line."""

from __future__ import annotations

import cProfile
import sys
import threading
from collections import Counter

import jax
import pytest

import shardviz as sv
from shardviz.base.mesh import make_mesh
from shardviz.base.source_lines import is_user_file, line_in_words
from shardviz.plans.plan_notes import UnknownConstraints

pytest.importorskip("flax")

from flax import linen as nn
from flax.core import spmd as core_spmd

from tests.propagation import constraint_models as models
from tests.propagation.constraint_models import BATCH, CASES, RULES, TYPO, X, linen

MESH = make_mesh(data=4, model=2)
MONITORED = hasattr(sys, "monitoring")


def planned(case):
    fn, arguments = case.make()
    mesh = MESH
    if case.context == "explicit":
        mesh = sv.mesh(models.axes_mesh("Explicit"))
    with case.around():
        return sv.plan(sv.program(fn, *arguments, mesh=mesh))


def constraint_equations(jaxpr):
    """Every equation of a jaxpr that constrains, once however often it is called."""
    found, seen, left = [], set(), [jaxpr]
    while left:
        here = left.pop()
        here = getattr(here, "jaxpr", here)
        if id(here) in seen:
            continue
        seen.add(id(here))
        for equation in here.eqns:
            if equation.primitive.name in ("sharding_constraint", "reshard"):
                found.append(equation)
            left += [v for v in jax.tree.leaves(tuple(equation.params.values()))
                     if hasattr(v, "eqns") or hasattr(v, "jaxpr")]  # fmt: skip
    return found


def users_line(equation):
    for frame in equation.source_info.traceback.frames:
        if is_user_file(frame.file_name):
            return line_in_words(frame.file_name, frame.line_num)
    return ""


def entries(partitions, rank):
    """A spec as a tuple of its entries, as long as the array has dimensions."""
    found = [None if e in (None, ()) else e for e in partitions]
    found = [e[0] if isinstance(e, tuple) and len(e) == 1 else e for e in found]
    return (*found, *(None,) * (rank - len(found)))


def traced_by_jax(case):
    """What jax's own jaxpr constrains, by line and spec, without the dimension of a vmap."""
    fn, arguments = case.make()
    models.kept.clear_cache()  # jax would return what it traced under other rules
    with case.around():
        jaxpr = jax.jit(fn).trace(*arguments).jaxpr
    found = Counter()
    for equation in constraint_equations(jaxpr):
        sharding = equation.params.get("sharding") or equation.params["dst_sharding"]
        spec = entries(tuple(sharding.spec), equation.outvars[0].aval.ndim)
        if case.batched is not None and len(spec) > 1:
            spec = (*spec[: case.batched], *spec[case.batched + 1 :])
        found[users_line(equation), spec] += 1
    return found


def recorded(plan):
    return Counter(
        (one.source, entries(tuple(one.spec.to_jax()), len(one.shape)))
        for one in plan.constraints
        if one.effect == "constrained"
    )


@pytest.mark.parametrize("name", CASES)
def test_the_effect_of_every_call_is_what_jax_traced(name):
    case = CASES[name]
    plan = planned(case)
    assert tuple(one.effect for one in plan.constraints) == case.effects
    if case.raises:
        assert plan.error is not None
        with pytest.raises((ValueError, AssertionError, TypeError)):
            traced_by_jax(case)
        return
    assert plan.error is None, plan.error
    expected, found = traced_by_jax(case), recorded(plan)
    if name == "jax, auto_axes reshards by itself":
        assert expected
        assert not found
    elif case.moved:
        assert sorted(spec for _, spec in found) == sorted(spec for _, spec in expected)
    elif case.copies:
        assert set(found) == set(expected)
    else:
        assert found == expected


def test_a_second_plan_finds_what_the_first_one_found():
    for name in ("a jitted function of the module", "nn.jit, boxed weights", "nn.scan, gradient"):
        first, second = planned(CASES[name]), planned(CASES[name])
        assert first.constraints == second.constraints
        assert len(second.constraints) == len(CASES[name].effects)


def test_a_function_that_the_user_traced_before_is_said_to_hide_calls():
    """In the context of the user's own call jax keeps what it traced there."""

    @jax.jit
    def inner(x):
        return linen(x, BATCH, rules=RULES)

    with jax.set_mesh(models.devices_mesh()):
        program = sv.program(lambda x: inner(x), X)
        inner.trace(X)
        sv.stages(program)
        plan = sv.plan(program)
    effects = [call.effect for call in plan.constraints]
    line = inner.__wrapped__.__code__.co_firstlineno
    assert effects == ["constrained"] or f":{line}" in " ".join(map(str, plan.notes))


def calls_of(fn, context="abstract", rules=RULES, *arguments):
    with models.CONTEXTS[context](), models.in_rules(rules):
        return sv.plan(sv.program(fn, *(arguments or (X,)), mesh=MESH))


def test_attributes_of_a_call():
    def fn(x):
        return linen(x, ("batch", "length"), fallback=models.KEEP)

    (one,) = calls_of(fn).constraints
    assert one.source == f"test_constraints.py:{fn.__code__.co_firstlineno + 1}"
    assert (one.shape, one.names) == ((8, 16), ("batch", "length"))
    assert one.rules.pairs() == RULES
    assert (str(one.spec), one.fallback) == ("P('data', None)", "NO_CONSTRAINT")
    assert one.mesh == MESH
    kinds = ["applied", "other name", "terminal None"]
    assert [verdict.kind for verdict in one.verdicts] == kinds
    own = sv.resolve(one.names, RULES, mesh=MESH, shape=one.shape)
    assert [str(v) for d in one.decisions for v in d.verdicts] == [
        str(v) for d in own.decisions for v in d.verdicts
    ]


def test_the_error_names_the_call():
    plan = calls_of(models.raise_error)
    failed = plan.constraints[-1]
    line = models.raise_error.__code__.co_firstlineno + 2
    assert (failed.effect, failed.fallback) == ("error", "RAISE_ERROR")
    assert failed.source == f"constraint_models.py:{line}"
    assert f"{failed.where}: {failed.sentence}" in str(plan.error)


@pytest.mark.parametrize("calls", [1, 2])
def test_another_error_is_not_blamed_on_a_call(calls):
    def fn(x):
        try:
            linen(x, TYPO, fallback=models.RAISE)
        except ValueError:
            x = linen(x, BATCH) if calls == 2 else x
        raise KeyError("elsewhere")

    plan = calls_of(fn)
    assert str(plan.error).startswith("trace: jax could not trace the function. KeyError")
    assert [one.effect for one in plan.constraints] == ["error", "constrained"][:calls]


def test_rules_are_those_of_where_the_program_was_made():
    with jax.set_mesh(models.devices_mesh()), nn.logical_axis_rules(RULES):
        program = sv.program(lambda x: linen(x, BATCH), X)
    (one,) = sv.plan(program).constraints
    assert (one.effect, str(one.spec)) == ("constrained", "P('data', 'model')")
    with nn.logical_axis_rules(models.CHANGED):
        (one,) = sv.plan(program).constraints
    assert str(one.spec) == "P(None, 'data')"
    assert core_spmd.get_logical_axis_rules() == ()


def test_text_has_what_did_nothing_first():
    def fn(x):
        for _ in range(3):
            x = linen(x, BATCH)
            x = linen(x, TYPO, fallback=models.KEEP)
        return linen(x, BATCH, rules=())

    plan = calls_of(fn)
    line = fn.__code__.co_firstlineno
    _, _, text = sv.text(plan, width=1000).partition("Constraints, 7 calls")
    folded = [f"py:{line + 4} with_logical", f"py:{line + 3} with_logical"]
    assert [text.index(one) for one in folded] == sorted(text.index(one) for one in folded)
    assert text.count("× 3") == 1
    assert f"py:{line + 2} with_logical" not in text
    _, _, full = sv.text(plan, width=1000, full=True).partition("Constraints, 7 calls")
    assert f"py:{line + 2} with_logical" in full


# nothing is left behind


def watchers():
    tools = [sys.monitoring.get_tool(i) for i in range(6)] if MONITORED else []
    return sys.getprofile(), sys.gettrace(), tools


@pytest.mark.parametrize("fn", [models.rules_argument, models.raise_error, models.caught])
def test_nothing_is_left_behind(fn):
    names = ("with_logical_constraint", "logical_axis_rules")
    functions = [getattr(nn, name) for name in names] + [jax.lax.with_sharding_constraint]
    module = dict(vars(models))
    before = (watchers(), functions, [f.__code__ for f in functions], fn.__code__, dict(vars(fn)))
    calls_of(fn)
    functions = [getattr(nn, name) for name in names] + [jax.lax.with_sharding_constraint]
    after = (watchers(), functions, [f.__code__ for f in functions], fn.__code__, dict(vars(fn)))
    assert before == after
    assert dict(vars(models)) == module


def test_flax_may_be_imported_by_the_traced_function(monkeypatch):
    module = sys.modules["flax.linen.spmd"]
    monkeypatch.delitem(sys.modules, "flax.linen.spmd")

    def fn(x):
        sys.modules["flax.linen.spmd"] = module
        return module.with_logical_constraint(x, BATCH, rules=RULES)

    assert [one.effect for one in calls_of(fn).constraints] == ["constrained"]


def test_a_profiler_goes_on():
    profiler = cProfile.Profile()
    profiler.enable()
    try:
        plan = calls_of(models.rules_argument)
    finally:
        profiler.disable()
    assert any("rules_argument" in str(entry.code) for entry in profiler.getstats())
    # Python 3.11 has one hook for both.
    assert len(plan.constraints) == MONITORED
    assert [type(note) for note in plan.notes] == [UnknownConstraints] * (not MONITORED)


@pytest.mark.skipif(not MONITORED, reason="sys.monitoring is new in Python 3.12")
def test_without_a_free_tool_the_calls_are_unknown():
    free = [i for i in range(6) if sys.monitoring.get_tool(i) is None]
    for tool in free:
        sys.monitoring.use_tool_id(tool, f"tool {tool}")
    try:
        plan = calls_of(models.rules_argument)
        assert [sys.monitoring.get_tool(i) for i in free] == [f"tool {i}" for i in free]
    finally:
        for tool in free:
            sys.monitoring.free_tool_id(tool)
    assert plan.constraints == ()
    assert plan.ok
    assert [type(note) for note in plan.notes] == [UnknownConstraints]


def test_threads_record_their_own_calls():
    barrier, found = threading.Barrier(3, timeout=60), {}

    def fn(number):
        def model(x):
            barrier.wait()
            for _ in range(number):
                x = linen(x, BATCH, rules=RULES)
            barrier.wait()
            return x * 2

        return model

    def work(number):
        found[number] = sv.plan(sv.program(fn(number), X, mesh=MESH)).constraints

    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {number: len(calls) for number, calls in found.items()} == {1: 1, 2: 2, 3: 3}
    assert watchers()[0] is None


def test_a_plan_inside_of_a_plan():
    def outer(x):
        inner = sv.plan(sv.program(models.no_constraint, X, mesh=MESH))
        assert len(inner.constraints) == 2
        return linen(x, BATCH) * 2

    assert len(calls_of(outer, "none").constraints) == 1
