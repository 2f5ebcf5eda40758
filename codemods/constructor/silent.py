"""What would change in silence without FSDP1's wrapper: a search by name in the files that can get a model.

A model that is sharded in place has no wrapper around it: its names lack `_fsdp_wrapped_module`, its units have a class of
their own, and its first child is not the model itself. Code that is loud about that, or that the model answers, is not
searched for.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from fsdp_migrate.codemods.constructor.construction import Construction
from fsdp_migrate.codemods.constructor.unit_modules import named_classes
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.facts.file import File, last_name, place_of
from fsdp_migrate.facts.names import CLASS, fsdp1_name
from fsdp_migrate.facts.nodes import name_around
from fsdp_migrate.facts.program import Definition, External, Program
from fsdp_migrate.search import Search
from fsdp_migrate.source import is_test

_WRAPPED = "_fsdp_wrapped_module"
_CLASSES = ("FullyShardedDataParallel", "FSDP")
# By these words a file is looked at that does not mention FSDP itself.
_WORDS = (
    rb"_fsdp_wrapped_module|FullyShardedDataParallel|\.children\(|\.named_children\("
    rb"|\btype\([^()\n]+\)\s+(?:==|!=|(?:is|in|not in)\b)|\.__class__\s+(?:==|!=|(?:is|in|not in)\b)"
)
_NAMES = Search(rf"{_WRAPPED}|[\"'](?:{'|'.join(_CLASSES)})[\"']")
_SAFE = ("replace", "removeprefix", "lstrip", "strip", "sub", "getattr", "hasattr")


@dataclass(frozen=True)
class Hit:
    """One place, what it relies on, and the edit that removes that."""

    file: File
    node: ast.AST
    what: str
    edit: str

    def __str__(self) -> str:
        return f"{self.file.shown}:{place_of(self.node)[0]} {self.what} ({self.edit})"


def hits(construction: Construction) -> list[Hit]:
    """The places that rely on the wrapper of a constructor's model."""
    context = construction.context
    program = context.program
    reach = context.program.reach
    found: list[Hit] = []
    own = str(context.file.path)
    # What a test wraps stays in it; what other code wraps no test counts for.
    if is_test(own):
        paths = reach.below(own)
    else:
        paths = reach.of(context.file.path)
    for path in paths:
        if is_test(path) and path != own:
            continue
        here = program.once(_hits, path)
        found += [hit for hit, classes in here if _concerns(construction, classes)]
    return found


def _concerns(construction: Construction, classes: frozenset[str]) -> bool:
    """Whether a comparison with some classes is about a unit: of any class, unless the policy names its own."""
    named = {last_name(cls) for cls in named_classes(construction)}
    if construction.value("auto_wrap_policy") is None and classes:
        return False  # the root alone is a unit
    return not classes or not named or bool(classes & named)


def _hits(program: Program, path: str) -> list[tuple[Hit, frozenset[str]]]:
    """Those of a file, each with the classes that it is about; none for any."""
    looked = program.mentions(path) or path in program.tree.having(_WORDS)
    file = None
    if looked:
        file = program.load(path)
    if file is None:
        return []
    context = Context(file, program)
    every = [(each, frozenset[str]()) for each in (*_strings(context), *_children(context))]
    return [*every, *_types(context)]


def _strings(context: Context) -> Iterator[Hit]:
    file = context.file
    if not _NAMES(file.text):
        return
    for node in file.of(ast.Constant):
        text = node.value
        if not isinstance(text, str) or len(text) > 200:
            continue
        around = file.parents[node]
        if _WRAPPED in text and not isinstance(around, ast.Expr):
            if not is_taken_off(file, node):
                edit = "remove that part of the name"
                yield Hit(file, node, "looks for the name of FSDP1's wrapper", edit)
        elif text in _CLASSES and isinstance(around, ast.Compare):
            sides = [n for n in ast.walk(around) if isinstance(n, ast.expr) and _is_type(n)]
            test = "isinstance(model, FSDPModule)"
            if sides:
                test = _isinstance(context, around, sides[0], "FSDPModule")
            if sides or "__name__" in context.source(around):
                edit = f"write `{test}`"
                yield Hit(file, node, "compares the class name with FSDP1's", edit)


def is_taken_off(file: File, node: ast.Constant) -> bool:
    """Whether a string is taken off, which does nothing where it is not: `name.replace(prefix, "")`.

    Or the model answers it, as `getattr(model, "_fsdp_wrapped_module", model)`, or a list has the name without it, too.
    """
    call = file.parents[node]
    if isinstance(call, ast.Call):
        given = [value.value for value in call.args if isinstance(value, ast.Constant)]
        return last_name(call.func) in _SAFE or "" in given
    if isinstance(call, ast.List | ast.Tuple | ast.Set):
        others = [each.value for each in call.elts if isinstance(each, ast.Constant)]
        return str(node.value).replace(f"{_WRAPPED}.", "").replace(_WRAPPED, "") in others
    if isinstance(call, ast.Assign) and isinstance(call.targets[0], ast.Name):
        reads = file.reads(call.targets[0])
        calls = [file.parents[read] for read in reads]
        return bool(reads) and all(
            isinstance(each, ast.Call) and last_name(each.func) in _SAFE for each in calls
        )
    return False


def _children(context: Context) -> Iterator[Hit]:
    """`list(model.children())[0]`: the first child of a wrapper is the module in it."""
    file = context.file
    for name in ("children", "named_children"):
        for attribute in file.attributes.get(name, ()):
            around = file.parents[file.parents[attribute]]
            is_walked = isinstance(around, ast.For | ast.comprehension)
            if context.can_be_model(attribute.value) and not is_walked:
                edit = f"access the parts of `{context.source(attribute.value)}` by name"
                yield Hit(
                    file, attribute, "accesses parts by their position in FSDP1's wrapper", edit
                )


def _types(context: Context) -> Iterator[tuple[Hit, frozenset[str]]]:
    """`type(module) == Block`: a unit's class derives from Block."""
    file = context.file
    wrappers = {n for n, c in context.references.items() if c == CLASS}
    for compare in file.of(ast.Compare):
        sides = (compare.left, *compare.comparators)
        if len(sides) != 2 or isinstance(compare.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE):
            continue
        for side, other in (sides, sides[::-1]):
            if not _is_type(side):
                continue
            classes = frozenset(_modules(context, other))
            if not classes or _initializes(file, compare):
                continue
            test = _isinstance(context, compare, side, _tested(context, other, wrappers))
            edit = f"write `{test}`"
            what = f"compares the exact class with {', '.join(sorted(classes))}"
            if wrappers.intersection(ast.walk(other)):
                classes = frozenset()
            yield Hit(file, compare, what, edit), classes


def _isinstance(context: Context, compare: ast.Compare, side: ast.expr, tested: str) -> str:
    """What a comparison of the class of a module is, as a test for an instance."""
    module = side
    match side:
        case ast.Call(args=[of]) | ast.Attribute(value=of):
            module = of
    test = f"isinstance({context.source(module)}, {tested})"
    if isinstance(compare.ops[0], ast.NotEq | ast.IsNot | ast.NotIn):
        test = f"not {test}"
    return " ".join(test.split())


def _tested(context: Context, expression: ast.expr, wrappers: set[ast.expr]) -> str:
    """The classes of a comparison as `isinstance` takes them; FSDP1's is FSDPModule now."""
    classes = [expression]
    if isinstance(expression, ast.Tuple | ast.List | ast.Set):
        classes = expression.elts
    named = ["FSDPModule" if each in wrappers else context.source(each) for each in classes]
    if len(named) == 1:
        return named[0]
    return f"({', '.join(named)})"


def _is_type(side: ast.expr) -> bool:
    match side:
        case ast.Call(func=ast.Name(id="type"), args=[_]) | ast.Attribute(attr="__class__"):
            return True
    return False


def _modules(context: Context, expression: ast.expr) -> Iterator[str]:
    """The names of what may be classes of modules in an expression."""
    classes = [expression]
    if isinstance(expression, ast.Tuple | ast.List | ast.Set):
        classes = expression.elts
    for cls in classes:
        if isinstance(cls, ast.Name | ast.Attribute):
            meanings = context.program.meanings(cls, context.file)
            if meanings and all(_may_be_module(context, meaning) for meaning in meanings):
                yield last_name(cls)


def _may_be_module(context: Context, meaning: object) -> bool:
    if isinstance(meaning, External):
        is_fsdp1 = fsdp1_name(meaning.dotted) == CLASS
        of_torch = meaning.dotted.startswith("torch.nn.") and meaning.dotted != "torch.nn.Parameter"
        return is_fsdp1 or of_torch
    if not isinstance(meaning, Definition) or not isinstance(meaning.node, ast.ClassDef):
        return False
    above = context.program.classes_above(meaning)
    paths = [each.dotted for each in above if isinstance(each, External)]
    return any(p.startswith("torch.nn.") or p.partition(".")[0] not in _NO_MODULES for p in paths)


# Bases of what is no module.
_NO_MODULES = {
    *("abc", "argparse", "builtins", "collections", "dataclasses", "datetime", "decimal", "enum"),
    *("functools", "inspect", "logging", "os", "pathlib", "types", "typing", "unittest"),
    *("PIL", "numpy", "omegaconf", "pandas", "pydantic", "torch", "tqdm"),
}


def _initializes(file: File, node: ast.AST) -> bool:
    """Whether code runs before the model is wrapped: in `__init__`, or handed to `apply` by one."""
    function = file.function(node)
    if function is None or function.name == "__init__":
        return function is not None
    uses = (*file.loads.get(function.name, ()), *file.attributes.get(function.name, ()))
    return bool(uses) and all(_is_applied_in_init(file, file.parents[use]) for use in uses)


def _is_applied_in_init(file: File, call: ast.AST) -> bool:
    is_apply = isinstance(call, ast.Call) and last_name(call.func) == "apply"
    return is_apply and name_around(file, call) == "__init__"
