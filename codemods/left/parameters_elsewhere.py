"""Calls that give a model, or its parameters, to code of a file without FSDP in it, which uses them as tensors."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache

from fsdp_migrate.codemods.context import Context, shortened
from fsdp_migrate.codemods.left import clip_local_norm, parameters
from fsdp_migrate.codemods.left.parameters import NORM, PLAIN, RULE, SHAPE, SHAPES, decides, shapes
from fsdp_migrate.codemods.left.taken import holds, taken
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.facts.file import File, last_name, root_of, values_given
from fsdp_migrate.facts.program import Definition
from fsdp_migrate.facts.scopes import Imported
from fsdp_migrate.findings import Action

RULES: tuple[Rule, ...] = ()  # the rule is that of `parameters`

_GROUPING = re.compile(r"optim|param|group|decay")
# A function of such a name may come from any file; one of another name from a file with such words.
_LIKELY = re.compile(r"optim|param|group|decay|[Nn]orm|[Gg]rad|[Cc]lip")
_ASKS = re.compile(
    rb"\.(?:norm|sum|mean|max|min|n?dim|numel|named_parameters)\b|len\(\w+\.shape|all_reduce|clip_grad_norm_|[(*=](?:p|param|grad)\w*\.(?:\w+\.)?s(?:hape|ize)"
)
_DEFINED = re.compile(rb"^([ \t]*)(?:async )?(?:def|class) (\w+)", re.ASCII | re.MULTILINE)
_DIMENSIONS = re.compile(rb"\.n?dim\b|len\(\w+\.shape")


def find(context: Context) -> Iterator[Found]:
    """The calls, with what is done there."""
    for call in _methods(context):
        yield Found(RULE, call, Action.MANUAL, f"in {last_name(call.func)}: {SHAPE}")
    files: dict[File, list[Found]] = {}
    for call, made, of_model in _calls(context):
        rule, message = _done_in(context, call, made, files, of_model=of_model)
        if message:
            yield Found(rule, call, Action.MANUAL, message)


def _calls(context: Context) -> Iterator[tuple[ast.Call, Definition, bool]]:
    """The calls of functions and classes elsewhere, and whether they are given the model."""
    program, file = context.program, context.file
    asking = {name for path in _imported(context) for name in _asking(program.data(path))}
    named = (n for n in file.calls if n in asking or _LIKELY.search(n))
    for call in (call for name in named for call in file.calls[name]):
        if not _is_imported(context, call):
            continue
        values = values_given(call)
        of_model = any(holds(context.models, value, file) for value in values)
        if of_model or any(taken(context).are_parameters(value, file) for value in values):
            made = program.definition(call.func, file)
            if made is not None and made.file not in program.files:
                yield call, made, of_model


def _done_in(
    context: Context,
    call: ast.Call,
    made: Definition,
    files: dict[File, list[Found]],
    *,
    of_model: bool,
) -> tuple[Rule, str]:
    """What a function, or an optimizer's class, does with what it is given, by its rule; "" for nothing."""
    name, file = last_name(call.func), made.file
    if isinstance(made.node, ast.ClassDef) and not of_model:
        nodes = (node for each in ("norm", "mean", "sum") for node in file.attributes.get(each, ()))
        if any(file.enclosing_class(node) is made.node for node in nodes):
            return RULE, f"{name} takes norms or means, and now {NORM}"
        shaped = (node for node in shapes(file) if file.enclosing_class(node) is made.node)
        return RULE, f"{name} makes tensors by shape: {PLAIN}" if any(shaped) else ""
    if file not in files:
        there = Context(file, context.program)
        files[file] = [*parameters.find(there), *clip_local_norm.find(there)]
    found = next((f for f in files[file] if made.node in file.ancestors(f.node)), None)
    if found is None:
        below = _parted_below(context, made)
        return RULE, below and f"in {name}, {below}: {SHAPE}"
    construct = found.construct or shortened(file.source(found.node))
    return found.rule, f"in {name}, {construct}: {found.message}"


def _parted_below(context: Context, made: Definition) -> str:
    """The function, also of a file without FSDP in it, to which one gives something that is parted there by its dimensions."""
    program = context.program
    for call in (n for n in ast.walk(made.node) if isinstance(n, ast.Call) and n.args):
        name = last_name(call.func)
        inner = program.definition(call.func, made.file) if _GROUPING.search(name) else None
        if inner is not None and inner.file not in program.files:
            nodes = (n for each in SHAPES for n in inner.file.attributes.get(each, ()))
            if any(decides(inner.file, n) and inner.node in inner.file.ancestors(n) for n in nodes):
                return name
    return ""


def _methods(context: Context) -> Iterator[ast.Call]:
    """The calls of a model's own method, of a file without FSDP in it, that parts parameters by their dimensions."""
    asking = [path for path in _imported(context) if _DIMENSIONS.search(context.program.data(path))]
    for method in filter(_GROUPING.search, context.file.attributes) if asking else ():
        if any(_parts_by_dimensions(context, path, method) for path in asking):
            for attribute in context.file.attributes[method]:
                call = context.file.parents[attribute]
                if isinstance(call, ast.Call) and call.func is attribute:
                    if holds(context.models, attribute.value, context.file):
                        yield call


def _parts_by_dimensions(context: Context, path: str, method: str) -> bool:
    """Whether a file has a method of that name that decides by dimensions."""
    text = context.program.data(path)
    file = context.program.load(path) if f"def {method}".encode() in text else None
    return file is not None and any(
        getattr(file.function(attribute), "name", "") == method and decides(file, attribute)
        for name in SHAPES
        for attribute in file.attributes.get(name, ())
    )


@lru_cache(maxsize=256)  # a file may be imported by many
def _asking(text: bytes) -> frozenset[str]:
    """The functions and classes of a file whose text asks tensors what sharded ones answer otherwise."""
    found = list(_DEFINED.finditer(text)) if _ASKS.search(text) else []
    names = set()
    for number, each in enumerate(found):
        behind = (m.start() for m in found[number + 1 :] if len(m[1]) <= len(each[1]))
        if _ASKS.search(text, each.end(), next(behind, len(text))):
            names.add(each[2].decode())
    return frozenset(names)


def _is_imported(context: Context, call: ast.Call) -> bool:
    """Whether a call is of something that comes from a file of the program without FSDP in it."""
    program, file, root = context.program, context.file, root_of(call.func)
    return any(
        (path := program.locate(module, file.folder)) is not None and not program.mentions(path)
        for binding in (file.bindings(root) if root else ())
        if isinstance(binding, Imported)
        for module in (binding.module, f"{binding.module}.{binding.member}")
    )


def _imported(context: Context) -> list[str]:
    """The files that a file imports names from, but for those that are analysed themselves."""
    program, file = context.program, context.file
    modules = {
        binding.module
        for bindings in file.scope.bindings.values()
        for binding in bindings
        if isinstance(binding, Imported)
    }
    paths = {program.locate(module, file.folder) for module in modules}
    return sorted(path for path in paths if path is not None and not program.mentions(path))
