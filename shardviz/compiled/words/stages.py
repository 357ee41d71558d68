"""Sentences for the stages of a program, for changes between them, and for jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from shardviz.axis_rules.fit import Fit
from shardviz.base.collective import Collective, sent_in_all_text
from shardviz.base.format import (
    bytes_text,
    clause,
    joined,
    plural,
    seconds_text,
    told_apart,
)
from shardviz.compiled.comparison import CHANGES, CollectiveChange, Comparison
from shardviz.compiled.report import Report, host_bytes, needed_bytes
from shardviz.compiled.roofline import Roofline
from shardviz.plans.plan import Plan

# --- the stages -----------------------------------------------------------------------

#: Stage -> the text shown while the stage has no result, and the reason.
WAITING = {
    "propagated": ("not yet", "The program is planned once you pause editing."),
    "partitioned": ("not yet", ""),
    "compiled": ("not yet", "Press Compile."),
    "ran": ("not run yet", "Press Run to compare the prediction with a real run."),
}
#: Stage -> the text on a page without a kernel, which plans and compiles nothing.
NEVER = {
    "propagated": "not planned",
    "partitioned": "not partitioned",
    "compiled": "not compiled",
    "ran": "not run",
}
NOT_SHOWN = ("not shown", "The compiler did not show this stage.")
STOPPED_BEFORE = "not reached"
NO_PLAN = "no plan"
RUN_FAILED = "✗ failed"
PROPAGATED_TITLE = "The shardings that propagation decided: see the Values tab."


def not_run(code: str, title: str = "", count: int = 0) -> str:
    """Explains why the partitioner does not run automatically.

    Args:
        code: the code of a `NotRun`.
        title: the title of the target.
        count: number of devices that would have to be simulated, or of operations.

    >>> not_run("described", "TPU v5e 2×4")
    'Press Compile: the compiler for TPU v5e 2×4 takes a while.'
    """
    sentences = {
        "hosts": "Press Compile to compile the program in every process.",
        "attached": "Press Compile to run the compiler of the attached devices.",
        "described": f"Press Compile: the compiler for {title} takes a while.",
        "too many": (
            f"This is only an estimate, because simulating {count:,} devices is slow."
            " Choose described hardware, or press Compile."
        ),
        "too large": f"Press Compile: compiling {count:,} operations takes a while.",
        "no plan": "Not compiled: there is no plan.",
    }
    return sentences[code]


def without_plan(seconds: float | None) -> str:
    """Explains why a saved page has no plan.

    Args:
        seconds: how long the page waited for the plan; None if jax is missing.
    """
    if seconds is None:
        return "Saved without the plan: jax is not installed."
    return f"Saved without the plan, which was not ready within {seconds:g} s."


def values_with_axes(count: int) -> str:
    """Counts the values that propagation sharded in addition to the requested ones."""
    return f"{plural(count, 'value')} sharded" if count else "no value newly sharded"


def collective_counts(collectives: Iterable[Collective]) -> str:
    """Counts collectives by kind, most frequent first.

    >>> collective_counts([Collective("all-reduce", ("data",), 8)])
    '1 all-reduce'
    """
    counts = Counter(collective.kind for collective in collectives).most_common()
    return ", ".join(f"{n} {kind}" for kind, n in counts) or "no collectives"


# --- what changed ---------------------------------------------------------------------


def what_changed(comparison: Comparison) -> str:
    """Summarises the changes between two stages in a few words.

    >>> from shardviz.compiled.comparison import compare
    >>> c = Collective("all-reduce", ("data",), 8)
    >>> what_changed(compare([c], [c])), what_changed(compare([c, c], [c]))
    ('all kept', '1 gone')
    """
    if not comparison.changes:
        return "no collectives"
    if comparison.same:
        # For a plan, which is an estimate, a correct prediction matters more than a
        # count.
        return "estimate was right" if comparison.before == "propagated" else "all kept"
    counted: list[str] = []
    for kind in CHANGES:
        changes = comparison.of(kind)
        if kind == "kept" or not changes:
            continue
        before = sum(len(change.before) for change in changes)
        after = sum(len(change.after) for change in changes)
        if kind in ("combined", "split") or (kind == "changed" and before != after):
            counted.append(f"{before} {kind} into {after}")
        else:
            counted.append(f"{len(changes)} {HOW.get(kind, kind)}")
    return ", ".join(counted)


#: Kind of change -> the words for it, if they differ from the kind's name.
HOW = {
    "made asynchronous": "now async",
    "added": "new",
    "removed": "gone",
    "hoisted": "no longer in a loop",
}


def became(change: CollectiveChange) -> str:
    """Describes how a collective changed since the previous stage; `""` if it was kept.

    >>> c = Collective("all-reduce", ("data",), 8)
    >>> became(CollectiveChange("combined", (c, c), (c,)))
    '2 into 1'
    >>> became(CollectiveChange("added", (), (c,), ("propagated", "partitioned")))
    'not estimated'
    """
    if change.kind == "changed":
        return _other_kind("was", change.before, change.after)
    if change.kind == "added" and change.stages[0] == "propagated":
        return "not estimated"
    if change.kind in ("combined", "split"):
        return f"{len(change.before)} into {len(change.after)}"
    return "" if change.kind == "kept" else HOW.get(change.kind, change.kind)


def becomes(change: CollectiveChange) -> str:
    """Describes how a collective changes at the next stage; `""` if it is kept."""
    if change.kind == "changed":
        return _other_kind("becomes", change.after, change.before)
    return became(change)


def _other_kind(
    verb: str, on_other_stage: Sequence[Collective], on_stage: Sequence[Collective]
) -> str:
    """Names the kinds that collectives have at another stage, if they differ."""
    kinds = dict.fromkeys(collective.kind for collective in on_other_stage)
    if set(kinds) == {collective.kind for collective in on_stage}:
        return "changed"
    return f"{verb} {', '.join(kinds)}"


AS_PLANNED = "as planned"
REMATERIALISED = "full rematerialisation"
UNKNOWN_TRIPS = "in a loop of unknown length"


def sent(collectives: Sequence[Collective]) -> str:
    """Formats the bytes that a device sends for collectives.

    >>> sent([Collective("all-reduce", ("data",), 8, group_size=2)])
    '8 B sent per device'
    """
    return f"{sent_in_all_text(collectives)} sent per device"


def collective_facts(collective: Collective) -> str:
    """Describes a collective in one line.

    The line has the bytes sent, the result's bytes, the group size, the number of
    combined arrays, and forward or backward pass, if they are known.

    >>> collective_facts(Collective("all-reduce", ("data",), 8, group_size=4, trips=3))
    '12 B sent per device · 36 B in all executions · result 8 B · groups of 4'
    """
    size = collective.group_size
    if not size and collective.groups:
        size = len(collective.groups[0])
    facts = []
    if collective.sent_bytes is not None:
        facts.append(f"{bytes_text(collective.sent_bytes)} sent per device")
        if collective.execution_count > 1:
            facts.append(f"{sent_in_all_text([collective])} in all executions")
    array = "operand" if collective.definition.counts_operand else "result"
    facts.append(f"{array} {bytes_text(collective.bytes_per_device)}")
    facts.append(clause("groups of {}", size or ""))
    if collective.members:
        facts.append(f"{plural(len(collective.members), 'array')} combined")
    return " · ".join(filter(None, [*facts, collective.phase]))


def times(count: int, known: bool = True) -> str:
    """Formats how often a collective runs; `""` for once.

    >>> times(64), times(1), times(2, known=False)
    ('× 64', '', '× ?')
    """
    if not known:
        return "× ?"
    return f"× {count:,}" if count > 1 else ""


# The most lines of a file that are listed.
_MOST_LINES = 3


def lines(sources: Iterable[str]) -> str:
    """Lists lines, each file once.

    >>> lines(["block.py:67", "block.py:59", "block.py:67", "", "train.py:8"])
    'block.py:59, 67, train.py:8'
    >>> lines([f"block.py:{line}" for line in range(8, 13)])
    'block.py:8, 9, 10 +2'
    """
    by_file: dict[str, list[str]] = {}
    for source in dict.fromkeys(filter(None, sources)):
        file, _, line = source.rpartition(":")
        by_file.setdefault(file, []).append(line)
    texts = []
    for file, numbers in by_file.items():
        numbers.sort(key=lambda line: (len(line), line))  # longer numbers are larger
        more = clause(" +{}", max(0, len(numbers) - _MOST_LINES))
        texts.append(f"{file}:{', '.join(numbers[:_MOST_LINES])}{more}")
    return ", ".join(texts)


def part_of_axis(size: int) -> str:
    """Describes a collective among fewer devices than the axis has."""
    return f"in groups of {size}, each covering a part of the axis"


NO_CAUSE = "The compiler does not name a cause."


# --- the headline ---------------------------------------------------------------------

STAGE_HEADS = ("sent per device", "stage, and its collectives", "total, or line")
#: The parts of a roofline in the order of their bars, and the words for them.
PARTS = {"collectives": "collectives", "memory": "memory", "compute": "arithmetic"}
NO_CHIP = "Choose a chip under Target to see its least times."
NO_COST = "The compiler counted no operations, so there are no least times."


def by_plan(title: str) -> str:
    """Names the chips of least times that come from the plan."""
    return f"{title}, from the plan"


def bound(roofline: Roofline) -> str:
    """Names the part of a program that takes longest, or why it is unknown."""
    if roofline.counts_loops_once:
        return "bound not known: loops are counted once"
    if not roofline.bound and roofline.has_unknown_trips:
        return "bound not known: the length of a loop is unknown"
    return clause("bound by {}", PARTS.get(roofline.bound))


def costliest(name: str, times: str, lines: str, seconds: str) -> str:
    """Names the collectives that take longest, and the lines that they belong to.

    >>> costliest("all-reduce over data", "× 6", "block.py:25", "7.5 ms")
    'costliest collective: all-reduce over data × 6, block.py:25, ≥ 7.5 ms'
    """
    calls = f"{name}{clause(' {}', times)}{clause(', {}', lines)}"
    return f"costliest collective: {calls}, ≥ {seconds}"


def memory_needed(fit: Fit) -> str:
    """Describes the memory that a device needs, and the memory that it has.

    >>> memory_needed(Fit(3 << 30, 4 << 30))
    'needs 3 GiB of 4 GiB'
    """
    usable = " usable" if fit.reserved else ""
    return f"needs {_of(fit.needed, fit.capacity)}{usable}"


def memory_planned(alive: int, capacity: int | None) -> str:
    """Describes the memory that a device needs by the plan.

    >>> memory_planned(3 << 30, 4 << 30)
    'needs about 3 GiB of 4 GiB'
    """
    return f"needs about {_of(alive, capacity)}"


def _of(needed: int, capacity: int | None) -> str:
    size, limit = told_apart([needed, capacity or 0])
    return f"{size} of {limit}" if capacity else size


# --- memory ---------------------------------------------------------------------------


def planned_memory(fit: Fit, alive: int) -> str:
    """Describes the memory of a device by the plan, before a compile.

    Args:
        fit: the memory for arguments and results alone.
        alive: the most bytes of live values in the plan.

    >>> planned_memory(Fit(3 << 30, None, arrays_only=True), 5 << 30)
    'About 5 GiB per device, from the plan without fusion; arguments and results need 3 GiB.'
    """
    if fit.ok is False:
        return str(fit)
    about, size, limit = told_apart([alive, fit.needed, fit.capacity or 0])
    needs = (
        f"About {about} per device, from the plan without fusion; arguments and results"
        f" need {size}."
    )
    if fit.capacity is not None:
        needs += f" {fit.device} has {limit}."
    return needs


def memory(report: Report) -> str:
    """Describes a compiled program's memory on each device, and whether it fits."""
    reached = report.without_error
    fit, used, on_host = reached.fit, reached.memory, host_bytes(reached.memory)
    parts = []
    if fit is not None:
        parts.append(str(fit))
    needed, peak = needed_bytes(used) or 0, used.peak
    if peak is not None and needed > peak.bytes:
        # The page shows both figures, so we explain a visible difference.
        if bytes_text(needed) != bytes_text(peak.bytes):
            code = used.generated_code or 0
            gaps = needed - peak.bytes - code
            rest = {"code": code, "gaps between buffers": gaps}
            beyond = [f"{bytes_text(n)} for {use}" for use, n in rest.items() if n > 0]
            parts.append(f"In addition to the values: {joined(beyond)}.")
    if used.aliased:
        parts.append(
            f"{bytes_text(used.aliased)} of outputs reuse the memory of donated arguments."
        )
    if on_host:
        parts.append(f"Another {bytes_text(on_host)} per device is in host memory.")
    if fit is not None and fit.ok is False:
        parts.append(str(report.largest_arrays))
    return " ".join(filter(None, parts))


# --- jobs -----------------------------------------------------------------------------


def cancelled(kind: str, stage: str) -> str:
    """Returns the error message of a compile or run that the user cancelled."""
    kind = {"changes": "search for changes"}.get(kind, kind)
    return f"The {kind} was cancelled in the stage {stage!r}."


def stopped_at(stage: str) -> str:
    """Returns the title for an error of a compile or run."""
    if stage == "cancelled":
        return "Cancelled"
    return f"Stopped at: {stage}"


#: Stage of a job -> the text shown during it; STARTING for other stages.
DOING = {
    "compile": "Compiling…",
    "place": "Placing the inputs…",
    "run": "Running…",
    "check": "Checking…",
    "compare": "Checking…",
}
STARTING = "Starting…"
TRYING = "Compiling possible changes…"
NO_CHANGE = "None of the changes that were tried helps."
EQUAL = {True: "results are equal", None: "results not compared"}
CACHED = "cached"


def run_verdict(report: Report) -> str:
    """Summarises a run in a few words; `""` if nothing ran.

    >>> run_verdict(Report("f", "cpu × 8", run_s=0.002))
    'Ran in 2 ms'
    """
    if report.run_s is None:
        return ""
    took = f"Ran in {seconds_text(report.run_s)}"
    return " · ".join(filter(None, [took, checks_in_words(report)]))


def checks_in_words(report: Report) -> str:
    """Counts the checks of a run that passed or failed; `""` if there are none."""
    count = plural(len(report.checks), "check")
    if failed := sum(check.ok is False for check in report.checks):
        return f"{failed} of {count} failed"
    return f"{_passed(report)} of {count} passed" if report.checks else ""


def ran(report: Report) -> str:
    """Summarises a run as ✓ or ✗, and a count of its checks.

    >>> ran(Report("f", "cpu × 8", run_s=0.002))
    '✓'
    """
    count = len(report.checks)
    if failed := sum(check.ok is False for check in report.checks):
        return f"✗ {failed} of {count} failed"
    return f"✓ {_passed(report)} of {count}" if count else "✓"


def _passed(report: Report) -> int:
    # An undecided check has neither passed nor failed.
    return sum(check.ok is True for check in report.checks)


# --- values and the player ------------------------------------------------------------

NO_PLAN_YET = "There is no plan yet."


def values_split(plan: Plan) -> str:
    """Counts the values of a plan, and how many of them are split.

    >>> from shardviz.base.mesh import make_mesh
    >>> values_split(Plan("f", make_mesh(data=2), ()))
    '0 values, 0 split'
    """
    split = sum(bool(op.spec.axes) for op in plan.ops)
    return f"{plural(len(plan.ops), 'value')}, {split:,} split"


def plan_summary(plan: Plan) -> str:
    """Counts the values and estimated collectives of a plan."""
    if not plan.collectives:
        return values_split(plan)
    estimated = f"{plural(len(plan.collectives), 'collective')} estimated"
    return f"{values_split(plan)} · {estimated}"


def not_drawn(why: str) -> str:
    """Explains why the links of a collective are not shown."""
    return f"The links cannot be drawn: {why}"
