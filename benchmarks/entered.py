"""Which modules of ours a run enters: `python -P benchmarks/entered.py ARGUMENTS...`, those of `fsdp-migrate`.

A module is entered if one of its functions is called for the run, not only while modules are imported.
"""

from __future__ import annotations

import sys
from collections import Counter
from types import FrameType

from fsdp_migrate.cli import exit_code


def main() -> None:
    """Runs the command line, and prints the modules on standard error."""
    calls: Counter[str] = Counter()

    def called(frame: FrameType, event: str, _: object) -> None:
        name = frame.f_globals.get("__name__", "")
        if event != "call" or not name.startswith("fsdp_migrate"):
            return
        around: FrameType | None = frame
        while around is not None and around.f_code.co_name != "<module>":
            around = around.f_back
        if around is None or around.f_globals["__name__"] == "__main__":
            calls[name] += 1

    sys.setprofile(called)
    exit_code(sys.argv[1:])
    sys.setprofile(None)
    print(f"{len(calls)} modules entered", file=sys.stderr)
    for name in sorted(calls):
        print(f"{calls[name]:7,}  {name}", file=sys.stderr)


if __name__ == "__main__":
    main()
