"""Session: the Document of one Explorer, and the edits that can be undone.

Every edit goes through `Session.edit`. A session uses no widgets, and edits never call
jax.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardviz.axis_rules.audit import Audit
from shardviz.axis_rules.panel.model_view import audit_of
from shardviz.axis_rules.rules import Rules
from shardviz.base.array_spec import ArraySpec
from shardviz.base.mesh import MeshSpec
from shardviz.explorer.document import Document
from shardviz.explorer.edits import apply
from shardviz.programs.program import Program

MOST_UNDONE = 2_000


class Session:
    """The state of one Explorer, with undo and redo.

    Attributes:
        now: the current Document.
    """

    def __init__(self, program: Program, entry: str = "", **parts: Any):
        self.now = Document.of(program, entry, **parts)
        self._listeners: list[Callable[[], None]] = []
        self._past: list[Document] = []
        self._future: list[Document] = []
        # The `burst` of the last edit, which groups edits that are undone together.
        self._burst = ""
        self._last_revision = 0
        self._audit: tuple[Document, Audit] | None = None

    @property
    def program(self) -> Program:
        """The last valid Program."""
        return self.now.program

    @property
    def mesh(self) -> MeshSpec:
        """The last valid mesh."""
        return self.now.mesh

    @property
    def arrays(self) -> tuple[ArraySpec, ...]:
        """The last valid arrays."""
        return self.now.arrays

    @property
    def rules(self) -> Rules:
        """The last valid rules."""
        return self.now.rules

    @property
    def audit(self) -> Audit:
        """The audit of the model, or of the arrays if there is no model."""
        return self.audit_of(self.now)

    def audit_of(self, now: Document) -> Audit:
        """Audits a Document of this session; caches the last audit."""
        if self._audit is not None:
            then, audit = self._audit
            if then.program is now.program and then.model is now.model:
                return audit
        audit = audit_of(now.program, now.model)
        self._audit = (now, audit)
        return audit

    def listen(self, listener: Callable[[], None]) -> None:
        """Calls `listener` after every edit."""
        self._listeners.append(listener)

    def edit(
        self, name: str, value: Any, array: int | None = None, burst: str = ""
    ) -> None:
        """Makes one edit, as a field or button sends it.

        An invalid edit stores an error message, and keeps the last valid program.

        Args:
            name: the edit, one of `EDITS`.
            value: the text or choice.
            array: the index of the array to edit; None for the selected array.
            burst: an id shared by consecutive edits that are undone together, such as
                characters typed into one field; `""` for a separate edit.
        """
        before = self.now
        after = apply(before, name, value, array)
        if after.program is not before.program:
            self._last_revision += 1
            after = after.replace(revision=self._last_revision)
        if not after.same_as(before):
            self.now = after
            self._remember(name, before, burst)
        self._tell()

    def _remember(self, name: str, before: Document, burst: str) -> None:
        self._future.clear()
        # `tidy` only reformats text that the user edited, so undo reverts both.
        goes_on = name == "tidy" or (burst != "" and burst == self._burst)
        if not (self._past and goes_on):
            self._past.append(before)
            del self._past[:-MOST_UNDONE]
            self._burst = burst

    @property
    def undoable(self) -> bool:
        """Whether there is an edit to undo."""
        return bool(self._past)

    @property
    def redoable(self) -> bool:
        """Whether there is an edit to redo."""
        return bool(self._future)

    def undo(self) -> bool:
        """Undoes the last edit; returns False if there is none."""
        return self._step(self._past, self._future)

    def redo(self) -> bool:
        """Redoes the last undone edit; returns False if there is none."""
        return self._step(self._future, self._past)

    def _step(self, source: list[Document], destination: list[Document]) -> bool:
        # The next edit must not join a burst from before the undo.
        self._burst = ""
        if not source:
            return False
        destination.append(self.now)
        self.now = source.pop()
        self._tell()
        return True

    def forget(self) -> None:
        """Clears the undo history and errors, so the current state can't be undone."""
        self._past.clear()
        self._future.clear()
        self.now = self.now.replace(errors={}, revision=0)
        self._last_revision = 0

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()
