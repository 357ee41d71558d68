"""Example meshes, arrays and rule tables, and scenarios that combine them.

The meshes range from one host to a million devices. The arrays are the weights of
well-known models, with published shapes (the tests compare the parameter counts). The
rule tables range from five lines to the length of a configuration file.

>>> meshes.names()[0], meshes.get("64 devices on 8 hosts: data=8, model=8").size
('8 devices: data=4, model=2', 64)
>>> arrays.describe("MLP"), [a.short for a in arrays.get("MLP")]
('Two weights and a batch, small enough to see at once.',
 ['bf16[512, 2048]', 'bf16[2048, 512]', 'bf16[64, 512]'])
>>> print(rules.get("FSDP"))
batch → data
embed → data
vocab → data
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from shardviz.axis_rules.rules import Rules
from shardviz.base.array_spec import ArraySpec
from shardviz.base.errors import ShardvizError
from shardviz.base.format import shown, suggestion
from shardviz.base.mesh import MeshSpec, make_mesh

T = TypeVar("T")


class Example(NamedTuple, Generic[T]):
    """An example: its name in the menu, one sentence, and a function that creates it.

    Attributes:
        functions: for a program, names of functions in `gallery.functions`: first the
            helpers, in the order to paste them, then the main function.
    """

    name: str
    sentence: str
    make: Callable[[], T]
    functions: tuple[str, ...] = ()


class Registry(Generic[T]):
    """Examples of one kind, by name. The first example is the default.

    >>> from shardviz.gallery.layouts import Example, Registry
    >>> numbers = Registry("number", Example("one", "The first.", lambda: 1))
    >>> numbers.names(), numbers.get("one"), numbers.get(), numbers.describe("one")
    (('one',), 1, 1, 'The first.')
    """

    def __init__(self, kind: str, *examples: Example[T]):
        self._kind = kind
        self._examples = {example.name: example for example in examples}

    @property
    def default(self) -> str:
        """The name of the first example."""
        return self.names()[0]

    def names(self) -> tuple[str, ...]:
        """Every name, in menu order."""
        return tuple(self._examples)

    def get(self, name: str | None = None) -> T:
        """Returns an example by name; without a name, the first example.

        Raises:
            ShardvizError: if there is no such example; suggests the nearest name.
        """
        if name is None:
            name = self.default
        return self._find(name).make()

    def describe(self, name: str) -> str:
        """Returns one sentence about an example."""
        return self._find(name).sentence

    def sources(self, name: str) -> tuple[str, ...]:
        """Returns the source of every function of an example, main function last.

        The source runs if it is pasted below `programs.IMPORTS`.
        """
        from shardviz.gallery import functions

        names = self._find(name).functions
        return tuple(
            inspect.getsource(getattr(functions, function_name))
            for function_name in names
        )

    def _find(self, name: str) -> Example[T]:
        if isinstance(name, str) and name in self._examples:
            return self._examples[name]
        raise ShardvizError(
            f"The gallery has no {self._kind} called {shown(name)}."
            f"{suggestion(name, self._examples)}"
        )


def _mesh(name: str, sentence: str, **more: Any) -> Example[MeshSpec]:
    """Returns a mesh example; its axes follow the colon in its name."""
    axes = name.partition(": ")[2] or "data=4, model=2"
    return Example(name, sentence, lambda: make_mesh(axes, **more))


meshes: Registry[MeshSpec] = Registry(
    "mesh",
    _mesh(
        "8 devices: data=4, model=2",
        "Two hosts of four devices: the batch over four, the weights over two.",
        processes=2,
    ),
    _mesh(
        "8 devices: data=8", "Every device takes its share of the batch.", processes=2
    ),
    _mesh(
        "8 devices: data=2, fsdp=2, model=2", "A cube: three axes of two.", processes=2
    ),
    _mesh(
        "8 devices along a ring",
        "Ids count along two rows, the mesh goes round them: a device's id is not its position.",
        # A ring of eight chips, with one row per host.
        device_ids=(0, 1, 2, 3, 7, 6, 5, 4),
        processes=(0, 0, 0, 0, 1, 1, 1, 1),
    ),
    _mesh(
        "16 devices: model=16", "One axis for tensor parallelism alone.", processes=4
    ),
    _mesh(
        "64 devices on 8 hosts: data=8, model=8",
        "Eight hosts of eight devices; the model axis stays inside a host.",
        processes=8,
    ),
    _mesh(
        "64 devices, 5-D: data=2, fsdp=4, expert=2, sequence=2, tensor=2",
        "Five axes, as the configurations of large training codes have them.",
        processes=8,
    ),
    _mesh(
        "4,096 devices on 512 hosts: data=256, model=16",
        "A large training run.",
        processes=512,
    ),
    _mesh(
        "1,048,576 devices: data=1024, model=1024",
        "More than anybody has; a layout is arithmetic, so it is still there at once.",
    ),
)


def _array(
    name: str, shape: tuple[int, ...], logical: str, dtype: str = "bfloat16"
) -> ArraySpec:
    return ArraySpec(name, shape, logical, dtype)  # type: ignore[arg-type]  # parses text


def _mlp() -> tuple[ArraySpec, ...]:
    return (
        _array("w_in", (512, 2048), "embed mlp"),
        _array("w_out", (2048, 512), "mlp embed"),
        _array("x", (64, 512), "batch embed"),
    )


def _decoder(
    *, embed: int, mlp: int, heads: int, kv_heads: int, layers: int, vocab: int
) -> tuple[ArraySpec, ...]:
    """Returns a decoder's weights; those of its layers are stacked along `layers`."""
    dim = embed // heads
    return (
        _array("embedding", (vocab, embed), "vocab embed"),
        _array("norm_1", (layers, embed), "layers norm"),
        _array("w_q", (layers, embed, heads, dim), "layers embed heads head_dim"),
        _array("w_k", (layers, embed, kv_heads, dim), "layers embed kv_heads head_dim"),
        _array("w_v", (layers, embed, kv_heads, dim), "layers embed kv_heads head_dim"),
        _array("w_o", (layers, heads, dim, embed), "layers heads head_dim embed"),
        _array("norm_2", (layers, embed), "layers norm"),
        _array("w_gate", (layers, embed, mlp), "layers embed mlp"),
        _array("w_up", (layers, embed, mlp), "layers embed mlp"),
        _array("w_down", (layers, mlp, embed), "layers mlp embed"),
        _array("norm_out", (embed,), "norm"),
        _array("logits", (embed, vocab), "embed vocab"),
    )


def _7b() -> tuple[ArraySpec, ...]:
    return _decoder(
        embed=4096, mlp=11008, heads=32, kv_heads=32, layers=32, vocab=32000
    )


def _8b() -> tuple[ArraySpec, ...]:
    return _decoder(
        embed=4096, mlp=14336, heads=32, kv_heads=8, layers=32, vocab=128256
    )


def _70b() -> tuple[ArraySpec, ...]:
    return _decoder(embed=8192, mlp=28672, heads=64, kv_heads=8, layers=80, vocab=32000)


def _experts() -> tuple[ArraySpec, ...]:
    dense = _decoder(
        embed=4096, mlp=14336, heads=32, kv_heads=8, layers=32, vocab=32000
    )
    shared = tuple(a for a in dense if a.name not in ("w_gate", "w_up", "w_down"))
    return (
        *shared,
        _array("router", (32, 4096, 8), "layers embed _"),
        _array("w_gate", (32, 8, 4096, 14336), "layers expert embed mlp"),
        _array("w_up", (32, 8, 4096, 14336), "layers expert embed mlp"),
        _array("w_down", (32, 8, 14336, 4096), "layers expert mlp embed"),
    )


def _flow() -> tuple[ArraySpec, ...]:
    return (
        _array("tokens", (512, 4096), "batch sequence", "int32"),
        _array("hidden", (512, 4096, 4096), "batch sequence embed"),
        _array("queries", (512, 4096, 32, 128), "batch sequence heads head_dim"),
        _array("logits", (512, 4096, 32000), "batch sequence vocab"),
    )


def _cache() -> tuple[ArraySpec, ...]:
    names = "layers batch sequence kv_heads head_dim"
    return (
        _array("keys", (80, 64, 8192, 8, 128), names),
        _array("values", (80, 64, 8192, 8, 128), names),
    )


arrays: Registry[tuple[ArraySpec, ...]] = Registry(
    "set of arrays",
    Example("MLP", "Two weights and a batch, small enough to see at once.", _mlp),
    Example("7B model", "Every weight of a decoder of Llama 2 7B's shape.", _7b),
    Example(
        "Llama 3 8B",
        "Every weight of Llama 3 8B's shape: 32 query heads share 8 pairs.",
        _8b,
    ),
    Example(
        "70B model",
        "Every weight of Llama 2 70B's shape: 64 query heads share 8 pairs.",
        _70b,
    ),
    Example("8 × 7B experts", "Every weight of Mixtral 8x7B's shape.", _experts),
    Example(
        "training batch", "What flows through a 7B model: up to four dimensions.", _flow
    ),
    Example("key-value cache", "What a 70B model remembers: five dimensions.", _cache),
)


# Each line shows a different case: two rules decide, one loses its axis, one ends the
# search, and one never applies.
_FIRST_LOOK = """
batch -> data
mlp -> model
embed -> model
embed -> None
embed -> data
"""

_TENSOR = """
batch -> data
vocab -> model
heads -> model
kv_heads -> model
expert -> model
mlp -> model
sequence -> None
head_dim -> None
embed -> None
"""

_FSDP = """
batch -> data
embed -> data
vocab -> data
"""

_FSDP_TENSOR = """
batch -> data
vocab -> model
heads -> model
kv_heads -> model
expert -> model
mlp -> model
embed -> data
sequence -> None
"""

_FSDP_AXIS = """
batch -> (data, fsdp)
vocab -> tensor
heads -> tensor
kv_heads -> tensor
mlp -> tensor
expert -> expert
embed -> fsdp
sequence -> None
layers -> None
head_dim -> None
norm -> None
"""

# Like MaxText's base configuration, this table has separate names for activations and
# weights. A rule with a tuple of axes is followed by rules with shorter tuples, for
# arrays that already use one of the axes.
_LONG = """
# activations
activation_batch -> (data, fsdp, expert)
activation_batch -> (data, fsdp)
activation_batch_no_exp -> (data, fsdp)
activation_embed_and_logits_batch -> (data, fsdp, expert)
activation_length -> sequence
activation_norm_length -> (sequence, tensor)
activation_norm_length -> sequence
activation_q_length -> sequence
activation_kv_length -> None
activation_heads -> tensor
activation_kv_heads -> tensor
activation_head_dim -> None
activation_embed -> tensor
activation_embed -> None
activation_mlp -> tensor
activation_vocab -> (tensor, sequence)
activation_vocab -> tensor
activation_vocab -> sequence
activation_exp -> expert
activation_capacity -> None
activation_stage -> None
# weights
vocab -> tensor
embed_vocab -> (fsdp, sequence, expert)
embed_vocab -> (fsdp, sequence)
embed -> (fsdp, sequence, expert)
embed -> (fsdp, sequence)
embed -> fsdp
embed_no_exp -> (fsdp, sequence)
mlp -> tensor
mlp_no_fsdp -> (tensor, sequence)
heads -> tensor
q_heads -> tensor
kv_heads -> tensor
head_dim -> None
kv_head_dim -> None
qkv -> None
q_lora -> (fsdp, sequence)
q_lora_up_proj -> None
kv_lora -> (fsdp, sequence)
kv_lora_up_proj -> None
exp -> expert
exp_mlp -> tensor
norm -> tensor
router -> None
# stacked layers, caches and the rest
layers -> None
circular_repeats -> None
cache_batch -> (data, fsdp)
cache_length -> sequence
cache_kv_heads -> tensor
cache_kv -> None
conv_in -> None
conv_out -> tensor
position -> None
"""

rules: Registry[Rules] = Registry(
    "rule table",
    Example(
        "first look",
        "Five rules: some decide, one loses its axis, one ends the search, one never fires.",
        lambda: Rules.parse(_FIRST_LOOK),
    ),
    Example(
        "Megatron-style tensor parallel",
        "The batch over data; heads, hidden units, experts and vocabulary over model.",
        lambda: Rules.parse(_TENSOR),
    ),
    Example(
        "FSDP",
        "Batch and weights over the same axis: weights are gathered where they are needed.",
        lambda: Rules.parse(_FSDP),
    ),
    Example(
        "FSDP + tensor parallel",
        "Weights split twice: hidden dimensions over model, embed over data.",
        lambda: Rules.parse(_FSDP_TENSOR),
    ),
    Example(
        "fsdp and tensor axes",
        "An axis for each: embed over fsdp, heads and hidden units over tensor.",
        lambda: Rules.parse(_FSDP_AXIS),
    ),
    Example(
        "MaxText-like",
        "A long table in the manner of MaxText, for the axes data, fsdp, expert, sequence"
        " and tensor.",
        lambda: Rules.parse(_LONG),
    ),
)


class Scenario(NamedTuple):
    """A complete sharding question: arrays, rules, a mesh and the hardware.

    Attributes:
        mesh: a mesh with as many devices as the hardware.
        rules: the rule table.
        arrays: the arrays to lay out.
        target: the hardware, as a user types it.
    """

    mesh: MeshSpec
    rules: Rules
    arrays: tuple[ArraySpec, ...]
    target: str


def _scenario(
    name: str, sentence: str, arrays_name: str, rules_name: str, mesh: str, target: str
) -> Example[Scenario]:
    def make() -> Scenario:
        return Scenario(
            make_mesh(mesh), rules.get(rules_name), arrays.get(arrays_name), target
        )

    return Example(name, sentence, make)


# Cloud names of TPU v4 and v5p count TensorCores, and each chip has two: a v5p-128 has
# 64 chips (https://cloud.google.com/tpu/docs/v5p).
scenarios: Registry[Scenario] = Registry(
    "scenario",
    _scenario(
        "Llama 3 8B, fsdp and tensor, v5p-128",
        "Training on 64 chips: weights over fsdp, heads and hidden units over tensor.",
        "Llama 3 8B",
        "fsdp and tensor axes",
        "fsdp=16, tensor=4",
        "tpu:v5p:4x4x4",
    ),
    _scenario(
        "Llama 2 70B, fsdp and tensor, v5p-512",
        "Training on 256 chips: each weight is split over both axes.",
        "70B model",
        "fsdp and tensor axes",
        "data=2, fsdp=16, tensor=8",
        "tpu:v5p:4x8x8",
    ),
    _scenario(
        "Mixtral 8x7B, experts, 8 nodes of 8 H100",
        "Experts over the nodes' own links, weights over the network.",
        "8 × 7B experts",
        "fsdp and tensor axes",
        "fsdp=4, expert=8, tensor=2",
        "gpu:h100:8x8",
    ),
    _scenario(
        "Llama 2 70B, answers, v5e-16",
        "The cache of 64 conversations: 8 heads do not divide by 16 chips.",
        "key-value cache",
        "fsdp and tensor axes",
        "tensor=16",
        "tpu:v5e:4x4",
    ),
)
