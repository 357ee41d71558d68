"""`python -m pytest -p tests.quick_start`: what takes seconds in every process is not imported.

Loaded before the plugins of other packages, and so before `nbval`, which imports `jsonschema`.
"""

from __future__ import annotations

import sys

# A grammar of internationalised addresses, built anew at every import in two seconds. `jsonschema`
# does without where it is not installed; no notebook has such an address.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
