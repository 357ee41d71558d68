"""The types of the values that shardviz returns, for annotations.

    from shardviz.types import Verdict

Importing this module imports nothing heavier than numpy.
"""

from shardviz.advise.candidates import Candidate as Candidate
from shardviz.advise.candidates import Changes as Changes
from shardviz.advise.candidates import Refusal as Refusal
from shardviz.advise.contracts import Expectation as Expectation
from shardviz.advise.edits import Edit as Edit
from shardviz.advise.lock import Lock as Lock
from shardviz.advise.search import Search as Search
from shardviz.axis_rules.audit import Audit as Audit
from shardviz.axis_rules.dialects import Dialect as Dialect
from shardviz.axis_rules.differences import AuditDiff as AuditDiff
from shardviz.axis_rules.path_rules import PathResolution as PathResolution
from shardviz.axis_rules.remedies import Remedies as Remedies
from shardviz.axis_rules.remedies import Remedy as Remedy
from shardviz.axis_rules.resolution import Decision as Decision
from shardviz.axis_rules.resolution import Resolution as Resolution
from shardviz.axis_rules.rules import PathRules as PathRules
from shardviz.axis_rules.rules import Rules as Rules
from shardviz.axis_rules.verdicts import Verdict as Verdict
from shardviz.base.array_spec import ArraySpec as ArraySpec
from shardviz.base.collective import Collective as Collective
from shardviz.base.errors import ContractError as ContractError
from shardviz.base.errors import ShardvizError as ShardvizError
from shardviz.base.layout import Layout as Layout
from shardviz.base.mesh import MeshSpec as MeshSpec
from shardviz.base.mesh_context import MeshContext as MeshContext
from shardviz.base.partition_spec import Spec as Spec
from shardviz.compiled.measured import Measured as Measured
from shardviz.compiled.report import Report as Report
from shardviz.compiled.roofline import Roofline as Roofline
from shardviz.compiled.stages import Stages as Stages
from shardviz.draw.picture import Picture as Picture
from shardviz.hardware.targets import Target as Target
from shardviz.hardware.topology import Topology as Topology
from shardviz.move.movement import Movement as Movement
from shardviz.move.process_rows import ProcessRows as ProcessRows
from shardviz.move.reshard import Reshard as Reshard
from shardviz.move.restore import Restore as Restore
from shardviz.plans.explanation import Explanation as Explanation
from shardviz.plans.plan import Plan as Plan
from shardviz.programs.constraints import Constraint as Constraint
from shardviz.programs.effects import Effects as Effects
from shardviz.programs.program import Program as Program

_TYPES = [name for name, kind in vars().items() if isinstance(kind, type)]
__all__ = sorted(_TYPES)  # pyright: ignore[reportUnsupportedDunderAll]
