"""The types that people receive from shardviz, and seldom name.

    from shardviz.types import Verdict

Importing this imports numpy and nothing heavier.
"""

from shardviz.core.errors import ContractError as ContractError
from shardviz.core.errors import ShardvizError as ShardvizError
from shardviz.core.hardware.targets import Target as Target
from shardviz.core.hardware.topology import Topology as Topology
from shardviz.core.layout.array_spec import ArraySpec as ArraySpec
from shardviz.core.layout.collective import Collective as Collective
from shardviz.core.layout.layout import Layout as Layout
from shardviz.core.layout.mesh import MeshSpec as MeshSpec
from shardviz.core.layout.mesh_context import MeshContext as MeshContext
from shardviz.core.layout.partition_spec import Spec as Spec
from shardviz.core.layout.rules.differences import AuditDiff as AuditDiff
from shardviz.core.layout.rules.path_rules import PathResolution as PathResolution
from shardviz.core.layout.rules.remedies import Remedies as Remedies
from shardviz.core.layout.rules.remedies import Remedy as Remedy
from shardviz.core.layout.rules.resolution import Decision as Decision
from shardviz.core.layout.rules.resolution import Resolution as Resolution
from shardviz.core.layout.rules.rules import Dialect as Dialect
from shardviz.core.layout.rules.rules import PathRules as PathRules
from shardviz.core.layout.rules.rules import Rules as Rules
from shardviz.core.layout.rules.verdicts import Verdict as Verdict
from shardviz.core.layout.transfer.process_rows import ProcessRows as ProcessRows
from shardviz.core.layout.transfer.reshard import Reshard as Reshard
from shardviz.core.layout.transfer.restore import Restore as Restore
from shardviz.core.layout.trees.audit import Audit as Audit
from shardviz.core.program.candidates import Candidate as Candidate
from shardviz.core.program.candidates import Changes as Changes
from shardviz.core.program.candidates import Edit as Edit
from shardviz.core.program.candidates import Refusal as Refusal
from shardviz.core.program.constraints import Constraint as Constraint
from shardviz.core.program.contracts import Expectation as Expectation
from shardviz.core.program.effects import Effects as Effects
from shardviz.core.program.explanation import Explanation as Explanation
from shardviz.core.program.lock import Lock as Lock
from shardviz.core.program.movement import Movement as Movement
from shardviz.core.program.plan import Plan as Plan
from shardviz.core.program.program import Program as Program
from shardviz.core.program.report import Report as Report
from shardviz.core.program.roofline import Roofline as Roofline
from shardviz.core.program.search import Search as Search
from shardviz.core.program.stages import Stages as Stages
from shardviz.picture.picture import Picture as Picture

_TYPES = [name for name, kind in vars().items() if isinstance(kind, type)]
__all__ = sorted(_TYPES)  # pyright: ignore[reportUnsupportedDunderAll]
