"""`python -m pytest -p tests.quick_start`: skips an import that takes seconds per process.

It is loaded before the plugins of other packages, so before `nbval`, which imports `jsonschema`.
"""

from __future__ import annotations

import sys

# A grammar of internationalised addresses, which takes two seconds to build at every import.
# `jsonschema` also works without it; no notebook has such an address.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
