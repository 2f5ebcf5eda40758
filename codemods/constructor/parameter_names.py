"""Whether a program can notice FSDP1's wrapper in the names of parameters and modules.

A plain model's names lack `_fsdp_wrapped_module.`. That does not show where a part of a name is looked for (`"bias" in name`),
where the wrapper's part is taken off, or where names of one model are keys for those of another.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.facts.file import File, last_name

NAMED = ("named_parameters", "named_modules", "named_children", "named_buffers")
_PREFIX = "_fsdp_wrapped_module"


def is_safe(file: File, named: ast.Attribute) -> bool:
    """Whether the names that `model.named_parameters` gives are used in no way that tells a wrapper."""
    call = file.parents[named]
    if not isinstance(call, ast.Call):
        return False
    user = file.parents[call]
    if isinstance(user, ast.For | ast.comprehension):
        return _is_safe_in_loop(file, user)
    target = _table(file, call)
    return target is not None and _is_safe_table(file, target)


def is_summoned(file: File, named: ast.Attribute) -> bool:
    """Whether names are read inside of `summon_full_params` of their model, where FSDP1's have no prefix.

    Source: `FullyShardedDataParallel.named_parameters` and `named_buffers`.
    """
    if named.attr not in ("named_parameters", "named_buffers"):
        return False
    user = file.parents[file.parents[named]]
    if not isinstance(user, ast.For | ast.comprehension):
        return False  # a generator may run later, and elsewhere
    if isinstance(file.parents[user], ast.GeneratorExp):
        return False
    model = ast.unparse(named.value)
    items = (i for n in file.ancestors(named) if isinstance(n, ast.With) for i in n.items)
    return any(
        isinstance(item.context_expr, ast.Call)
        and last_name(item.context_expr.func) == "summon_full_params"
        and [ast.unparse(argument) for argument in item.context_expr.args[:1]] == [model]
        for item in items
    )


def is_prefix_taken_off(file: File, node: ast.AST) -> bool:
    """Whether a string is taken off, which does nothing where it is not: `name.replace(prefix, "")`."""
    call = file.parents[node]
    return isinstance(call, ast.Call) and getattr(call.func, "attr", "") in {
        "replace",
        "removeprefix",
    }


def _is_safe_in_loop(file: File, loop: ast.For | ast.comprehension) -> bool:
    target = loop.target
    name = getattr(target.elts[0], "id", None) if isinstance(target, ast.Tuple) else None
    if name is None or not isinstance(target, ast.Tuple) or len(target.elts) != 2:
        return False
    whole = file.parents[loop] if isinstance(loop, ast.comprehension) else loop
    cleaned = [
        statement.lineno
        for statement in getattr(loop, "body", ())
        if isinstance(statement, ast.Assign)
        and getattr(statement.targets[0], "id", "") == name
        and _is_cleaned(statement.value)
    ]
    return all(
        (cleaned and use.lineno >= cleaned[0]) or _is_safe_use(file, use)
        for use in _loads(whole, name)
    )


def _is_cleaned(value: ast.expr) -> bool:
    """Whether a value is a name without the parts of wrappers: `".".join(x for x in name.split(".") if x[0] != "_")`."""
    if isinstance(value, ast.Call) and getattr(value.func, "attr", "") == "replace":
        first = value.args[0] if value.args else None
        return isinstance(first, ast.Constant) and str(first.value).startswith(_PREFIX)
    parts = value.args[0] if isinstance(value, ast.Call) and value.args else None
    if getattr(getattr(value, "func", None), "attr", "") != "join":
        return False
    if not isinstance(parts, ast.GeneratorExp | ast.ListComp) or len(parts.generators) != 1:
        return False
    kept = parts.generators[0]
    same = isinstance(parts.elt, ast.Name) and parts.elt.id == getattr(kept.target, "id", "")
    texts = {ast.unparse(test).replace("'", '"') for test in kept.ifs}
    return same and f'not {ast.unparse(kept.target)}.startswith("_")' in texts


def _is_safe_use(file: File, name: ast.Name) -> bool:
    """Whether one use of a name cannot tell a wrapper in it: `"bias" in name`."""
    parent = file.parents[name]
    if isinstance(parent, ast.Compare) and len(parent.ops) == 1:
        part = parent.left.value if isinstance(parent.left, ast.Constant) else None
        inside = isinstance(parent.ops[0], ast.In | ast.NotIn) and parent.comparators[0] is name
        return inside and isinstance(part, str) and "." not in part.strip(".")
    call = file.parents[parent]  # name.replace("_fsdp_wrapped_module.", "")
    return isinstance(call, ast.Call) and _is_cleaned(call)


def _table(file: File, call: ast.Call) -> ast.Name | None:
    """`params` in `params = dict(model.named_parameters())`."""
    made = file.parents[call]
    statement = file.parents.get(made)
    if not isinstance(made, ast.Call) or getattr(made.func, "id", "") not in {
        "dict",
        "OrderedDict",
    }:
        return None
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    target = statement.targets[0]
    return target if isinstance(target, ast.Name) and file.function(target) is not None else None


def _is_safe_table(file: File, table: ast.Name) -> bool:
    """Whether the keys of a table meet only the keys of such tables, as in an average of a model's parameters."""
    function = file.function(table)
    assert function is not None
    tables = {
        each.id
        for name in NAMED
        for named in file.attributes.get(name, ())
        if file.function(named) is function and isinstance(call := file.parents[named], ast.Call)
        if (each := _table(file, call)) is not None
    }
    return all(_is_safe_read(file, use, tables) for use in _loads(function, table.id))


def _is_safe_read(file: File, use: ast.Name, tables: set[str]) -> bool:
    parent = file.parents[use]
    if isinstance(parent, ast.Subscript):
        key = getattr(parent.slice, "id", None)
        loops = [each for each in file.ancestors(use) if isinstance(each, ast.For)]
        return parent.value is use and any(
            key in {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
            and any(isinstance(n, ast.Name) and n.id in tables for n in ast.walk(loop.iter))
            for loop in loops
        )
    if not isinstance(parent, ast.Attribute):
        return False
    call = file.parents[parent]
    user = file.parents.get(call)
    if parent.attr == "values":
        return True
    if parent.attr == "keys":  # set(a.keys()) == set(b.keys())
        around = file.parents.get(user) if isinstance(user, ast.Call) else user
        return isinstance(around, ast.Compare) and all(
            isinstance(n.ctx, ast.Load) and n.id in tables | {"set"}
            for n in ast.walk(around)
            if isinstance(n, ast.Name)
        )
    target = user.target if isinstance(user, ast.For) else None
    if parent.attr != "items" or not isinstance(target, ast.Tuple) or len(target.elts) != 2:
        return False
    name = getattr(target.elts[0], "id", "")
    assert isinstance(user, ast.For)
    return all(
        isinstance(file.parents[each], ast.Subscript)
        and getattr(file.parents[each].value, "id", "") in tables  # type: ignore[attr-defined]
        for each in _loads(user, name)
    )


def _loads(around: ast.AST, name: str) -> Iterator[ast.Name]:
    for node in ast.walk(around):
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
            yield node
