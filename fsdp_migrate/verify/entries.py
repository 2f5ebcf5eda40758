"""Which scripts of a repository `verify` can run: programs that lead to FSDP."""

import os
from pathlib import Path

from fsdp_migrate.discover import discover
from fsdp_migrate.facts.tree import Reach, Tree
from fsdp_migrate.source import is_test

_FSDP = rb"FullyShardedDataParallel|fully_shard"
_STARTS = rb"if __name__ == |init_process_group\(|\bspawn\(|\bAccelerator\("
_NAMED = 5
"""At most so many are proposed."""


def entries(folder: Path) -> list[str]:
    """Programs below a folder that mention FSDP or import a file that does, those that mention it first."""
    root = folder.resolve()
    paths = [os.fspath(path) for path in discover([root]).files if path.suffix == ".py"]
    tree = Tree(paths)
    reach = Reach(tree)
    having = tree.having(_FSDP)
    starts = tree.having(_STARTS)
    found = []
    for path in paths:
        name = Path(path).relative_to(root).as_posix()
        alone = path in starts and not reach.importers(path)
        if alone and not is_test(f"/{name}") and not having.isdisjoint(reach.below(path)):
            found.append((path not in having, name.count("/"), name))
    return [name for _, _, name in sorted(found)]


def proposal(folder: Path) -> str:
    """What to add to the command, as `--entry train.py`; in words where no program is found."""
    found = entries(folder)
    if not found:
        return "name the script to run with --entry"
    more = ""
    if len(found) > _NAMED:
        more = f" (and {len(found) - _NAMED} more)"
    return f"name the script to run with {' or '.join(f'--entry {name}' for name in found[:_NAMED])}{more}"
