"""Methods and attributes of FSDP1's class: under `like_fsdp1` a model answers them, in torch's form functions replace them."""

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.constructor.rows import are_mixed
from fsdp_migrate.codemods.context import Context, has_torch
from fsdp_migrate.codemods.rule import Edit, Found, Import, Rule
from fsdp_migrate.facts.file import last_name
from fsdp_migrate.facts.names import RUNTIME
from fsdp_migrate.findings import Action

CLIP = Rule("FSDP301", "clip-method")
NO_SYNC = Rule("FSDP311", "no-sync")
APPLY = Rule("FSDP322", "apply")
MODULE = Rule("FSDP009", "dot-module")
RULES = (CLIP, NO_SYNC, APPLY, MODULE)

# What answers each, the function of the runtime that does the same, and what the finding says of that.
_UNWRAP = "becomes unwrap(model): a model of fully_shard is itself, one of DDP has a wrapper"
_CLIPS = "becomes clip_grad_norm_ of the runtime, which returns a plain tensor as FSDP1's did"
_SYNCS = "becomes no_sync(model), which turns gradient reduction off and on again, of a model in any form"
_GATHERS = "goes into `with summon_full_params(...)`, since FSDP1's apply gathers the parameters"
_ANSWERED = {
    "clip_grad_norm_": (CLIP, "clip_grad_norm_", _CLIPS),
    "no_sync": (NO_SYNC, "no_sync", _SYNCS),
    "apply": (APPLY, "summon_full_params", _GATHERS),
    "module": (MODULE, "unwrap", _UNWRAP),
    "_fsdp_wrapped_module": (MODULE, "unwrap", _UNWRAP),
}
_TORCH = "torch.nn.utils.clip_grad_norm_"
_BY_TORCH = (
    f"becomes {_TORCH}, which takes the norm over all shards, in the gradients' dtype where FSDP1 took it in float32: all "
    "parameters are DTensors on one device"
)
# What has methods of these names beside models: Accelerate's and Lightning's objects, and `nn.utils`.
_NO_MODELS = ("self", "accelerator", "fabric", "utils")
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


def find(context: Context) -> Iterator[Found]:
    """The uses of expressions that can hold a model, sharded in any form."""
    for name, (rule, function, becomes) in _ANSWERED.items():
        for attribute in context.file.attributes.get(name, ()):
            if not isinstance(attribute.ctx, ast.Load) or not _may_be_model(context, attribute):
                continue
            if edit := _by_torch(context, attribute):
                edits = lambda edit=edit: [edit]  # noqa: E731
                yield Found(rule, attribute, Action.REWRITE, _BY_TORCH, edits=edits)
            elif context.form != "torch":
                parameters = ", with whole parameters" if name == "apply" else ""
                message = f"the model answers {name} as FSDP1's did{parameters}"
                yield Found(rule, attribute, Action.RUNTIME, message)
            elif name == "apply" and _is_gathered(context, attribute):
                continue
            elif not context.means(function, attribute, f"{RUNTIME}.{function}"):
                message = f"a model of fully_shard does not answer it: the runtime's {function}(model) does the same"
                yield Found(rule, attribute, Action.MANUAL, message)
            elif edit := _by_runtime(context, attribute):
                imports = [Import(RUNTIME, function)]
                imports += [Import("functools", "partial")] if "partial(" in edit.text else []
                edits = lambda edit=edit: [edit]  # noqa: E731
                yield Found(
                    rule, attribute, Action.RUNTIME, becomes, edits=edits, imports=tuple(imports)
                )


def is_replaced(context: Context, attribute: ast.Attribute) -> bool:
    """Whether a function takes the place of an attribute, in torch's form."""
    is_read = context.form == "torch" and isinstance(attribute.ctx, ast.Load)
    return is_read and attribute.attr in _ANSWERED and _may_be_model(context, attribute)


def is_gathered(context: Context, attribute: ast.Attribute) -> bool:
    """Whether a model's `apply` sees whole parameters in torch's form."""
    is_replaced_here = is_replaced(context, attribute) and bool(_by_runtime(context, attribute))
    return is_replaced_here or _is_gathered(context, attribute)


def _may_be_model(context: Context, attribute: ast.Attribute) -> bool:
    """Whether a method may be FSDP1's. In torch's form any of two is that no other name means: the runtime's functions call the
    method of what is no sharded model. DDP has `no_sync`, too: a file that names nothing of FSDP1's may be about that."""
    methods = ("clip_grad_norm_", "no_sync") if context.references else ("clip_grad_norm_",)
    if context.form != "torch" or attribute.attr not in methods:
        return context.can_be_model(attribute.value)
    return last_name(attribute.value) not in _NO_MODELS and not context.dotted(attribute)


def _is_gathered(context: Context, attribute: ast.Attribute) -> bool:
    """Whether a use stands in a `with summon_full_params(...)`, of an earlier run or of the program's own."""
    around = (n for n in context.file.ancestors(attribute) if isinstance(n, ast.With))
    given = (item.context_expr for n in around for item in n.items)
    calls = (each for each in given if isinstance(each, ast.Call))
    return any(last_name(call.func) == "summon_full_params" for call in calls)


def _by_runtime(context: Context, attribute: ast.Attribute) -> Edit | None:
    """The edit that puts the runtime's function in the place of a use; None where it has no such place."""
    call, model = context.call_of(attribute), context.source(attribute.value)
    statement = context.file.statement(attribute)
    if attribute.attr == "clip_grad_norm_":
        return _clip(context, attribute, call, f"clip_grad_norm_({model}") if call else None
    if attribute.attr == "no_sync":
        if call is None:  # to be called later
            return context.replace(attribute, f"partial(no_sync, {model})")
        return context.replace(call, f"no_sync({model})") if not call.args + call.keywords else None
    if attribute.attr == "apply":
        is_whole = call is not None and call is getattr(statement, "value", None)
        if not is_whole or not isinstance(statement, ast.Expr) or not context.is_alone(statement):
            return None
        block = f"with summon_full_params({model}):\n    {context.source(statement)}"
        return context.replace_statement(statement, block)
    return context.replace(attribute, f"unwrap({model})")


def _by_torch(context: Context, attribute: ast.Attribute) -> Edit | None:
    """The edit that puts torch's function in the place of `model.clip_grad_norm_(...)`; None where that is another norm."""
    call = context.call_of(attribute) if attribute.attr == "clip_grad_norm_" else None
    if call is None or context.form != "torch" or not _torch_will_do(context, call):
        return None
    begins = f"{_TORCH}({context.source(attribute.value)}.parameters()"
    return _clip(context, attribute, call, begins)


def _clip(context: Context, attribute: ast.Attribute, call: ast.Call, begins: str) -> Edit:
    start, end = context.file.span(attribute)
    bracket = context.file.text.index("(", end) + 1
    return Edit(start, bracket, begins + (", " if call.args or call.keywords else ""))


def _torch_will_do(context: Context, call: ast.Call) -> bool:
    """Whether torch's function clips by the same norm: result unused, a finite norm, all reduced, all parameters DTensors."""
    if not isinstance(context.file.parents[call], ast.Expr):
        return False
    norm = [*call.args[1:2], *(k.value for k in call.keywords if k.arg == "norm_type")]
    finite = all(isinstance(n, ast.Constant) and isinstance(n.value, int | float) for n in norm)
    starred = any(isinstance(each, ast.Starred) for each in call.args)
    starred |= any(keyword.arg is None for keyword in call.keywords)
    mixed = context.program.once(are_mixed)
    own = context.program.has("def clip_grad_norm_")
    receiver = context.can_be_model(call.func.value)  # type: ignore[attr-defined]
    simple = finite and receiver and not (starred or mixed or own) and has_torch(context, call)
    return simple and not _follows_each_backward(context, call)


def _follows_each_backward(context: Context, call: ast.Call) -> bool:
    """Whether a loop clips without a condition where it uses `no_sync`, so that some gradients are not reduced yet."""

    def innermost(node: ast.AST, *kinds: type[ast.AST]) -> ast.AST | None:
        return next((n for n in context.file.ancestors(node) if isinstance(n, kinds)), None)

    loop = innermost(call, ast.If, *_LOOPS)
    uses = context.file.attributes.get("no_sync", ())
    return isinstance(loop, _LOOPS) and any(innermost(use, *_LOOPS) is loop for use in uses)
