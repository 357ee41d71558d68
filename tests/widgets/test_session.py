import json

import pytest

import shardviz as sv
from shardviz.axis_rules.panel.rules_view import rule_rows
from shardviz.axis_rules.requests import request
from shardviz.axis_rules.rules import Rules
from shardviz.base.array_spec import ArraySpec
from shardviz.base.mesh import make_mesh
from shardviz.explorer.document import DEVICE_PUT
from shardviz.explorer.session import Session
from shardviz.explorer.session_view import layout_view, menus_view, session_view
from shardviz.explorer.state import open_state, session_on, session_state
from shardviz.gallery import programs
from shardviz.programs.program import Program


def new_session(name: str = programs.DEFAULT) -> Session:
    return Session(programs.get(name), name)


def test_an_axis_is_resized_moved_and_removed():
    session = new_session()
    session.edit("mesh", "'a b'=4, model=3, x=2")
    session.edit("types", "Explicit")
    session.edit("size", ["a b", "16"])
    assert session.now.text["mesh"] == "'a b'=16, model=3, x=2"
    session.edit("move_axis", ["x", 0])
    assert list(session.mesh.shape.items()) == [("x", 2), ("a b", 16), ("model", 3)]
    session.edit("move_axis", ["x", 99])
    session.edit("remove_axis", "model")
    assert list(session.mesh.shape.items()) == [("a b", 16), ("x", 2)]
    assert set(session.mesh.axis_types) == {"Explicit"}
    session.edit("remove_axis", "model")
    assert "model" in session.now.errors["remove_axis"], "a click that comes too late"


@pytest.mark.parametrize("text", ["four", "0", str(1 << 30)])
def test_a_size_that_no_axis_has_can_be_mended_in_the_text_of_the_mesh(text: str):
    session = new_session()
    session.edit("size", ["data", text])
    assert session.mesh.shape == {"data": 4, "model": 2}, "the last good mesh stays"
    assert session.now.text["mesh"] == f"data={text}, model=2"
    assert set(session.now.errors) == {"mesh"}
    session.edit("size", ["data", "8"])
    assert session.now.errors == {}
    assert session.mesh.shape == {"data": 8, "model": 2}


def test_the_last_axis_cannot_be_removed():
    session = new_session()
    session.edit("remove_axis", "data")
    session.edit("remove_axis", "model")
    assert session.mesh.shape == {"model": 2}
    assert set(session.now.errors) == {"mesh"}


def spec_of(session: Session, array: int = 0) -> tuple[str, str]:
    """How an array is split, and what is typed about it."""
    return str(session.program.requests[array].spec), session.now.fields[array].text["spec"]


def test_a_dimension_is_split_from_what_the_rules_say_and_goes_back_to_them():
    session = new_session()
    assert spec_of(session) == ("P(None, 'model')", "")
    session.edit("split", [0, "data", True])
    assert spec_of(session) == ("P('data', 'model')", "P('data', 'model')")
    session.edit("split", [1, "data", True], 0)
    assert spec_of(session)[0] == "P(None, ('model', 'data'))", "an axis splits one dimension"
    session.edit("split", [0, "model", False])
    assert spec_of(session)[0] == "P(None, ('model', 'data'))", "it does not split that one"
    session.edit("split", [1, "data", False])
    assert spec_of(session) == ("P(None, 'model')", ""), "the rules say it again"
    session.edit("split", [1, "model", False])
    assert spec_of(session) == ("P(None, None)", "P(None, None)")


def test_a_dimension_of_another_array_is_split():
    session = new_session()
    session.edit("spec", "P(P.UNCONSTRAINED)", 2)
    session.edit("split", [0, "model", True], 2)
    assert spec_of(session, 2)[1] == "P('model', None)"
    assert session.now.selected == 0


@pytest.mark.parametrize("value", [[2, "data", True], [-1, "data", True], [0, "seq", True]])
def test_what_cannot_be_split_is_said_and_changes_nothing(value):
    session = new_session()
    before = session.program
    session.edit("split", value)
    assert session.program is before
    assert set(session.now.errors) == {"split"}


def test_a_shape_with_names_fills_both_fields():
    session = new_session()
    session.edit("shape", "layers:8, embed:512 _:64", 0)
    array = session.arrays[0]
    assert (array.shape, array.logical) == ((8, 512, 64), ("layers", "embed", None))
    text = session.now.fields[0].text
    assert (text["shape"], text["logical"]) == ("8, 512, 64", "layers embed _")
    session.edit("shape", "8, 512, 128", 0)
    assert session.arrays[0].logical == ("layers", "embed", None)


@pytest.mark.parametrize("text", ["embed:512 64", "embed:", ":8", "a:b", "embed:9999999999999999"])
def test_a_shape_with_names_that_cannot_be_read_stays_in_its_field(text: str):
    session = new_session()
    before = session.arrays
    session.edit("shape", text, 0)
    assert session.arrays == before
    assert session.now.fields[0].text["shape"] == text
    assert set(session.now.fields[0].errors) == {"shape"}
    session.edit("shape", "embed:64 mlp:128", 0)
    assert session.now.fields[0].errors == {}
    assert session.arrays[0].shape == (64, 128)


def test_a_mesh_that_cannot_be_read_keeps_the_last_good_one():
    session = new_session()
    before = session.program
    session.edit("mesh", "data=four")
    assert session.program is before
    assert set(session.now.errors) == {"mesh"}
    assert session.now.text["mesh"] == "data=four"
    session.edit("mesh", "data=2")
    assert session.now.errors == {}
    assert session.mesh.size == 2


def test_hosts_and_devices_follow_a_mesh_where_they_can():
    session = new_session()
    session.edit("hosts", "4")
    session.edit("mesh", "data=6")
    assert len(session.mesh.processes) == 2
    assert session.now.text["hosts"] == "2"
    mesh = make_mesh(data=8, device_ids=[7, 6, 5, 4, 3, 2, 1, 0])
    session = Session(programs.get().replace(mesh=mesh))
    session.edit("mesh", "data=2, model=4")
    assert session.mesh.device_ids.tolist() == [[7, 6, 5, 4], [3, 2, 1, 0]]


def test_a_shape_and_names_that_do_not_fit_are_an_error_at_the_field_typed_last():
    session = new_session()
    good = session.arrays[0]
    session.edit("shape", "512, 2048, 4", 0)
    assert session.arrays[0] == good
    assert set(session.now.fields[0].errors) == {"shape"}
    session.edit("logical", "embed mlp extra", 0)
    assert session.now.fields[0].errors == {}
    assert session.arrays[0].shape == (512, 2048, 4)


def test_a_typed_spec_wins_over_the_rules_until_it_is_cleared():
    session = new_session()
    ruled = session.program.requests[0].spec
    session.edit("spec", "data, None", 0)
    assert str(session.program.requests[0].spec) == "P('data', None)"
    assert str(ruled) in session_view(session.now)["layout_0"]["warnings"][0]
    session.edit("spec", "", 0)
    assert session.program.requests[0].spec == ruled


PMAP = "ShardingSpec((NoSharding(), Chunked([2])), (Replicated(4), ShardedAxis(0)))"


def test_a_sharding_spec_is_a_third_way_to_write_a_sharding():
    session = new_session()
    session.edit("spec", PMAP, 0)
    assert str(session.arrays[0].spec) == "P(None, 'model')"
    assert session.now.fields[0].text["spec"] == PMAP
    # On another mesh it is parsed again.
    session.edit("mesh", "a=4, b=2")
    assert str(session.arrays[0].spec) == "P(None, 'b')"
    session.edit("mesh", "a=2, b=4")
    assert set(session.now.fields[0].errors) == {"spec"}
    session.edit("mesh", "a=2, b=2, c=2")
    assert session.now.fields[0].errors == {}
    assert str(session.arrays[0].spec) == "P(None, 'c')"


def test_adding_and_removing_an_array_detaches_the_program():
    session = new_session()
    session.edit("add", None)
    assert session.now.entry == DEVICE_PUT
    assert session.now.selected == len(session.arrays) - 1
    session.edit("remove", session.now.selected)
    while len(session.arrays) > 1:
        session.edit("remove", 0)
    session.edit("remove", 0)
    assert len(session.arrays) == 1
    assert set(session.now.errors) == {"remove"}


def test_another_program_keeps_a_mesh_that_has_its_axes():
    session = new_session()
    session.edit("mesh", "data=8, model=8")
    session.edit("program", "transformer block")
    assert session.mesh.size == 64
    session.edit("mesh", "x=4")
    session.edit("program", "MLP")
    assert session.mesh == programs.get("MLP").mesh


def test_every_preset_and_program_of_the_menus_opens():
    menus = menus_view(new_session().now)
    presets = [option["value"] for group in menus["presets"] for option in group["options"]]
    chosen = [("preset", value) for value in presets]
    chosen += [("program", option["value"]) for option in menus["programs"]]
    for field, value in chosen:
        session = new_session()
        session.edit(field, value)
        assert session.now.errors == {}, value
        session_view(session.now)
        assert field == "preset" or session.program.problems == (), value


def test_the_rules_are_tidied_when_the_field_is_left():
    session = new_session()
    session.edit("rules", "('batch','data'), ('mlp', ('model',))")
    assert rule_rows(session)["rows"] == []
    session.edit("tidy", None)
    assert session.now.text["rules"] == "batch -> data\nmlp -> model"
    assert rule_rows(session)["aligned"]


@pytest.mark.parametrize("name", programs.names()[:2])
def test_state_round_trips_through_json(name):
    session = new_session(name)
    session.edit("mesh", "data=2, model=2, extra=2")
    session.edit("hosts", "2")
    session.edit("spec", "None", 0)
    session.edit("select", 1)
    session.edit("by", "host")
    session.edit("dims", [1, 0])
    again = open_state(json.loads(json.dumps(session_state(session))))
    assert again.program.mesh == session.program.mesh
    assert again.arrays == session.arrays
    assert again.rules == session.rules
    assert again.now.entry == name
    shown = lambda now: (now.selected, now.by, now.dims, now.at)  # noqa: E731
    assert shown(again.now) == shown(session.now)
    assert session_state(again) == session_state(session)


def test_a_state_holds_permuted_devices_and_uneven_hosts():
    mesh = make_mesh(data=4, device_ids=[9, 3, 5, 1], processes=[0, 0, 0, 1])
    session = Session(programs.get().replace(mesh=mesh))
    assert open_state(session_state(session)).mesh == mesh


def own(name, count=2):
    """A session on a function that no menu has."""
    arrays = tuple(ArraySpec(f"a{i}", (8, 8)) for i in range(count))
    program = Program(lambda *a: a, arrays, make_mesh(data=2), name=name)
    return Session(program, own=program)


# "attention" is also what a program of the menu is called, which takes five arrays.
@pytest.mark.parametrize(("name", "count"), [("attention", 5), ("<lambda>", 0)])
def test_a_reopened_state_says_which_function_was_not_restored(name, count):
    again = open_state(json.loads(json.dumps(session_state(own(name, count)))))
    assert again.now.entry == DEVICE_PUT
    assert again.now.missing_function == name
    assert name in session_view(again.now)["program"]["lost"]
    assert session_state(open_state(session_state(again))) == session_state(again)


FOUND = {
    "another program": ("program", "MLP"),
    "an array more": ("add", None),
}


@pytest.mark.parametrize("edit", FOUND.values(), ids=FOUND.keys())
def test_nothing_is_missing_any_more_after(edit):
    again = open_state(session_state(own("dot")))
    again.edit(*edit)
    assert again.now.errors == {}
    assert "lost" not in session_view(again.now)["program"]
    assert "function" not in session_state(again)


EDITS_OF_NOTHING = {
    "select": 0, "dims": [0, 1], "remove": 0, "shape": "3",
}  # fmt: skip


def test_a_program_without_arrays_opens_and_is_edited():
    session = own("nothing", 0)
    assert session_view(session.now)["view"]["count"] == 0
    for name, value in EDITS_OF_NOTHING.items():
        session.edit(name, value)
        assert session.now.errors[name]
    session.edit("mesh", "data=4")
    session.edit("add", None)
    view = session_view(session.now)
    assert (view["view"]["count"], view["array_0"]["name"]) == (1, "a0")


WRONG_STATES = {
    "none": None,
    "no version": {"mesh": {}},
    "newer": {"shardviz": 99},
    "no json": "{",
    "mesh is text": {"shardviz": 1, "mesh": "data=2"},
    "no arrays": {"shardviz": 1, "mesh": {"axes": [["x", 2]]}},
    "too many arrays": {"shardviz": 1, "mesh": {"axes": [["x", 2]]}, "arrays": [{}] * 201},
    "array of numbers": {"shardviz": 1, "mesh": {"axes": [["x", 2]]}, "arrays": [{"name": 3}]},
    "array shape": {
        "shardviz": 1, "mesh": {"axes": [["x", 2]]}, "arrays": [{"name": "a", "shape": "-1"}],
    },
    "rules": {
        "shardviz": 1, "mesh": {"axes": [["x", 2]]}, "arrays": [{"name": "a"}], "rules": 5,
    },
    "dialect": {
        "shardviz": 1, "mesh": {"axes": [["x", 2]]}, "arrays": [{"name": "a"}], "dialect": "perl",
    },
}  # fmt: skip


@pytest.mark.parametrize("state", WRONG_STATES.values(), ids=WRONG_STATES.keys())
def test_a_state_that_is_none_is_refused_in_words(state):
    from shardviz.base.errors import ShardvizError

    with pytest.raises(ShardvizError) as caught:
        open_state(state)
    assert "\n" not in str(caught.value)


def test_a_scenario_sets_mesh_rules_arrays_and_target_in_one_step():
    session = session_on(None)
    before = session.now
    session.edit("preset", "scenario:Llama 3 8B, fsdp and tensor, v5p-128")
    now = session.now
    assert not now.errors
    assert now.mesh.shape == {"fsdp": 16, "tensor": 4}
    assert now.target == "tpu:v5p:4x4x4"
    wq = next(one for one in now.program.requests if one.array.name == "w_q")
    assert str(wq.spec) == "P(None, 'fsdp', 'tensor', None)"
    session.undo()
    assert session.now is before


def test_the_picture_of_the_selected_array_can_be_saved():
    made = sv.explore()
    sent = []
    made.send = lambda content, buffers=None: sent.append(content)
    made._receive(made, {"seq": 1, "client": "page", "intents": [{"kind": "picture"}]}, [])
    made.close()
    (file,) = sent
    assert (file["kind"], file["name"], file["media"]) == ("file", "w_in.svg", "image/svg+xml")
    assert file["text"].rstrip().endswith("</svg>")


def test_the_dimension_that_other_rules_would_split():
    rules = Rules.of(("mlp", "model"))
    for shape, names, mend in [
        ((8, 64, 4), "a b mlp", 1),  # the longest that is not split
        ((64, 3), "a mlp", 1),  # the one that does not divide
        ((8,), "mlp", None),
        ((8, 64), None, None),
    ]:
        array = ArraySpec("w", shape, names)
        made = request(array, make_mesh(model=2), rules)
        assert layout_view(made, {}).get("mend") == mend, names
