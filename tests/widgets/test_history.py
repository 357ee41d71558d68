from shardviz.core.layout.mesh import make_mesh
from shardviz.core.program.cache import ExecutableCache
from shardviz.core.program.program import differences
from shardviz.gallery import programs
from shardviz.widgets.explorer import Explorer
from shardviz.widgets.session import Session


def test_a_second_run_is_a_hit_and_an_edited_one_says_what_differs(eight_devices):
    made = Explorer(Session(programs.get(), programs.DEFAULT), ExecutableCache())
    made.compile()
    made.wait(120)
    made.run()
    made.wait(120)
    made.session.edit("shape", "512, 4096", 0)
    made.session.edit("shape", "4096, 512", 1)
    made.compile()
    made.wait(120)
    third, second, first = made.report_data["cache"]["history"]
    assert (first["found"], first["why"]) == ("miss", "Nothing was compiled before it.")
    assert second["found"] == "hit"
    assert third["found"] == "miss"
    assert "w_in: shape [512, 2048] became [512, 4096]" in third["why"]
    assert "compile" in first["jax"]


def test_every_kind_of_difference_is_named():
    old = programs.get()
    w_in, w_out, x = old.arrays
    cases = {
        "mesh: data=4, model=2 became data=2, model=4": {"mesh": make_mesh(data=2, model=4)},
        "mesh: other devices, hosts or axis types": {"mesh": make_mesh(data=4, model=2)},
        "x: dtype float32 became bfloat16": {"arrays": (w_in, w_out, x.replace(dtype="bfloat16"))},
        "x: sharding P('data', 'model') became P()": {"rules": None},
        "options: {} became {'donate': (0,)}": {"options": {"donate": (0,)}},
        "function: MLP became other": {"fn": lambda *a: a, "name": "other"},
        "y: is new": {"arrays": (w_in, w_out, x.replace(name="y"))},
        "x: is gone": {"arrays": (w_in, w_out, x.replace(name="y"))},
        "the specs of the outputs": {"out_specs": ()},
    }
    for words, change in cases.items():
        found = differences(old, old.replace(**change))
        assert any(f.startswith(words.split(" became P()")[0]) for f in found), (words, found)
