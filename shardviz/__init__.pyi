"""The public names, each with the module that defines it.

`__init__.py` reads this file and imports a name when it is first used; type checkers
read it as it stands. What people receive and seldom name is in `shardviz.types`.
"""

from shardviz.api.changes import changes as changes
from shardviz.api.layouts import array as array
from shardviz.api.layouts import audit as audit
from shardviz.api.layouts import layout as layout
from shardviz.api.layouts import process_rows as process_rows
from shardviz.api.layouts import remedies as remedies
from shardviz.api.layouts import reshard as reshard
from shardviz.api.layouts import resolve as resolve
from shardviz.api.layouts import restore as restore
from shardviz.api.layouts import rules as rules
from shardviz.api.layouts import to_jax as to_jax
from shardviz.api.meshes import compare_meshes as compare_meshes
from shardviz.api.meshes import mesh as mesh
from shardviz.api.meshes import mesh_context as mesh_context
from shardviz.api.meshes import topology as topology
from shardviz.api.movements import movement as movement
from shardviz.api.programs import cached as cached
from shardviz.api.programs import compile as compile
from shardviz.api.programs import effects as effects
from shardviz.api.programs import expect as expect
from shardviz.api.programs import hosts as hosts
from shardviz.api.programs import lock as lock
from shardviz.api.programs import plan as plan
from shardviz.api.programs import program as program
from shardviz.api.programs import run as run
from shardviz.api.programs import stages as stages
from shardviz.api.programs import targets as targets
from shardviz.api.searches import search as search
from shardviz.api.show import explore as explore
from shardviz.api.show import plot as plot
from shardviz.api.show import text as text
from shardviz.api.treescope_leaves import treescope_leaf as treescope_leaf
from shardviz.axis_rules.audit import Audit as Audit
from shardviz.axis_rules.resolution import Resolution as Resolution
from shardviz.axis_rules.rules import Rules as Rules
from shardviz.base.array_spec import ArraySpec as ArraySpec
from shardviz.base.errors import ContractError as ContractError
from shardviz.base.errors import ShardvizError as ShardvizError
from shardviz.base.layout import Layout as Layout
from shardviz.base.mesh import MeshSpec as MeshSpec
from shardviz.base.partition_spec import Spec as Spec
from shardviz.compiled.report import Report as Report
from shardviz.compiled.stages import Stages as Stages
from shardviz.hardware.topology import Topology as Topology
from shardviz.plans.plan import Plan as Plan
from shardviz.programs.program import Program as Program
from shardviz.runs.cache import cache as cache

__version__: str
