"""What is said about the stages of a program, what changed between them, and a job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from shardviz.core.format import bytes_text, clause, plural, seconds_text
from shardviz.core.program.plan import Plan
from shardviz.core.program.report import Collective, Report, host_bytes

# --- the stages -----------------------------------------------------------------------

#: A stage without a result: why there is none.
WAITING = {
    "propagated": "planned when the edits settle",
    "partitioned": "not yet",
    "compiled": "not yet: press Compile",
}
#: The same on a page without a kernel, where nothing will be planned or compiled.
NEVER = {
    "propagated": "not planned",
    "partitioned": "not partitioned",
    "compiled": "not compiled",
}
NOT_SHOWN = "the compiler did not show it"
STOPPED_BEFORE = "it did not get that far"
NO_PLAN = "no plan: see why"
CACHED = "from the cache"
PROPAGATED_TITLE = "What propagation decided: see the tab Values."


def not_run(code: str, title: str = "", devices: int = 0, detail: str = "") -> str:
    """Why the partitioner does not run by itself.

    Args:
        code: of a `NotRun`.
        title: of the target.
        devices: how many there would be to simulate.
        detail: what failed.

    >>> not_run("described", "TPU v5e 2×4")
    'press Compile: the compiler for TPU v5e 2×4 takes a while'
    """
    sentences = {
        "hosts": "press Compile to compile it in every process",
        "attached": "press Compile to run the compiler of the attached devices",
        "described": f"press Compile: the compiler for {title} takes a while",
        "too many": (
            f"an estimate only: {devices:,} devices are many to simulate; choose"
            " described hardware, or press Compile"
        ),
        "no plan": "not run: there is no plan",
        "failed": f"not run: {detail}",
    }
    return sentences[code]


def without_plan(seconds: float | None) -> str:
    """Why a saved page has no plan.

    Args:
        seconds: how long it was waited for; None where jax is missing.
    """
    if seconds is None:
        return "Saved without the plan: jax is not installed."
    return f"Saved without the plan, which was not made within {seconds:g} s."


def values_with_axes(count: int) -> str:
    """What propagation added to the request."""
    if not count:
        return "no value got axes"
    return f"{plural(count, 'value')} got axes"


def collective_counts(collectives: Iterable[Collective]) -> str:
    """How many collectives there are of each kind, the most frequent first.

    >>> collective_counts([Collective("all-reduce", ("data",), 8)])
    '1 all-reduce'
    """
    counts = Counter(one.kind for one in collectives).most_common()
    return ", ".join(f"{n} {kind}" for kind, n in counts) or "no collectives"


#: What the tag of a collective says of a change, where not its name.
HOW = {"made asynchronous": "now async", "added": "new"}


def collective_facts(one: Collective) -> str:
    """Shape, bytes in all, groups and pass of a collective, as far as they are known.

    >>> collective_facts(Collective("all-reduce", ("data",), 8, shape="f32[2]", trips=3))
    'f32[2] · 24 B in all'
    """
    facts = [one.shape]
    if one.execution_count > 1:
        facts.append(f"{bytes_text(one.bytes_in_all)} in all")
    size = one.group_size
    if not size and one.groups:
        size = len(one.groups[0])
    facts += [clause("groups of {}", size or ""), one.phase]
    return " · ".join(filter(None, facts))


def part_of_axis(size: int) -> str:
    """A collective among fewer devices than the axis has."""
    return f"groups of {size}, a part of the axis"


NO_CAUSE = "The compiler names no cause."


# --- memory ---------------------------------------------------------------------------


def memory(report: Report) -> str:
    """The memory of a compiled program on each device, and whether it fits."""
    used, on_host = report.memory, host_bytes(report.memory)
    parts = []
    if report.fit is not None:
        parts.append(str(report.fit))
    if used.aliased:
        parts.append(f"{bytes_text(used.aliased)} of outputs reuse donated arguments.")
    if on_host:
        parts.append(
            f"In addition, {bytes_text(on_host)} per device are in host memory."
        )
    if report.fit is not None and report.fit.ok is False:
        parts.append(str(report.largest_arrays))
    return " ".join(filter(None, parts))


# --- jobs -----------------------------------------------------------------------------


def cancelled(kind: str, stage: str) -> str:
    """That somebody cancelled a compile or run."""
    return f"The {kind} was cancelled in the stage {stage!r}."


def stopped_at(stage: str) -> str:
    """The title of an error of a compile or run."""
    if stage == "cancelled":
        return "Cancelled"
    return f"Stopped at: {stage}"


def run_verdict(report: Report) -> str:
    """The result of a run in a few words; `""` where nothing ran.

    >>> run_verdict(Report("f", "cpu × 8", run_s=0.002))
    'ran in 2 ms'
    """
    if report.run_s is None:
        return ""
    took = f"ran in {seconds_text(report.run_s)}"
    checks = checks_in_words(report)
    return " · ".join(filter(None, [took, checks]))


def checks_in_words(report: Report) -> str:
    """How many checks of a run failed, or that all hold; `""` where there are none."""
    failed = sum(check.ok is False for check in report.checks)
    if failed:
        return f"{failed} of {plural(len(report.checks), 'check')} failed"
    if len(report.checks) > 1:
        return f"all {len(report.checks)} checks hold"
    if report.checks:
        return "its check holds"
    return ""


# --- values and the player ------------------------------------------------------------

NO_PLAN_YET = "There is no plan yet."
UNKNOWN_DEVICES = "Which devices take part is not known, so no links are drawn."


def values_split(plan: Plan) -> str:
    """How many values of a plan are split.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> values_split(Plan("f", make_mesh(data=2), ()))
    '0 values, 0 split'
    """
    split = sum(bool(op.spec.axes) for op in plan.ops)
    return f"{plural(len(plan.ops), 'value')}, {split:,} split"


def plan_summary(plan: Plan) -> str:
    """How many values and estimated collectives a plan has."""
    if not plan.collectives:
        return values_split(plan)
    estimated = f"{plural(len(plan.collectives), 'collective')} estimated"
    return f"{values_split(plan)} · {estimated}"


def least_time(seconds: float | None, source: str) -> str:
    """The least time of a movement, and where its rate comes from."""
    if seconds is None:
        return ""
    return f"at least {seconds_text(seconds)}, {source}"


def not_drawn(why: str) -> str:
    """Why the links of a collective are not shown."""
    return f"The links cannot be drawn: {why}"
