from __future__ import annotations

import dataclasses

import shardviz as sv
from shardviz import types
from tests.structure.names import modules_below, public_classes, reachable, undocumented

# What some public functions return is annotated for type checkers alone, so that they stay light.
RETURNED = ("CachedFunction", "Explorer", "Target", "Picture")


def test_the_list_of_names_is_sorted_and_without_repeats():
    assert sv.__all__ == sorted(set(sv.__all__))


def test_dir_lists_the_public_names_alone():
    assert dir(sv) == sv.__all__


def test_every_name_is_there():
    assert [name for name in sv.__all__ if not hasattr(sv, name)] == []


def test_types_are_listed_beside():
    assert {"Verdict", "Collective", "MeshSpec"} <= set(types.__all__)
    for name in types.__all__:
        assert getattr(sv, name, getattr(types, name)) is getattr(types, name)


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(sv, "no_such_name")


def test_every_public_name_has_words_and_an_example():
    found = [
        problem
        for name in sv.__all__
        if name != "__version__"
        for problem in undocumented(name, getattr(sv, name))
    ]
    assert not found, "\n".join(found)


def test_every_value_that_they_return_has_words_and_an_example():
    # Of two classes with one name the later counts: a public one, not one of a backend.
    modules = sorted(modules_below(sv), key=lambda module: ".backend." not in module.__name__)
    classes = public_classes(modules)
    start = [getattr(sv, name) for name in sv.__all__]
    start += [getattr(types, name) for name in types.__all__]
    start += [classes[name] for name in RETURNED if name in classes]
    found = [p for cls in reachable(start, classes) for p in undocumented(cls.__name__, cls)]
    assert not found, "\n".join(found)


class Leaf:
    """Words.

    >>> 1
    1
    """


class Branch:
    """Words."""

    leaf: Leaf | None = None

    @property
    def silent(self) -> int:
        return 0


@dataclasses.dataclass
class Bare:
    size: int


def function() -> dict[str, Branch]:
    """Words."""
    return {}


def test_planted_gaps_are_found():
    assert undocumented("function", function) == ["function has no doctest"]
    assert undocumented("leaf", Leaf()) == []
    assert undocumented("Bare", Bare) == ["Bare has no docstring"]
    assert undocumented("Branch", Branch) == [
        "Branch has no doctest",
        "Branch.silent has no docstring",
    ]
    assert undocumented("f", lambda: 0) == ["f has no docstring"]


def test_what_a_function_leads_to_is_followed():
    classes = {"Leaf": Leaf, "Branch": Branch, "Bare": Bare}
    assert reachable([function], classes) == [Branch, Leaf]
    assert reachable([Leaf()], classes) == [Leaf]
