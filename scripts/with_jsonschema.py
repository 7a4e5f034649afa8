"""Python's jsonschema, for scripts that hold answers to schemas.

The distribution's package serves the distribution's Python, wherever the path leads: a script that another
one runs starts again by that. Where neither has it, the script ends as skipped.
"""

import os
import sys

SKIPPED = 77  # as ctest's SKIP_RETURN_CODE
SYSTEM_PYTHON = "/usr/bin/python3"

try:
    import jsonschema  # noqa: F401  for who imports this
except ImportError:
    if sys.executable != SYSTEM_PYTHON and os.path.exists(SYSTEM_PYTHON):
        os.execv(SYSTEM_PYTHON, [SYSTEM_PYTHON, *sys.argv])
    print("skipped: no jsonschema; apt-get install python3-jsonschema")
    # CI installs it: there its absence is a failure.
    sys.exit(1 if os.environ.get("CI") else SKIPPED)
