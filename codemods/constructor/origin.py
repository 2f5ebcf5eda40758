"""Where the model of a constructor comes from: made in the same function, of which classes, and who saw its parameters.

FSDP2 shards in place: `fully_shard` replaces the parameters of the model, and an optimizer that was given the old ones
trains nothing. The bridge remaps such an optimizer; plain code must not meet one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.constructor.construction import Construction
from fsdp_migrate.codemods.constructor.plain import Stays
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.facts.file import File
from fsdp_migrate.facts.program import Definition, External
from fsdp_migrate.facts.scopes import Assigned, Opaque

_READERS = ("parameters", "named_parameters", "state_dict", "param_groups")
_LOOPS = (
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ListComp,
    ast.GeneratorExp,
    ast.SetComp,
    ast.DictComp,
)
# Methods that return the module that they are called on.
_SAME = {
    "to",
    "cuda",
    "cpu",
    "train",
    "eval",
    "half",
    "bfloat16",
    "float",
    "double",
    "requires_grad_",
}


def check_origin(construction: Construction) -> None:
    """Checks that nothing can hold the model's old parameters.

    Raises:
        Stays: if the model is made out of sight, or its parameters are read before it is wrapped.
    """
    _check(
        construction.context.file,
        construction.context,
        construction.call,
        construction.module,
        set(),
    )


def _check(
    file: File, context: Context, call: ast.AST, model: ast.expr | None, seen: set[ast.AST]
) -> None:
    """Checks one call that wraps a model; where the model is a parameter, the calls of the function around it."""
    if model is None:
        raise Stays("the model is given by a dictionary")
    function = file.function(call)
    if _reads_before(file, call, function):
        raise Stays("an optimizer may hold the model's parameters from before it is wrapped")
    if is_made_here(file, model, call):
        return
    parameter = _parameter(file, model)
    if function is None or parameter is None or function in seen:
        raise Stays(
            "the model is made elsewhere, where an optimizer may hold its parameters already"
        )
    seen.add(function)
    every = list(callers(context, file, function))
    if not every:
        raise Stays("no call of the function that wraps the model is known")
    for other, caller in every:
        _check(other, context, caller, _passed(caller, function, parameter), seen)


def is_made_here(file: File, model: ast.expr, at: ast.AST) -> bool:
    """Whether the function around a place makes the model: by a call, in place or bound to a name."""
    if isinstance(model, ast.Call):
        return True
    root = root_of(model)
    if root is None:
        return False
    found = file.scope_of(root).lookup(root.id)
    if found is None:
        return False
    if isinstance(model, ast.Attribute) and root.id == "self":
        return _is_set_here(file, model, at)
    if found[0] is not file.scope_of(at):
        return False
    others = [binding for binding in found[1] if not _is_same_model(binding, root.id, at)]
    return bool(others) and all(_makes(file, binding, at) for binding in others)


def _is_same_model(binding: object, name: str, at: ast.AST) -> bool:
    """Whether an assignment keeps the model that a name has: the wrapping itself, or `model = model.to(device)`."""
    value = binding.value if isinstance(binding, Assigned) else None
    if value is at or (isinstance(value, ast.IfExp) and at in (value.body, value.orelse)):
        return True
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        if value.func.attr not in _SAME:
            return False
        value = value.func.value
    return isinstance(value, ast.Name) and value.id == name


def _makes(file: File, binding: object, at: ast.AST) -> bool:
    """Whether a binding gives a name a model that is made in this function."""
    if isinstance(binding, Assigned):
        value = binding.value
        return isinstance(value, ast.Call) or is_made_here(file, value, at)
    if isinstance(binding, Opaque) and isinstance(binding.node, ast.For):
        return any(
            is_made_here(file, node, at)
            for node in ast.walk(binding.node.iter)
            if isinstance(node, ast.Name) and not _is_builtin(file, node)
        )
    return False


def _is_builtin(file: File, name: ast.Name) -> bool:
    return name.id in {"enumerate", "range", "list", "reversed", "zip"} and not file.scope_of(
        name
    ).lookup(name.id)


def _is_set_here(file: File, model: ast.Attribute, at: ast.AST) -> bool:
    """Whether `self.model` is given a new model above, in the same function."""
    text = ast.unparse(model)
    return any(
        isinstance(statement := file.parents.get(store), ast.Assign)
        and isinstance(statement.value, ast.Call)
        and file.function(store) is file.function(at)
        and store.lineno < getattr(at, "lineno", 0)
        and ast.unparse(store) == text
        for store in file.attributes.get(model.attr, ())
        if isinstance(store.ctx, ast.Store)
    )


def root_of(expression: ast.expr) -> ast.Name | None:
    """The name that a dotted or indexed expression begins with."""
    while isinstance(expression, ast.Attribute | ast.Subscript):
        expression = expression.value
    return expression if isinstance(expression, ast.Name) else None


def root_name(expression: ast.expr | None) -> str:
    """The name that an expression begins with; "" if it begins with none."""
    root = None if expression is None else root_of(expression)
    return "" if root is None else root.id


def _parameter(file: File, model: ast.expr) -> str | None:
    """The name of the parameter that a model is, if it is one of the function around it."""
    if not isinstance(model, ast.Name):
        return None
    function = file.function(model)
    names = (
        []
        if function is None
        else [a.arg for a in (*function.args.args, *function.args.kwonlyargs)]
    )
    return model.id if model.id in names else None


def callers(
    context: Context, file: File, function: ast.FunctionDef | ast.AsyncFunctionDef
) -> Iterator[tuple[File, ast.Call]]:
    """The calls of a function; of a method, every call of its name."""
    method = isinstance(file.parents[function], ast.ClassDef)
    for other, call in context.models.calls.get(function.name, ()):
        if isinstance(call.func, ast.Name | ast.Attribute):
            definition = context.program.definition(call.func, other)
            if (definition is not None and definition.node is function) or (
                method and definition is None and isinstance(call.func, ast.Attribute)
            ):
                yield other, call


def runs_once(
    context: Context, file: File, node: ast.AST, seen: frozenset[ast.AST] = frozenset()
) -> bool:
    """Whether the code at a node runs once in a process, as far as loops and calls show."""
    function = file.function(node)
    loops = (n for n in file.ancestors(node) if isinstance(n, _LOOPS))
    if any(file.function(loop) is function for loop in loops) or function in seen:
        return False
    if function is None:
        return True
    calls = list(callers(context, file, function))
    called = {call.func for _, call in calls}
    values = [load for load in file.loads.get(function.name, ()) if load not in called]
    started = all(_starts(file, load) for load in values)
    if len(calls) + len(values) > 1 or not started:
        return False
    return all(runs_once(context, f, call, seen | {function}) for f, call in calls)


def _starts(file: File, function: ast.Name) -> bool:
    """Whether a function is given to what starts processes: `mp.spawn(main)`."""
    parent = file.parents[function]
    call = file.parents[parent] if isinstance(parent, ast.keyword) else parent
    name = getattr(call, "func", None)
    started = getattr(name, "attr", getattr(name, "id", ""))
    return started in {"spawn", "Process", "start_processes", "launch", "run"}


def _passed(
    call: ast.Call, function: ast.FunctionDef | ast.AsyncFunctionDef, parameter: str
) -> ast.expr | None:
    names = [argument.arg for argument in function.args.args]
    for keyword in call.keywords:
        if keyword.arg == parameter:
            return keyword.value
    position = names.index(parameter) if parameter in names else len(call.args)
    position -= bool(names) and names[0] in {"self", "cls"}
    return call.args[position] if 0 <= position < len(call.args) else None


def _reads_before(file: File, call: ast.AST, function: ast.AST | None) -> bool:
    """Whether parameters of any model are read in the same function above a call, and kept."""
    line = getattr(call, "lineno", 0)
    loop = any(isinstance(n, _LOOPS) and file.function(n) is function for n in file.ancestors(call))
    return any(
        file.function(attribute) is function
        and (attribute.lineno < line or loop)
        and not is_looked_at(file, attribute)
        for name in _READERS[:2]
        for attribute in file.attributes.get(name, ())
    )


def is_looked_at(file: File, attribute: ast.Attribute) -> bool:
    """Whether parameters are only asked something: `sum(p.numel() for p in model.parameters())`."""
    call = file.parents[attribute]
    user = file.parents.get(call)
    if isinstance(user, ast.comprehension):
        whole: ast.AST = file.parents[user]
    elif isinstance(user, ast.For):
        whole = user
    else:
        return False
    target = user.target
    names = {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}
    return all(
        isinstance(file.parents[node], ast.Attribute | ast.Compare | ast.FormattedValue)
        for node in ast.walk(whole)
        if isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load)
    )


def model_classes(construction: Construction) -> list[Definition] | None:
    """The program's classes that the model can be an instance of; None if there may be others."""
    context, model = construction.context, construction.module
    if isinstance(model, ast.Call):
        values: list[ast.expr | None] = [model]
    elif isinstance(model, ast.Name):
        found = context.file.scope_of(model).lookup(model.id)
        bindings = found[1] if found else []
        others = [b for b in bindings if not _is_same_model(b, model.id, construction.call)]
        values = [getattr(binding, "value", None) for binding in others]
    else:
        return None
    classes = [_class_made(construction, value) for value in values]
    known = [cls for cls in classes if cls is not None]
    return known if known and len(known) == len(classes) else None


def _class_made(construction: Construction, value: ast.expr | None) -> Definition | None:
    """The class of the program that a call makes an instance of: `Net()`, `Net().to(device)`."""
    while isinstance(value, ast.Call) and getattr(value.func, "attr", "") in _SAME:
        assert isinstance(value.func, ast.Attribute)
        value = value.func.value
    if not isinstance(value, ast.Call):
        return None
    context = construction.context
    made = context.program.definition(value.func, context.file)
    return made if made is not None and isinstance(made.node, ast.ClassDef) else None


def is_of_another_class(construction: Construction, classes: list[ast.expr]) -> bool:
    """Whether the root is certainly an instance of none of some classes, so that a loop need not skip it."""
    context = construction.context
    wanted = {m for cls in classes for m in context.program.meanings(cls, context.file)}
    wanted_nodes = {meaning.node for meaning in wanted if isinstance(meaning, Definition)}
    roots = model_classes(construction)
    for cls in roots or ():
        if cls.node in wanted_nodes:
            return False
        for above in context.program.classes_above(cls):
            known = above == External("torch.nn.Module") or isinstance(above, Definition)
            if not known or getattr(above, "node", None) in wanted_nodes:
                return False
    return bool(roots)
