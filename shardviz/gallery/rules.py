"""Rule tables that people use, from five lines to a configuration file's worth.

>>> names()[1:3], describe("FSDP")[:22]
(('Megatron-style tensor parallel', 'FSDP'), 'Batch and weights over')
>>> print(get("FSDP"))
batch → data
embed → data
vocab → data
"""

from __future__ import annotations

from shardviz.core.layout.rules import Rules
from shardviz.gallery.registry import Example, Registry

DEFAULT = "first look"

# Each line has its part: two decide, one loses its axis, one ends the search, one never fires.
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

# In the manner of MaxText's base configuration: separate names for activations and for weights,
# tuples of axes, and a shorter tuple after each for arrays in which an axis is already used.
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

_REGISTRY: Registry[Rules] = Registry(
    "rule table",
    Example(
        DEFAULT,
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
        "MaxText-like",
        "A long table in the manner of MaxText, for the axes data, fsdp, expert, sequence"
        " and tensor.",
        lambda: Rules.parse(_LONG),
    ),
)

names, get, describe = _REGISTRY.names, _REGISTRY.get, _REGISTRY.describe
