from shardviz.core.program.cache import ExecutableCache
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
    assert "w_in" in third["why"]
    assert "w_out" in third["why"]
    assert "mesh" not in third["why"]
    assert "compile" in first["jax"]
