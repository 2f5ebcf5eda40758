"""Which classes units of a program's models can be of: a unit of FSDP1 was found as its wrapper, which is of no such class."""

import ast
from collections.abc import Iterator
from typing import NamedTuple

from fsdp_migrate.codemods.constructor.construction import DIRECT, Construction, constructions
from fsdp_migrate.codemods.constructor.model_classes import classes
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.facts.file import last_name, words_in
from fsdp_migrate.facts.names import CLASS
from fsdp_migrate.facts.nodes import any_below, any_is
from fsdp_migrate.facts.origins import Value
from fsdp_migrate.facts.program import Definition, Program, is_module

_OF_CLASSES = ("ModuleWrapPolicy", "transformer_auto_wrap_policy", "_module_wrap_policy")
_OF_ANY = ("always_wrap_policy", "size_based_auto_wrap_policy", "default_auto_wrap_policy")


class Units(NamedTuple):
    """The classes of units.

    Attributes:
        names: those that policies name.
        any_own: whether units can be of any class of the program's.
        any_class: whether also of torch's.
    """

    names: frozenset[str]
    any_own: bool = False
    any_class: bool = False


def may_be_unit(context: Context, cls: ast.expr) -> bool:
    """Whether a unit can be an instance of a class, or of one of several."""
    return any(_may_be_unit(context, each) for each in _classes(context, cls))


def may_be_named(context: Context, name: str) -> bool:
    """Whether a unit can be of a class of a name."""
    units = context.program.once(_units)
    if name in units.names:
        return True
    if not units.any_own:
        return False
    own = [cls.name for file in context.program.files for cls in file.of(ast.ClassDef)]
    return name in own


def _classes(context: Context, cls: ast.expr) -> Iterator[ast.expr]:
    """The classes of `(Block, Head)`, of `Block | Head`, and of a name for them."""
    made = None
    if isinstance(cls, ast.Name):
        made = context.value(cls)
    if made is not None and isinstance(made.node, ast.Tuple | ast.BinOp):
        cls = made.node
    if isinstance(cls, ast.Tuple):
        for each in cls.elts:
            yield from _classes(context, each)
    elif isinstance(cls, ast.BinOp):
        yield from _classes(context, cls.left)
        yield from _classes(context, cls.right)
    elif isinstance(cls, ast.Name | ast.Attribute):
        yield cls


def _may_be_unit(context: Context, cls: ast.expr) -> bool:
    paths = context.dotted(cls)
    if context.fsdp1(cls) == CLASS or "torch.nn.Module" in paths:
        return False
    units = context.program.once(_units)
    if units.any_class and any_below(paths, "torch.nn."):
        return True
    if units.any_own and any(is_module(context.program, each) for each in classes(context, cls)):
        return True
    return not units.names.isdisjoint(_related(context, cls))


def _related(context: Context, cls: ast.expr) -> set[str]:
    """The names of a class, of those above it, and of those of the program that derive from it."""
    found = {last_name(cls)}
    found |= {each.node.name for each in classes(context, cls)}
    for file in context.program.files:
        for other in file.of(ast.ClassDef):
            if not other.bases:
                continue
            above = context.program.classes_above(Definition(file, other))
            names = [each.node.name for each in above if isinstance(each, Definition)]
            if last_name(cls) in names:
                found.add(other.name)
    return found


def _units(program: Program) -> Units:
    """The classes that the constructors of a run show."""
    found = Units(frozenset())
    for file in program.files:
        for construction in constructions(Context(file, program)):
            names, any_own, any_class = _of_constructor(construction)
            found = Units(
                found.names | names, found.any_own or any_own, found.any_class or any_class
            )
    return found


def _of_constructor(construction: Construction) -> Units:
    value = construction.value("auto_wrap_policy")
    if value is None:
        return _of_part(construction)
    flow = construction.flow(value)
    units = [_of_policy(construction, end) for end in flow.ends]
    names = frozenset[str]().union(*[each.names for each in units])
    return Units(
        names,
        flow.unknown or any(each.any_own for each in units),
        any(each.any_class for each in units),
    )


def _of_policy(construction: Construction, policy: Value) -> Units:
    """The classes of `ModuleWrapPolicy({Block})`; of another policy, any."""
    words = frozenset(words_in(policy.node))
    if isinstance(policy.node, ast.Constant):
        return Units(frozenset())
    if not words.isdisjoint(_OF_ANY):
        return Units(words, any_own=True, any_class=True)
    is_literal = any_is(ast.walk(policy.node), ast.Set | ast.Tuple | ast.List)
    is_of_classes = not words.isdisjoint(_OF_CLASSES) and is_literal
    return Units(words, any_own=not is_of_classes)


def _of_part(construction: Construction) -> Units:
    """Without a policy, the class of the module that is wrapped, which may be a part of another."""
    if construction.kind != DIRECT or construction.unseen:
        return Units(frozenset(), any_own=True)
    module = construction.module
    if not isinstance(module, ast.Call):
        return Units(frozenset())
    named = classes(construction.context, module.func)
    return Units(frozenset(each.node.name for each in named))
