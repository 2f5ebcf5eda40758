"""Methods and attributes of FSDP1's class: under `like_fsdp1` a model answers them, in torch's form functions replace them."""

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.constructor.construction import constructions
from fsdp_migrate.codemods.constructor.model_classes import classes_of_model
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.registry import codemod
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.codemods.uses import clipping, no_sync
from fsdp_migrate.codemods.uses.contexts import OF_MODELS
from fsdp_migrate.codemods.uses.guards import is_sharded
from fsdp_migrate.codemods.uses.no_sync import shares_code_with_ddp
from fsdp_migrate.codemods.uses.options import is_typed
from fsdp_migrate.facts.file import last_name
from fsdp_migrate.facts.names import CLASS
from fsdp_migrate.facts.nodes import all_are, has_any
from fsdp_migrate.facts.program import Definition, Program
from fsdp_migrate.facts.scopes import Imported
from fsdp_migrate.findings import Action, Severity
from fsdp_migrate.source import is_test

APPLY = Rule("FSDP322", "apply")
MODULE = Rule("FSDP009", "dot-module")

_ANSWERED = {
    "clip_grad_norm_": clipping.RULE,
    "no_sync": no_sync.RULE,
    "apply": APPLY,
    "module": MODULE,
    "_fsdp_wrapped_module": MODULE,
}
_ITSELF = "Replaced by the model itself: `fully_shard` does not wrap it."
_OR_DDP = "Replaced by the model itself, or by the module inside `DistributedDataParallel`."
_OWN = (
    "This is now a part of the model itself, which FSDP1's wrapper hid. Write `{}` alone, which is what this was under "
    "FSDP1."
)
_OWN_OR_DDP = (
    "This is now a part of the sharded model itself, which FSDP1's wrapper hid. "
    "Unwrap only `DistributedDataParallel`."
)
_APPLIED = (
    "The function passed to `apply` now gets modules with sharded parameters; FSDP1 gathered whole ones for it. "
    "Functions of `torch.nn.init` still work, with other random numbers. In code that reads values, use "
    "`p.full_tensor()`."
)
# What has methods of these names beside models: Accelerate's and Lightning's objects, and `nn.utils`.
_NO_MODELS = ("self", "accelerator", "fabric", "utils")
_DDP = ("DistributedDataParallel", "DDP", "ddp")


@codemod(words=("clip_grad_norm_", "no_sync", ".apply", "module"))
def find(context: Context) -> Iterator[Found]:
    """The uses of expressions that can hold a model, sharded in any form."""
    for name, rule in _ANSWERED.items():
        for attribute in context.file.attributes.get(name, ()):
            if not isinstance(attribute.ctx, ast.Load) or not _may_be_model(context, attribute):
                continue
            if name == "module" and _is_own_module(context, attribute):
                yield _own_module(context, attribute)
            elif context.form != "torch":
                message = f"Unchanged: `{name}` of the model comes from `fsdp_migrate.runtime` and does what FSDP1's did."
                if name == "apply":
                    message += " The function sees whole parameters."
                yield Found(rule, attribute, Action.RUNTIME, message)
            else:
                yield from _in_torch(context, attribute, rule)


def _in_torch(context: Context, attribute: ast.Attribute, rule: Rule) -> Iterator[Found]:
    """What a method becomes in torch's form."""
    match attribute.attr:
        case "no_sync":
            yield from no_sync.find(context, attribute)
        case "clip_grad_norm_":
            yield from clipping.find(context, attribute)
        case "apply":
            if not _is_gathered(context, attribute):
                yield Found(rule, attribute, Action.MANUAL, _APPLIED)
        case _:
            yield from _inner(context, attribute)


def is_replaced(context: Context, attribute: ast.Attribute) -> bool:
    """Whether an attribute becomes something else in torch's form."""
    is_read = context.form == "torch" and isinstance(attribute.ctx, ast.Load)
    return is_read and attribute.attr in _ANSWERED and _may_be_model(context, attribute)


def is_gathered(context: Context, attribute: ast.Attribute) -> bool:
    """Whether a finding is about a model's `apply` in torch's form."""
    return is_replaced(context, attribute) or _is_gathered(context, attribute)


def _may_be_model(context: Context, attribute: ast.Attribute) -> bool:
    """Whether a method may be FSDP1's. In torch's form any `clip_grad_norm_` or `no_sync` is that no other name means. DDP has
    `no_sync`, too: a file that names nothing of FSDP1's may be about that."""
    if context.fsdp1(attribute.value) == CLASS:
        return context.form == "torch" and attribute.attr == "clip_grad_norm_"
    speaks = context.references or "like_fsdp1" in context.file.calls
    methods = ["clip_grad_norm_"]
    if speaks:
        methods.append("no_sync")
    if context.form != "torch" or attribute.attr not in methods:
        return context.can_be_model(attribute.value)
    if _is_imported_class(context, attribute.value):
        return False
    if context.can_be_model(attribute.value):
        return True
    if context.program.once(_defines, attribute.attr):  # of another class
        return False
    return last_name(attribute.value) not in _NO_MODELS and not context.dotted(attribute)


def _is_imported_class(context: Context, owner: ast.expr) -> bool:
    """`Accelerator.clip_grad_norm_`, where the name is imported: a class of another library, by its capital letter."""
    if not isinstance(owner, ast.Name) or not owner.id[:1].isupper():
        return False
    found = context.file.scope_of(owner).lookup(owner.id)
    return found is not None and all_are(found.bindings, Imported)


def _defines(program: Program, name: str) -> bool:
    """Whether a class or a file of the run has a function of a name."""
    for file in program.files:
        if name in [each.name for each in file.of(ast.FunctionDef)]:
            return True
        if name in [each.name for each in file.of(ast.AsyncFunctionDef)]:
            return True
    return False


def _is_gathered(context: Context, attribute: ast.Attribute) -> bool:
    """Whether a use stands in a `with summon_full_params(...)`, of an earlier run or of the program's own."""
    withs = [each for each in context.file.ancestors(attribute) if isinstance(each, ast.With)]
    contexts = [item.context_expr for each in withs for item in each.items]
    called = [last_name(each.func) for each in contexts if isinstance(each, ast.Call)]
    return "summon_full_params" in called


def _inner(context: Context, attribute: ast.Attribute) -> Iterator[Found]:
    """`model.module` as the model, but for lines that run for a model with a wrapper alone."""
    if _is_guarded(context, attribute) or _is_of_state_dict(context, attribute):
        return
    is_shared = attribute.attr == "module" and shares_code_with_ddp(context)
    sharded = is_sharded(context, attribute, attribute.value)
    if is_shared and sharded is False:
        return
    model = context.source(attribute.value)
    is_shared = is_shared and sharded is None
    code = model
    if is_shared:
        code = f'getattr({model}, "module", {model})'
    message = _ITSELF
    if is_shared:
        message = _OR_DDP
    edits = lambda: [context.replace(attribute, code)]  # noqa: E731
    yield Found(MODULE, attribute, Action.REWRITE, message, edits=edits)


def _is_own_module(context: Context, attribute: ast.Attribute) -> bool:
    """Whether `model.module` is one that the model's class has, and not the model in a wrapper."""
    if not context.in_place or not context.program.once(_have_own_modules, context.form):
        return False
    if any(map(_is_for_ddp_alone, _tests_above(context, attribute))):
        return False
    return context.form != "torch" or shares_code_with_ddp(context)


def _own_module(context: Context, attribute: ast.Attribute) -> Found:
    message = _OWN
    if shares_code_with_ddp(context):
        message = _OWN_OR_DDP
    message = message.format(context.source(attribute.value))
    return Found(MODULE, attribute, Action.MANUAL, message, severity=Severity.SILENT)


def _have_own_modules(program: Program, form: str) -> bool:
    for file in program.files:
        if is_test(file.path.as_posix()):
            continue
        for construction in constructions(Context(file, program, form=form)):
            if any(map(_has_own_module, classes_of_model(construction))):
                return True
    return False


def _has_own_module(cls: Definition) -> bool:
    """Whether a class sets or defines `module`."""
    file = cls.file
    for each in cls.node.body:
        match each:
            case ast.FunctionDef(name="module") | ast.ClassDef(name="module"):
                return True
    for attribute in file.attributes.get("module", ()):
        is_set = isinstance(attribute.ctx, ast.Store) and last_name(attribute.value) == "self"
        if is_set and file.enclosing_class(attribute) is cls.node:
            return True
    return False


def _is_guarded(context: Context, attribute: ast.Attribute) -> bool:
    """Whether a test asks whether the model has a `module`, or is of DistributedDataParallel."""
    asked = f"hasattr({ast.unparse(attribute.value)}, '{attribute.attr}')"
    tests = "\n".join(_tests_above(context, attribute))
    return has_any(tests, (asked, *_DDP))


def _is_for_ddp_alone(test: str) -> bool:
    return has_any(test, _DDP) and "fsdp" not in test.lower()


def _tests_above(context: Context, node: ast.AST) -> list[str]:
    """The code of the tests that a node stands below."""
    kinds = (ast.If, ast.IfExp, ast.While)
    above = context.file.ancestors(node)
    return [ast.unparse(each.test) for each in above if isinstance(each, kinds)]


def _is_of_state_dict(context: Context, attribute: ast.Attribute) -> bool:
    """Whether it is in `model.module.state_dict()`, of which the rules for state dicts speak."""
    above = context.file.parents[attribute]
    return (
        isinstance(above, ast.Attribute)
        and above.attr in OF_MODELS
        and is_typed(context.file, above)
    )
