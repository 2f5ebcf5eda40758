"""Parameters that a module writes while its forward runs: under NO_SHARD that is kept, under FSDP2 it is lost."""

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.by_hand.flows import functions
from fsdp_migrate.codemods.constructor.sharding import NO_SHARD
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.registry import codemod
from fsdp_migrate.codemods.rule import Found
from fsdp_migrate.facts.file import File, is_method, is_name, last_name, root_of
from fsdp_migrate.facts.nodes import any_below, assigned_value, text_of
from fsdp_migrate.facts.program import Definition, is_module
from fsdp_migrate.facts.scopes import Opaque
from fsdp_migrate.findings import Action

_LOST = (
    "This changes a parameter during forward, and the change is lost: FSDP2 runs forward on a gathered copy, FSDP1 with "
    "NO_SHARD did not. Use a buffer, or change the parameter between steps."
)
_MAKING = frozenset({"Parameter", "ParameterDict", "ParameterList"})
_LOOPS = ast.For | ast.AsyncFor | ast.comprehension
_Method = ast.FunctionDef | ast.AsyncFunctionDef
_Hook = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@codemod(words=("NO_SHARD", "Parameter(", "register_forward"))
def find(context: Context) -> Iterator[Found]:
    """One finding for each write in a method that forward runs, or in a hook of it, where the program can ask for NO_SHARD."""
    if not context.models.shards() or not context.program.has(r"\bNO_SHARD\b"):
        return
    for node in (*_in_methods(context), *_in_hooks(context)):
        if _is_written(context, node):
            yield Found(NO_SHARD, node, Action.MANUAL, _LOST)


def _in_methods(context: Context) -> Iterator[ast.expr]:
    """The parameters of a module in its methods that forward runs."""
    for cls in context.file.of(ast.ClassDef):
        own = _parameters(context, cls)
        if is_module(context.program, Definition(context.file, cls)):
            for method in _run_by_forward(cls):
                for node in ast.walk(method):
                    if isinstance(node, ast.Name | ast.Attribute) and _is_own(context, node, own):
                        yield node


def _in_hooks(context: Context) -> Iterator[ast.expr]:
    """The parameters of a module in its hooks: `module.weight`."""
    for hook in _hooks(context):
        arguments = [each.arg for each in hook.args.args[is_method(hook) :]]
        if arguments:
            for node in ast.walk(hook):
                match node:
                    case ast.Attribute(attr="weight" | "bias", value=ast.Name(id=name)):
                        if name == arguments[0]:
                            yield node


def _hooks(context: Context) -> Iterator[_Hook]:
    """The functions that run before or behind a module's forward, also those that a function of the file makes."""
    seen = set()
    for name in ("register_forward_pre_hook", "register_forward_hook"):
        for call in context.file.calls.get(name, ()):
            if call.args:
                for hook in _functions(context, call.args[0]):
                    if hook not in seen:
                        seen.add(hook)
                        yield hook


def _functions(context: Context, hook: ast.expr) -> Iterator[_Hook]:
    if isinstance(hook, ast.Lambda):
        yield hook
    elif isinstance(hook, ast.Call):
        makers = functions(context, hook.func)
        for returned in context.file.of(ast.Return):
            if context.file.function(returned) in makers and returned.value is not None:
                yield from _functions(context, returned.value)
    elif isinstance(hook, ast.Name | ast.Attribute):
        yield from functions(context, hook)


def _parameters(context: Context, cls: ast.ClassDef) -> set[str]:
    """The attributes of a class that are set to an `nn.Parameter`, also in a tuple of them, and what a layer has."""
    bases = {path for base in cls.bases for path in context.dotted(base)}
    is_layer = any(path.startswith("torch.nn.") and path != "torch.nn.Module" for path in bases)
    found = set[str]()
    if is_layer:
        found = {"weight", "bias"}
    for node in ast.walk(cls):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                found |= set(_made(target, node.value))
        elif isinstance(node, ast.Call) and last_name(node.func) == "register_parameter":
            found.update(map(text_of, node.args[:1]))
    return found


def _made(target: ast.expr, value: ast.expr) -> Iterator[str]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for part, each in zip(target.elts, value.elts, strict=False):
            yield from _made(part, each)
    elif isinstance(value, ast.Call) and last_name(value.func) in _MAKING:
        if isinstance(target, ast.Attribute):
            yield target.attr


def _run_by_forward(cls: ast.ClassDef) -> list[_Method]:
    """The methods that forward runs by `self`, itself first."""
    methods = {each.name: each for each in cls.body if isinstance(each, _Method)}
    if "forward" not in methods:
        return []
    names = ["forward"]
    for name in names:  # which grows
        for node in ast.walk(methods[name]):
            match node:
                case ast.Attribute(value=ast.Name(id="self"), attr=method):
                    if method in methods and method not in names:
                        names.append(method)
    return [methods[name] for name in names]


def _is_own(context: Context, node: ast.expr, own: set[str]) -> bool:
    """Whether an expression is a parameter of the module: `self.scale`, `self.inner.weight`, and a name for one."""
    if isinstance(node, ast.Attribute):
        if is_name(node.value, "self"):
            return node.attr in own
        return node.attr in {"weight", "bias"} and is_name(root_of(node), "self")
    for binding in context.file.bindings(node):
        value = assigned_value(binding)
        if isinstance(binding, Opaque) and isinstance(binding.node, _LOOPS):
            value = binding.node.iter
        if isinstance(value, ast.Attribute) and _is_own(context, value, own):
            return True
    return False


def _is_written(context: Context, parameter: ast.expr) -> bool:
    """Whether a parameter is changed in place: by a method, by an index, by `data`, or by a function of `nn.init`."""
    file = context.file
    node: ast.expr = parameter
    parent = file.parents[node]
    while isinstance(parent, ast.Attribute) and parent.attr in {"data", "detach"}:
        node = context.call_of(parent) or parent
        parent = file.parents[node]
    if isinstance(parent, ast.Subscript) and parent.value is node:
        node = parent
        parent = file.parents[parent]
    if node is not parameter and isinstance(node, ast.Attribute | ast.Subscript):
        if isinstance(node.ctx, ast.Store):
            return True
    if isinstance(parent, ast.AugAssign):
        return parent.target is node
    if isinstance(parent, ast.Attribute):
        changes = parent.attr.endswith("_") and parent.attr not in {"requires_grad_", "__class__"}
        return changes and context.call_of(parent) is not None
    return isinstance(parent, ast.Call) and _draws(file, context, parent)


def _draws(file: File, context: Context, call: ast.Call) -> bool:
    """Whether a call is one of `torch.nn.init`."""
    return any_below(context.dotted(call.func), "torch.nn.init.")
