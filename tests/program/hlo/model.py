"""The programs whose compiled text is kept here, on a mesh of data=4, model=2; see `make.py`."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

BF16 = jnp.bfloat16


class Programs:
    """Each method gives a function and its arguments."""

    def __init__(self, mesh):
        self.mesh = mesh
        self.s = lambda *a: NamedSharding(mesh, P(*a))

    def a(self, shape, *spec, dtype=jnp.float32):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=self.s(*spec))

    # A stack of layers under fsdp: the gathers of a layer's weights are in a loop of 6.
    def layers(self):
        def body(x, ws):
            w, v = ws
            return x + jnp.tanh(x @ w) @ v, ()

        def loss(params, x):
            out, _ = lax.scan(body, x, params)
            return jnp.mean(out * out)

        params = (
            self.a((6, 256, 1024), None, "data", "model"),
            self.a((6, 1024, 256), None, "model", "data"),
        )
        return jax.grad(loss), (params, self.a((64, 256), "data"))

    # A weight that every turn of the loop needs whole: the gather does not depend on the turn.
    def invariant(self):
        def fn(x, w):
            return lax.fori_loop(0, 10, lambda i, y: jnp.tanh(y @ w), x)

        return fn, (self.a((64, 512), "data"), self.a((512, 512), "data"))

    # A loop of 4 in a loop of 3.
    def nested(self):
        def inner(i, x):
            return (
                jax.shard_map(
                    lambda y: lax.psum(y, "model") * 0.5,
                    mesh=self.mesh,
                    in_specs=P("data", "model"),
                    out_specs=P("data", None),
                    check_vma=False,
                )(x)[:, :64].repeat(2, axis=1)
                + i
            )

        def fn(x):
            return lax.fori_loop(0, 3, lambda j, y: lax.fori_loop(0, 4, inner, y) * j, x)

        return fn, (self.a((64, 128), "data", "model"),)

    # Nobody knows how often.
    def unknown(self):
        def fn(x, w):
            return lax.while_loop(lambda y: jnp.sum(y) < 1e3, lambda y: y + jnp.tanh(y @ w), x)

        return fn, (self.a((64, 512), "data", "model"), self.a((512, 512), "model", None))

    # Sums over data for many small parameters: compilers combine them.
    def sums(self):
        def loss(params, x):
            for w, b in params:
                x = jnp.tanh(x @ w + b)
            return jnp.mean(x * x)

        params = [(self.a((128, 128)), self.a((128,))) for _ in range(4)]
        return jax.grad(loss), (params, self.a((64, 128), "data"))

    # Tensor and fully sharded data parallel at once: gathers, sums and scatters.
    def fsdp(self):
        def loss(params, x):
            w, v = params
            h = jnp.tanh(x @ w)
            return jnp.mean((h @ v) ** 2)

        params = (
            self.a((512, 2048), "data", "model", dtype=BF16),
            self.a((2048, 512), "model", "data", dtype=BF16),
        )
        args = (params, self.a((1024, 512), "data", dtype=BF16))
        return jax.grad(loss), args

    # Each device hands its part to its neighbour while it works on the last one.
    def ring(self):
        def part(x, w):
            n = 4

            def turn(i, state):
                total, x = state
                nxt = lax.ppermute(x, "data", [(k, (k + 1) % n) for k in range(n)])
                return total + jnp.tanh(x @ w), nxt

            return lax.fori_loop(0, n, turn, (jnp.zeros_like(x), x))[0]

        fn = jax.shard_map(
            part, mesh=self.mesh, in_specs=(P("data"), P()), out_specs=P("data"), check_vma=False
        )
        return fn, (self.a((2048, 512), "data", dtype=BF16), self.a((512, 512), dtype=BF16))

    # All kinds at once, by hand.
    def kinds(self):
        def part(x):
            s = lax.psum(x, ("data", "model"))
            g = lax.all_gather(x, "data")
            r = lax.psum_scatter(x, "data", scatter_dimension=0, tiled=True)
            t = lax.all_to_all(x, "model", 0, 0, tiled=True)
            p = lax.ppermute(x, "data", [(0, 1), (1, 2), (2, 3), (3, 0)])
            return s + g.sum(0) + t + p + jnp.tile(r, (4, 1))

        fn = jax.shard_map(
            part,
            mesh=self.mesh,
            in_specs=P("data", "model"),
            out_specs=P("data", "model"),
            check_vma=False,
        )
        return fn, (self.a((256, 512), "data", "model"),)

    # jax#21562: from one tiling to another, and the partitioner knows no way in small steps.
    def remade(self):
        def fn(a, b, c):
            d = a + b
            d = lax.with_sharding_constraint(d, self.s(None, ("data", "model"), None))
            return c + d

        first, second = ("model", None, "data"), (None, ("data", "model"), None)
        shape = (16, 16, 16)
        return fn, (self.a(shape, *first), self.a(shape, *first), self.a(shape, *second))

    # The same in a loop, for an activation.
    def remade_loop(self):
        def fn(x, w):
            def turn(i, x):
                y = lax.with_sharding_constraint(jnp.tanh(x @ w), self.s("data", None))
                return lax.with_sharding_constraint(jnp.sin(y), self.s(None, "model"))

            return lax.fori_loop(0, 5, turn, x)

        return fn, (self.a((64, 128), None, "model"), self.a((128, 128)))

    # Somebody asks for the whole array, and then for a part of it: that is no rematerialisation.
    def asked_whole(self):
        def fn(x):
            y = lax.with_sharding_constraint(jnp.sin(x), self.s())
            return lax.with_sharding_constraint(jnp.cos(y), self.s(None, "data"))

        return fn, (self.a((64, 128), "data"),)

    # Written by hand: a gather, and a cut by the number of the device.
    def by_hand(self):
        def part(x):
            whole = lax.all_gather(x, "data", tiled=True)
            return lax.dynamic_slice(whole, (0, lax.axis_index("data") * 32), (64, 32))

        fn = jax.shard_map(
            part, mesh=self.mesh, in_specs=P("data"), out_specs=P(None, "data"), check_vma=False
        )
        return fn, (self.a((64, 128), "data"),)

    # A reshape that merges two split dimensions.
    def reshape(self):
        def fn(x):
            y = lax.with_sharding_constraint(x * 2, self.s("data", "model", None))
            z = y.reshape(8 * 6, 64)
            return lax.with_sharding_constraint(z, self.s("model", "data")) + 1

        return fn, (self.a((8, 6, 64), "data", "model", None),)

    # The gradient of an embedding.
    def embed(self):
        def loss(table, ids, w):
            x = table[ids]
            x = lax.with_sharding_constraint(x, self.s("data", None, "model"))
            return jnp.mean((x @ w) ** 2)

        return jax.grad(loss), (
            self.a((1024, 256), "model", "data"),
            jax.ShapeDtypeStruct((16, 32), jnp.int32, sharding=self.s("data")),
            self.a((256, 256), "data", "model"),
        )

    # A broadcast and a ragged exchange.
    def bcast(self):
        def part(x):
            return lax.pbroadcast(x, ("data",), 0)

        fn = jax.shard_map(
            part,
            mesh=self.mesh,
            in_specs=P("data", "model"),
            out_specs=P("data", "model"),
            check_vma=False,
        )
        return fn, (self.a((64, 128), "data", "model"),)

    def ragged(self):
        def part(x, out, a, b, c, d):
            return lax.ragged_all_to_all(x, out, a[0], b[0], c[0], d[0], axis_name="data")

        fn = jax.shard_map(
            part, mesh=self.mesh, in_specs=(P("data"),) * 6, out_specs=P("data"), check_vma=False
        )
        counts = [self.a((4, 4), "data", dtype=jnp.int32) for _ in range(4)]
        return fn, (self.a((64, 128), "data"), self.a((64, 128), "data"), *counts)

    # Gradients of four microbatches, which the program adds up.
    def accumulate(self):
        def loss(w, x):
            return jnp.mean(jnp.tanh(x @ w["a"]) @ w["b"])

        def step(w, xs):
            gradients = [jax.grad(loss)(w, x) for x in xs]
            return jax.tree.map(lambda *g: sum(g[1:], g[0]), *gradients)

        w = {"a": self.a((256, 512)), "b": self.a((512, 128))}
        return step, (w, self.a((4, 32, 256), None, "data"))

    # Small sums in a loop, over both axes.
    def packed(self):
        def layer(x, w):
            h = x * w["scale"] + w["bias"]
            return jnp.tanh((h - jnp.mean(h, axis=1, keepdims=True)) @ w["kernel"]), ()

        def loss(w, x):
            return jnp.sum(lax.scan(layer, x, w)[0] ** 2)

        w = {"scale": self.a((3, 128)), "bias": self.a((3, 128)), "kernel": self.a((3, 128, 128))}
        return jax.grad(loss), (w, self.a((4, 64, 128), "data", "model"))
