"""Calls of `wrap` and the `enable_wrap` around them: in torch's form the block is left, and calls the new function itself."""

import ast

from fsdp_migrate.codemods.constructor.construction import (
    ENABLE_WRAP,
    AtRunTime,
    Construction,
    constructions,
)
from fsdp_migrate.codemods.constructor.outcome import Form
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Edit
from fsdp_migrate.facts.nodes import any_is
from fsdp_migrate.facts.program import Program

# In another file `wrap` may be called while the block runs.
_IMPORTS_WRAP = rb"\bfsdp[\w.]*\s+import\s[^#=:]{0,300}?\bwrap\b|\bfsdp\.wrap\.wrap\b"
_BY_BLOCK = (
    "`wrap` now calls the function passed to `enable_wrap`, which shards the module in place."
)
_DIRECTLY = (
    "Replaced by a call of the function that shards the module in place; `enable_wrap` is removed."
)


def form_of(construction: Construction) -> Form:
    """What a call of `wrap` becomes where an `enable_wrap` around it is rewritten."""
    if len(construction.arguments) > 1 or construction.unseen:
        raise AtRunTime("`wrap` is called with arguments for a single unit")
    context = construction.context
    module = construction.module
    if isinstance(module, ast.Call) and context.references.get(module.func) == "wrap":
        return Form(
            "Removed: the inner `wrap` already shards this module, and `fully_shard` accepts a module only once.",
            lambda: [context.replace(construction.call, context.source(module))],
            (),
            (construction.call.func,),
            in_words=True,
        )
    message = _BY_BLOCK
    blocks = [each for each in constructions(context) if each.kind == ENABLE_WRAP]
    if any(construction.call in calls_in(each) for each in blocks):
        message = _DIRECTLY
    return Form(message, list, (), (), in_words=True)


def calls_in(construction: Construction) -> list[ast.Call]:
    """The calls of `wrap` in the block of an `enable_wrap`, where they are all that it is for; else none."""
    context = construction.context
    file = context.file
    block = file.statement(construction.call)
    match block:
        case ast.With(items=[ast.withitem(given, None)]) if given is construction.call:
            pass
        case _:
            return []
    if context.form != "torch" or not context.program.once(_has_wrap, str(file.path)):
        return []
    found = []
    for node, name in context.references.items():
        if name != "wrap":
            continue
        call = context.call_of(node)
        if call is None or len(call.args) != 1 or call.keywords or not _is_in(context, call, block):
            return []
        found.append(call)
    return found


def _has_wrap(program: Program, path: str) -> bool:
    """Whether no file but this one imports `wrap`."""
    return program.tree.having(_IMPORTS_WRAP) <= {path}


def _is_in(context: Context, call: ast.Call, block: ast.With) -> bool:
    """Whether a block runs a call of `wrap` by its own code, on what is no call of it."""
    file = context.file
    inner = call.args[0]
    is_twice = isinstance(inner, ast.Call) and inner.func in context.references
    is_own = file.function(call) is file.function(block) and block in file.ancestors(call)
    is_lambda = any_is(file.ancestors(call), ast.Lambda)
    return is_own and not (is_twice or is_lambda or isinstance(inner, ast.Starred))


def without_block(construction: Construction, name: str, arguments: str) -> list[Edit]:
    """The edits that take a block out of its `enable_wrap`, and have it call a function in the place of `wrap`."""
    context = construction.context
    block = context.statement(context.file.statement(construction.call))
    for call in calls_in(construction):
        block.replace(call, f"{name}(_module{arguments})", _module=call.args[0])
    block.step_out()
    return block.edits()
