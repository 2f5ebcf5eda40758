"""`optimizer.zero_grad()` beside an accumulation that was cut short: what FSDP1 dropped there, FSDP2 keeps."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.context import RUNTIME, Context
from fsdp_migrate.codemods.executed import functions_run
from fsdp_migrate.codemods.expressions import is_dotted
from fsdp_migrate.codemods.loop.leftover_examples import EXAMPLES
from fsdp_migrate.codemods.rule import Draft, Edit, Rule, Statements
from fsdp_migrate.findings import Action
from fsdp_migrate.index.module import Assigned

RULE = Rule(
    "FSDP314",
    "unsynced-gradients",
    "zero_grad() outside an accumulating loop drops gradients that were not reduced yet as well",
    """Gradients of micro-batches under `no_sync` are whole. FSDP1 kept them where `zero_grad()` finds them; FSDP2 keeps them
apart from the parameters until they are reduced (`_fully_shard/_fsdp_param.py`, `unsharded_accumulated_grad`), and
`zero_grad()` does not reach them. Where the number of batches is no multiple of the micro-batches of a step, the rest of
one epoch would go into the first step of the next, in silence: `reset_iter_state()` does not drop them either. A
`zero_grad()` outside of the loop that accumulates and steps gets the runtime's `discard_unsynced_gradients(model)` beside it.
It does nothing where nothing is left, and nothing to other models. Inside the loop, `zero_grad()` follows a step, when all
is reduced.""",
    EXAMPLES,
)
RULES = (RULE,)

_LOOPS = (ast.For, ast.AsyncFor, ast.While)


def find(context: Context) -> Iterator[Draft]:
    """Calls of `zero_grad` outside a loop of the same function in which a model accumulates and an optimizer steps."""
    module = context.module
    calls = [
        (call, call.func.value)
        for call in module.calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "zero_grad"
    ]
    if not calls or not _accumulates(context):
        return
    loops = [
        (loop, attribute.value)
        for attribute in module.attributes
        if attribute.attr == "no_sync" and context.sites(attribute.value)
        if (loop := _stepping_loop(context, attribute)) is not None
    ]
    for call, zeroed in calls:
        around, function = set(module.ancestors(call)), module.enclosing_function(call)
        models = {
            ast.dump(model): model
            for loop, model in loops
            if loop not in around and module.enclosing_function(loop) is function
        }
        here = [(c, v) for c, v in calls if module.enclosing_function(c) is function]
        elsewhere = not models and (
            _is_zeroed_in_a_loop(context, call, zeroed, here) or _runs_accumulation(context, call)
        )
        if context.sites(zeroed) and (models or elsewhere):
            yield _draft(context, call, [zeroed], clear=True)
        elif elsewhere:
            yield _draft(context, call, [], clear=False)
        elif models:  # which parameters an optimizer has is clear if there are no others
            optimizers = {ast.dump(value) for _, value in here} - models.keys()
            clear = len(models) == len(optimizers) == 1
            yield _draft(context, call, list(models.values()), clear=clear)


def _accumulates(context: Context) -> bool:
    """Whether an FSDP1 model accumulates here, or in a file that hangs together with this one."""
    return any(
        attribute.attr == "no_sync" and context.sites(attribute.value)
        for module in context.project.connected(context.module)
        if "no_sync" in module.text
        for attribute in module.attributes
    )


def _is_zeroed_in_a_loop(
    context: Context, call: ast.Call, zeroed: ast.expr, here: list[tuple[ast.Call, ast.expr]]
) -> bool:
    """Whether the same is zeroed in a loop as well, now and then: something accumulates there, if by another function."""
    around = set(context.module.ancestors(call))
    for other, value in here:
        inside = False
        for parent in context.module.ancestors(other):
            inside = inside or isinstance(parent, ast.If)
            if isinstance(parent, _LOOPS) and parent not in around:
                if inside and ast.dump(value) == ast.dump(zeroed):
                    return True
    return False


def _runs_accumulation(context: Context, call: ast.Call) -> bool:
    """Whether a loop of the same function, not around a call, runs functions that accumulate and step now and then."""
    module = context.module
    around, function = set(module.ancestors(call)), module.enclosing_function(call)
    for loop in ast.walk(function or module.tree):
        if (
            isinstance(loop, _LOOPS)
            and loop not in around
            and module.enclosing_function(loop) is function
        ):
            calls = [node for node in ast.walk(loop) if isinstance(node, ast.Call)]
            run = [f.node for inner in calls for f in functions_run(context, module, inner)]
            used = [
                node for body in run for node in ast.walk(body) if isinstance(node, ast.Attribute)
            ]
            if any(node.attr == "no_sync" and context.sites(node.value) for node in used):
                if any(node.attr == "step" for node in used):
                    return True
    return False


def _stepping_loop(context: Context, node: ast.AST) -> ast.AST | None:
    """The innermost loop around a node in which something steps."""
    for parent in context.module.ancestors(node):
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return None
        if isinstance(parent, _LOOPS) and any(
            isinstance(inner, ast.Attribute) and inner.attr == "step" for inner in ast.walk(parent)
        ):
            return parent
    return None


def _draft(context: Context, call: ast.Call, models: list[ast.expr], *, clear: bool) -> Draft:
    sites = frozenset(site for model in models for site in context.sites(model))
    construct = context.source(call)
    statement = context.module.parents[call]
    known = clear and all(is_dotted(model) and _is_known(context, model, call) for model in models)
    if not (known and isinstance(statement, ast.Expr) and context.stands_alone(statement)):
        message = (
            "zero_grad() misses unreduced gradients: add discard_unsynced_gradients of the runtime"
        )
        return Draft(RULE, call, Action.MANUAL, message, construct, sites, mark=True)
    name, needs = context.name(RUNTIME, "discard_unsynced_gradients", use=call)
    added = [cst.parse_statement(f"{name}({context.source(model)})") for model in models]

    def apply(updated: cst.CSTNode) -> Statements:
        assert isinstance(updated, cst.SimpleStatementLine)
        return Statements([updated, *added])

    message = (
        "zero_grad() drops only what was reduced: the runtime drops what an accumulation left over"
    )
    edit = Edit(context.syntax.statement(statement), apply)
    return Draft(RULE, call, Action.RUNTIME, message, construct, sites, edits=(edit,), needs=needs)


def _is_known(context: Context, model: ast.expr, at: ast.AST) -> bool:
    """Whether a name or dotted name holds the model at a place as well: nothing binds it between."""
    module = context.module
    root = model
    while isinstance(root, ast.Attribute):
        root = root.value
    assert isinstance(root, ast.Name)
    found = module.lookup(root.id, module.scope_of(root))
    if found is None:
        return False
    if found[0] is not module.scope_of(at):
        return True  # bound around the function that has both
    first = min(getattr(model, "lineno", 0), getattr(at, "lineno", 0))
    return not any(
        getattr(module.statement(binding.target), "lineno", 0) >= first
        if isinstance(binding, Assigned)
        else isinstance(getattr(binding, "node", None), _LOOPS)
        for binding in found[1]
    )


Command = command(find, __doc__ or "")
