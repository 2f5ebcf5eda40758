"""What the recorder is asked to do, by two environment variables that `fsdp_migrate/verify/launch.py` sets."""

import json
import os
from typing import Any

FOLDER = os.environ.get("FSDP_MIGRATE_RECORD", "")
"""The folder for the records. Without it nothing is recorded."""

SETTINGS: dict[str, Any] = json.loads(os.environ.get("FSDP_MIGRATE_SETTINGS", "{}"))
"""The fields of `fsdp_migrate.verify.options.Recording`, and two more: `device`, `cpu` or `cuda`, is the kind of device
that the program is meant to use; `copies` are pairs of a folder of the user and its copy."""
