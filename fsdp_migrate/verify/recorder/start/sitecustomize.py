"""Starts the recorder, then runs the sitecustomize that this one hides. `verify` puts its folder first on PYTHONPATH."""

import importlib.machinery
import importlib.util
import os
import sys
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))


def _record(folder: str) -> None:
    spec: Any = importlib.util.spec_from_file_location(
        "_fsdp_migrate_record",
        os.path.join(folder, "__init__.py"),
        submodule_search_locations=[folder],
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    module.start()


def _go_on() -> None:
    rest = [path for path in sys.path if os.path.abspath(path or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_record(os.path.dirname(_HERE))
_go_on()
