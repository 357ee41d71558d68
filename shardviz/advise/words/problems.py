"""The sentences of the Explorer's list of problems, one for each kind."""

from __future__ import annotations

from shardviz.advise.problems import (
    DoesNotFit,
    FailedCheck,
    FullRematerialisation,
    IdleConstraints,
    IdleRule,
    MisspeltName,
    MomentsDiffer,
    MoreIdleRules,
    NoLayout,
    NoNames,
    NoPlan,
    OtherHosts,
    OtherSize,
    Replicated,
    RulesForNoArray,
    SlowDeviceOrder,
    Stopped,
    UnmatchedNames,
    UnsuitedOperands,
)
from shardviz.axis_rules.words.rule_uses import in_layers
from shardviz.axis_rules.words.trees import difference_lines
from shardviz.base.format import by_count, bytes_text, joined, listed, plural, shown
from shardviz.compiled.words.stages import stopped_at

# The most names in a list.
SHOWN = 4


# --- arrays ---------------------------------------------------------------------------


def dimension(array: str, name: object, dim: int) -> str:
    """Formats a dimension of an array, by its logical name if it has one: `w.embed`.

    >>> dimension("w", "embed", 0), dimension("w", None, 1)
    ('w.embed', 'w.1')
    """
    return f"{array}.{dim if name is None else name}"


def no_layout(fact: NoLayout) -> str:
    """Describes arrays that cannot be laid out for the same reason."""
    return f"{in_layers(fact.paths)} cannot be laid out. {fact.reason}"


def misspelt_name(fact: MisspeltName) -> str:
    """Describes a logical name that resembles a rule's name.

    >>> from shardviz.advise.problems import ArrayPlace
    >>> place = ArrayPlace("x", 0, "embd")
    >>> misspelt_name(MisspeltName("embd", "embed", ("x", "y"), place, 16384))
    "No rule names 'embd' (in x and y). Did you mean 'embed'? Extra copies take 16 KiB per device."
    """
    sentence = (
        f"No rule names {shown(fact.name)} (in {in_layers(fact.paths)})."
        f" Did you mean {shown(fact.nearest)}?"
    )
    if fact.wasted:
        sentence += f" Extra copies take {bytes_text(fact.wasted)} per device."
    return sentence


def moments_differ(fact: MomentsDiffer) -> str:
    """Describes how moments differ from their parameters."""
    return " ".join(f"{line}." for line in difference_lines(fact.differences))


def unmatched_names(fact: UnmatchedNames) -> str:
    """Describes logical names that match no rule and resemble no rule's name.

    >>> from shardviz.advise.problems import ArrayPlace
    >>> unmatched_names(UnmatchedNames(("head_dim",), ArrayPlace("w")))
    "No rule names 'head_dim': dimensions with this name are not split."
    """
    names = fact.names
    these = by_count(len(names), "this name", "these names")
    return (
        f"No rule names {listed(names, 'or')}: dimensions with {these} are not split."
    )


def replicated(fact: Replicated) -> str:
    """Describes arrays that are replicated over some mesh axes.

    >>> from shardviz.advise.problems import ArrayPlace
    >>> replicated(Replicated(("data",), ("wi", "wo"), 49152, ArrayPlace("wi")))
    'wi and wo are not split over data: 48 KiB of copies per device.'
    >>> print(replicated(Replicated(("data",), ("wi",), 49152, ArrayPlace("wi"), ("data",))))
    wi is not split over data, although a rule names data: 48 KiB of extra copies per device.
    """
    verb = by_count(len(fact.paths), "is", "are")
    axes, size = fact.denied or fact.axes, bytes_text(fact.wasted)
    head = f"{in_layers(fact.paths)} {verb} not split over {joined(axes, 'or')}"
    if not fact.denied:
        return f"{head}: {size} of copies per device."
    names = by_count(len(axes), f"a rule names {axes[0]}", "rules name these axes")
    return f"{head}, although {names}: {size} of extra copies per device."


def no_names(fact: NoNames) -> str:
    """Describes arrays that are replicated because they have no logical names.

    >>> from shardviz.advise.problems import ArrayPlace
    >>> no_names(NoNames(("data",), ("wo",), 49152, ArrayPlace("wo")))
    'wo has no logical names, so no rule splits it: 48 KiB of copies per device.'
    """
    count = len(fact.paths)
    verb, pronoun = by_count(count, "has", "have"), by_count(count, "it", "them")
    return (
        f"{in_layers(fact.paths)} {verb} no logical names, so no rule splits {pronoun}:"
        f" {bytes_text(fact.wasted)} of copies per device."
    )


# --- rules ----------------------------------------------------------------------------


def idle_rule(fact: IdleRule) -> str:
    """Describes a rule that never decides, and why."""
    use = fact.use
    return f"Rule {use.index + 1} ({use.rule}) {use.never}."


def more_idle_rules(fact: MoreIdleRules) -> str:
    """Returns how many more rules never decide."""
    verb = by_count(fact.count, "fires", "fire")
    return f"{plural(fact.count, 'more rule')} never {verb}."


def rules_for_no_array(fact: RulesForNoArray) -> str:
    """Returns how many rules are for names that no array has.

    >>> rules_for_no_array(RulesForNoArray(25))
    '25 rules match no array here.'
    """
    verb = by_count(fact.count, "matches", "match")
    return f"{plural(fact.count, 'rule')} {verb} no array here."


# --- the target, the plan and the report ----------------------------------------------


def other_size(title: str, devices: int, mesh_size: int) -> str:
    """Describes a target with more or fewer devices than the mesh.

    >>> other_size("TPU v5e 4×4", 16, 8)
    'TPU v5e 4×4 has 16 devices and the mesh has 8.'
    """
    return f"{title} has {plural(devices, 'device')} and the mesh has {mesh_size:,}."


def of_other_size(fact: OtherSize) -> str:
    """Describes a target with more or fewer devices than the mesh."""
    return other_size(fact.title, fact.devices, fact.mesh_size)


def other_hosts(fact: OtherHosts) -> str:
    """Describes a mesh whose number of hosts differs from the running hosts."""
    return (
        f"The mesh has {plural(fact.mesh_hosts, 'host')}, but the target {fact.target} has"
        f" {fact.target_hosts:,}."
    )


def does_not_fit(fact: DoesNotFit) -> str:
    """Describes the memory needed, and the memory of a device."""
    return str(fact.fit)


def no_plan(fact: NoPlan) -> str:
    """Explains why there is no plan."""
    return f"There is no plan: {fact.error.message}"


def idle_constraints(fact: IdleConstraints) -> str:
    """Describes constraint calls in the model that have no effect, with the reason."""
    calls = plural(len(fact.calls), "constraint")
    lines = dict.fromkeys(call.source or call.call for call in fact.calls)
    where = joined(lines, limit=SHOWN)
    verb = by_count(len(fact.calls), "has", "have")
    return f"{calls} in the model {verb} no effect ({fact.effect}): {where}."


def stopped(fact: Stopped) -> str:
    """Explains why a compile or run ended."""
    return f"{stopped_at(fact.error.stage)}: {fact.error.message}"


def failed_check(fact: FailedCheck) -> str:
    """Describes a check that failed, and the evidence."""
    return f"The check “{fact.check.name}” failed: {fact.check.detail}"


def slow_device_order(fact: SlowDeviceOrder) -> str:
    """Describes how much faster another device order is."""
    return str(fact.order)


def full_rematerialisation(fact: FullRematerialisation) -> str:
    """Describes collectives that gather an array only to split it again.

    >>> full_rematerialisation(FullRematerialisation(2, (0,), 1 << 20))
    '1 collective gathers an array on every device only to split it again: 1 MiB sent per device.'
    """
    count = len(fact.numbers)
    verb = by_count(count, "gathers an array", "gather arrays")
    pronoun = by_count(count, "it", "them")
    head = (
        f"{plural(count, 'collective')} {verb} on every device only to split {pronoun}"
    )
    return f"{head} again: {bytes_text(fact.size)} sent per device."


def copies(size: int, arrays: int, kind: str = "copies") -> str:
    """Formats the bytes of copies on each device, and the number of arrays.

    >>> copies(192 << 20, 2, "extra copies")
    '192 MiB of extra copies (2 arrays)'
    """
    return f"{bytes_text(size)} of {kind} ({plural(arrays, 'array')})"


SENTENCES = {
    NoLayout: no_layout,
    MisspeltName: misspelt_name,
    MomentsDiffer: moments_differ,
    UnmatchedNames: unmatched_names,
    Replicated: replicated,
    NoNames: no_names,
    IdleRule: idle_rule,
    MoreIdleRules: more_idle_rules,
    RulesForNoArray: rules_for_no_array,
    OtherSize: of_other_size,
    OtherHosts: other_hosts,
    DoesNotFit: does_not_fit,
    NoPlan: no_plan,
    IdleConstraints: idle_constraints,
    UnsuitedOperands: lambda fact: str(fact.note),
    Stopped: stopped,
    FailedCheck: failed_check,
    SlowDeviceOrder: slow_device_order,
    FullRematerialisation: full_rematerialisation,
}
