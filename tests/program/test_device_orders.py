import pytest

from shardviz.core.program.device_orders import device_orders, transposed

REFUSED = (
    "Received incompatible devices for jitted computation. Got argument x of f with shape"
    " float32[64,64] and with device ids [0, 1, 2, 3, 4, 5, 6, 7] on platform CPU and"
    " sharding_constraint inside jit with device ids [0, 4, 1, 5, 2, 6, 3, 7] on platform CPU at"
    " /home/me/model.py:12:6 (f)"
)


def test_a_transposed_order_is_named_with_its_grid_and_line():
    words = device_orders(REFUSED)
    assert words is not None
    assert "argument x of f: 0, 1, 2, 3, 4, 5, 6, 7" in words
    assert "(model.py:12): 0, 4, 1, 5, 2, 6, 3, 7, which is the first order as 2 × 4" in words
    assert "make both meshes from one array of devices" in words


@pytest.mark.parametrize(
    "message",
    [
        "",
        "Some other trouble with device ids [0, 1] and with device ids [1, 0]",
        # Other devices, not another order.
        REFUSED.replace("[0, 4, 1, 5, 2, 6, 3, 7]", "[8, 9, 10, 11, 12, 13, 14, 15]"),
        REFUSED.replace("[0, 4, 1, 5, 2, 6, 3, 7]", "[0, 1]"),
    ],
)
def test_other_messages_stay_as_jax_wrote_them(message):
    assert device_orders(message) is None


@pytest.mark.parametrize(
    ("order", "other", "words"),
    [
        ([0, 1, 2, 3], [3, 2, 1, 0], ", which is the first order reversed"),
        ([0, 1, 2, 3], [0, 1, 3, 2], ""),
        ([5, 4, 3, 2, 1, 0], [5, 2, 4, 1, 3, 0], ", which is the first order as 2 × 3, transposed"),
        ([5, 4, 3, 2, 1, 0], [5, 3, 1, 4, 2, 0], ", which is the first order as 3 × 2, transposed"),
    ],
)
def test_transposes_and_reversals(order, other, words):
    assert transposed(order, other) == words


def test_a_long_list_of_devices_is_cut_and_counted():
    ids = list(range(64))
    turned = [ids[i + 32 * j] for i in range(32) for j in range(2)]
    words = device_orders(
        f"incompatible devices. Got argument x of f with shape f32[4] and with device ids {ids} on"
        f" platform CPU and jit's context mesh with device ids {turned} on platform CPU"
    )
    assert words is not None
    assert "… 48 more" in words
    assert "jit's context mesh: 0, 32, 1, 33" in words
