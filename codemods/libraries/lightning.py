"""FSDP1 of Lightning as Python selects it: its strategy's class, or a name of it wherever a strategy is given."""

import ast
import re
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context, keyword
from fsdp_migrate.codemods.libraries import rules
from fsdp_migrate.codemods.libraries.configuration.table import (
    LIGHTNING_NAMES,
    STRATEGY_OF_FABRIC,
    STRATEGY_OF_LIGHTNING,
)
from fsdp_migrate.codemods.registry import codemod
from fsdp_migrate.codemods.rule import Found
from fsdp_migrate.findings import Action

_PACKAGES = ("lightning.", "lightning_fabric.", "pytorch_lightning.")
_FABRIC = re.compile(r"\bfabric\b|\bFabric$|\blightning_fabric\b")
_CLASSES = (".FSDPStrategy", ".DDPFullyShardedNativeStrategy")
_IMPORTS = re.compile(
    r"^[ \t]*(?:from|import)[ \t]+(?:lightning|pytorch_lightning)\b", re.MULTILINE
)


@codemod(words=("lightning",))
def find(context: Context) -> Iterator[Found]:
    """What selects the strategy, each once: a call that has it, else the name."""
    if not _IMPORTS.search(context.file.text):
        return
    spoken: set[ast.AST] = set()
    for call in context.file.of(ast.Call):
        path = next(iter(context.dotted(call.func)), "")
        if not path.startswith(_PACKAGES):
            continue
        given = keyword(call, "strategy")
        known = None
        if isinstance(given, ast.Name):
            known = context.value(given)
        name = given
        if known is not None:
            name = known.node
        if path.endswith(_CLASSES) or _is_name(name):
            spoken.add(name or call)
            yield Found(rules.LIGHTNING, call, Action.MANUAL, _said(path))
    # A name alone is taken by what the file imports.
    own = "Trainer"
    if "Trainer" not in context.file.text and "Fabric" in context.file.text:
        own = "Fabric"
    for constant in context.file.of(ast.Constant):
        if constant not in spoken and _is_name(constant) and _is_given(context, constant):
            yield Found(rules.LIGHTNING, constant, Action.MANUAL, _said(own))


def _said(path: str) -> str:
    """What to write, for the name of what takes the strategy: Fabric has no `configure_model`."""
    if _FABRIC.search(path):
        return STRATEGY_OF_FABRIC
    return STRATEGY_OF_LIGHTNING


def _is_name(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and node.value in LIGHTNING_NAMES


def _is_given(context: Context, constant: ast.Constant) -> bool:
    """Whether a name is given to something called strategy: an argument, an entry, a variable, an option of a program."""
    around = context.file.parents[constant]
    if isinstance(around, ast.Dict):
        pairs = zip(around.keys, around.values, strict=True)
        key = next((key for key, value in pairs if value is constant), None)
        return isinstance(key, ast.Constant) and _is_strategy(str(key.value))
    if isinstance(around, ast.keyword):
        if around.arg != "default":
            return _is_strategy(around.arg or "")
        call = context.file.parents[around]
        first = None
        if isinstance(call, ast.Call) and call.args:
            first = call.args[0]
        return isinstance(first, ast.Constant) and _is_strategy(str(first.value))
    if isinstance(around, ast.Assign):
        targets = around.targets
    else:
        targets = []
    if isinstance(around, ast.AnnAssign):
        targets = [around.target]
    return any(_is_strategy(context.source(target)) for target in targets)


def _is_strategy(name: str) -> bool:
    return name.lower().endswith("strategy")
