"""Arrays to plan with: the weights of models that people know, and their activations.

Published shapes; the tests compare the parameter counts with the published ones.

>>> names()[:2], [a.short for a in get("MLP")]
(('MLP', '7B model'), ['bf16[512, 2048]', 'bf16[2048, 512]', 'bf16[64, 512]'])
>>> describe("MLP")
'Two weights and a batch, small enough to see at once.'
"""

from __future__ import annotations

from shardviz.core.layout.array_spec import ArraySpec
from shardviz.gallery.registry import Example, Registry

DEFAULT = "MLP"


def _array(name: str, shape: tuple[int, ...], logical: str, dtype: str = "bfloat16") -> ArraySpec:
    return ArraySpec(name, shape, logical, dtype)  # type: ignore[arg-type]  # text is read


def _mlp() -> tuple[ArraySpec, ...]:
    return (
        _array("w_in", (512, 2048), "embed mlp"),
        _array("w_out", (2048, 512), "mlp embed"),
        _array("x", (64, 512), "batch embed"),
    )


def _decoder(
    *, embed: int, mlp: int, heads: int, kv_heads: int, layers: int, vocab: int
) -> tuple[ArraySpec, ...]:
    """The weights of a decoder with gated MLPs, every layer's stacked along `layers`."""
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
    return _decoder(embed=4096, mlp=11008, heads=32, kv_heads=32, layers=32, vocab=32000)


def _70b() -> tuple[ArraySpec, ...]:
    return _decoder(embed=8192, mlp=28672, heads=64, kv_heads=8, layers=80, vocab=32000)


def _experts() -> tuple[ArraySpec, ...]:
    dense = _decoder(embed=4096, mlp=14336, heads=32, kv_heads=8, layers=32, vocab=32000)
    kept = tuple(a for a in dense if a.name not in ("w_gate", "w_up", "w_down"))
    return (
        *kept,
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


_REGISTRY: Registry[tuple[ArraySpec, ...]] = Registry(
    "set of arrays",
    Example(DEFAULT, "Two weights and a batch, small enough to see at once.", _mlp),
    Example("7B model", "Every weight of a decoder of Llama 2 7B's shape.", _7b),
    Example(
        "70B model", "Every weight of Llama 2 70B's shape: 64 query heads share 8 pairs.", _70b
    ),
    Example("8 × 7B experts", "Every weight of Mixtral 8x7B's shape.", _experts),
    Example("training batch", "What flows through a 7B model: up to four dimensions.", _flow),
    Example("key-value cache", "What a 70B model remembers: five dimensions.", _cache),
)

names, get, describe = _REGISTRY.names, _REGISTRY.get, _REGISTRY.describe
