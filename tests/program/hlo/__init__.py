"""Modules for tests: kept ones of two jax versions, and short ones written as text."""

from __future__ import annotations

import gzip
from pathlib import Path

from jaxlib import _hlo

from shardviz.compiled.module import Module

FOLDER = Path(__file__).parent
VERSIONS = ("jax-0.10.2", "jax-0.12.0")
_ADD = """
%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}
"""


def parsed(text: str) -> Module:
    """A module from XLA's text, with a computation `%add` for what names one.

    Lines alone are taken for the entry computation.
    """
    if "{\n" not in text:
        text = f"ENTRY %main {{\n{text}\n}}"
    if not text.startswith("HloModule"):
        text = f"HloModule f\n\n{text}"
    if "%add (" not in text and "=%add" in text:
        head, _, rest = text.partition("\n")
        text = f"{head}\n{_ADD}{rest}"
    return Module(_hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto())


def kept(version: str, name: str) -> Module:
    """A module that is kept here."""
    return Module(gzip.decompress((FOLDER / version / f"{name}.pb.gz").read_bytes()))
