"""Names in the state dicts of a model that `torch.compile` wraps, which torch's functions for state dicts shorten."""

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.constructor.construction import constructions
from fsdp_migrate.codemods.context import Context, keyword
from fsdp_migrate.codemods.registry import codemod
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.facts.program import Program
from fsdp_migrate.findings import Action

RULE = Rule("FSDP337", "compiled-names")

_FUNCTIONS = {f"{do}_{of}_state_dict" for do in ("get", "set") for of in ("model", "optimizer")}
_SHORTER = (
    "The program compiles the model with `torch.compile`, which put `_orig_mod.` into the names of FSDP1's state dicts; "
    "`{}` leaves it out. Before you load an old checkpoint, remove `_orig_mod.` from its names."
)


@codemod(words=("state_dict",))
def find(context: Context) -> Iterator[Found]:
    """What becomes one of torch's functions for state dicts, in a program that compiles a model."""
    if not context.in_place or context.ask is None or not context.program.has(r"torch\.compile\("):
        return
    paths = context.program.reach.of(context.file.path)
    if not any(context.program.once(_compiles_a_model, path) for path in paths):
        return
    for rewrite in context.ask(context, lambda name: name == "uses.state_dicts"):
        names = sorted(_FUNCTIONS & {need.name for need in rewrite.imports})
        if names and rewrite.action is Action.REWRITE:
            yield Found(RULE, rewrite.node, Action.MANUAL, _SHORTER.format(names[0]))


def _compiles_a_model(program: Program, path: str) -> bool:
    file = None
    if "compile(" in program.reach.text(path):
        file = program.load(path)
    if file is None:
        return False
    context = Context(file, program)
    for call in file.calls.get("compile", ()):
        if "torch.compile" in context.dotted(call.func) and _is_of_a_model(context, call):
            return True
    return False


def _is_of_a_model(context: Context, call: ast.Call) -> bool:
    """Return whether a call compiles a sharded model, what a constructor shards, or a part of either."""
    compiled = keyword(call, "model", 0)
    if compiled is None:
        return False
    if context.can_be_model(compiled):
        return True
    paths = [ast.unparse(compiled)]
    match context.file.parents[call]:
        case ast.Assign(targets=targets):
            paths += [ast.unparse(target) for target in targets]
    for construction in constructions(context):
        module = construction.module
        if module is call:
            return True
        if module is None or context.file.function(module) is not context.file.function(call):
            continue
        name = ast.unparse(module)
        if any(path == name or path.startswith((f"{name}.", f"{name}[")) for path in paths):
            return True
    return False
