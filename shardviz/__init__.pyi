"""The public names, each with the module that defines it.

`__init__.py` reads this file and imports each name when it is first used; type checkers
read it directly. Types that users receive but rarely name are in `shardviz.types`.
"""

from shardviz.advise.public import changes as changes
from shardviz.advise.public import expect as expect
from shardviz.advise.public import lock as lock
from shardviz.advise.public import search as search
from shardviz.axis_rules.audit import Audit as Audit
from shardviz.axis_rules.public import audit as audit
from shardviz.axis_rules.public import remedies as remedies
from shardviz.axis_rules.public import resolve as resolve
from shardviz.axis_rules.public import rules as rules
from shardviz.axis_rules.resolution import Resolution as Resolution
from shardviz.axis_rules.rules import Rules as Rules
from shardviz.base.array_spec import ArraySpec as ArraySpec
from shardviz.base.errors import ContractError as ContractError
from shardviz.base.errors import ShardvizError as ShardvizError
from shardviz.base.layout import Layout as Layout
from shardviz.base.mesh import MeshSpec as MeshSpec
from shardviz.base.partition_spec import Spec as Spec
from shardviz.base.public.layouts import array as array
from shardviz.base.public.layouts import layout as layout
from shardviz.base.public.layouts import mesh as mesh
from shardviz.base.public.layouts import to_jax as to_jax
from shardviz.compiled.public import compile as compile
from shardviz.compiled.public import report as report
from shardviz.compiled.public import stages as stages
from shardviz.compiled.report import Report as Report
from shardviz.compiled.stages import Stages as Stages
from shardviz.draw.public.show import plot as plot
from shardviz.draw.public.show import text as text
from shardviz.draw.public.treescope_leaves import treescope_leaf as treescope_leaf
from shardviz.explorer.public import explore as explore
from shardviz.hardware.public import topology as topology
from shardviz.hardware.topology import Topology as Topology
from shardviz.move.public.arrays import process_rows as process_rows
from shardviz.move.public.arrays import reshard as reshard
from shardviz.move.public.arrays import restore as restore
from shardviz.move.public.collectives import movement as movement
from shardviz.plans.plan import Plan as Plan
from shardviz.plans.public import plan as plan
from shardviz.programs.program import Program as Program
from shardviz.programs.public.programs import effects as effects
from shardviz.programs.public.programs import mesh_context as mesh_context
from shardviz.programs.public.programs import program as program
from shardviz.runs.cache import cache as cache
from shardviz.runs.public import compare_meshes as compare_meshes
from shardviz.runs.public import hosts as hosts
from shardviz.runs.public import run as run
from shardviz.runs.public import targets as targets
from shardviz.runs.public import watch as watch

__version__: str
