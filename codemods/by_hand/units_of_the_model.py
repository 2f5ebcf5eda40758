"""What the class of a model does that the class of a unit cannot: that one derives from it, and no wrapper is around it.

`fully_shard` makes a class of each unit's, in front of which are FSDP2's methods. And a unit that a method other than forward
runs was a root of FSDP1, which cast its inputs. `like_fsdp1` keeps both as they were, but for what asks `type(self)`.
"""

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from fsdp_migrate.codemods.constructor.construction import Construction, constructions
from fsdp_migrate.codemods.constructor.from_units import is_block
from fsdp_migrate.codemods.constructor.model_classes import classes, classes_of_model
from fsdp_migrate.codemods.constructor.unit_modules import named_classes
from fsdp_migrate.codemods.context import Context, shortened
from fsdp_migrate.codemods.registry import codemod
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.facts.file import File, place_of
from fsdp_migrate.facts.nodes import any_is
from fsdp_migrate.facts.program import Definition, Program, is_module
from fsdp_migrate.findings import Action, Severity
from fsdp_migrate.source import is_test

RULE = Rule("FSDP530", "class-of-a-unit")

# FSDP2's methods, of which a model may have one of its own.
NAMES = {
    *("reshard", "unshard", "reset_iter_state", "set_all_reduce_hook", "set_custom_all_gather"),
    *("set_custom_reduce_scatter", "set_gradient_divide_factor", "set_is_last_backward"),
    *(
        "set_modules_to_backward_prefetch",
        "set_modules_to_forward_prefetch",
        "set_post_optim_event",
    ),
    *("set_reduce_scatter_divide_factor", "set_requires_all_reduce", "set_requires_gradient_sync"),
    *("set_reshard_after_backward", "set_reshard_after_forward", "set_unshard_in_backward"),
}
_WORDS = (
    rb"__init_subclass__|\b(?:un|re)shard\b|\bset_(?:requires|reshard|modules)_"
    rb"|\b(?:self\.__class__|type\(self\))(?:, *self\)|\.(?:__bases?__|__mro__|mro\())"
)

_KEYWORD = (
    "This class raises when a module of it is sharded: `fully_shard` derives a new class from it and does not pass `{}`. "
    "Give that argument a default value."
)
_HIDDEN = "This method is hidden by FSDP2's method of the same name on each sharded module. Rename the model's own method."
_BASE = (
    "This calls itself without end, because `fully_shard` derives a new class from each unit's class. Write `super()` "
    "without arguments."
)
_BASES = (
    "This now begins with FSDP2's class and the model's own class; the base class comes after them. Write `super()` "
    "without arguments."
)
_CASTS = (
    "This runs units outside the model's forward. FSDP1 cast their inputs to low precision there, FSDP2 does not: remove "
    "`cast_forward_inputs=False` from their policy."
)


@codemod()
def find(context: Context) -> Iterator[Found]:
    """Places in the classes of units, where the constructor can reach them, and calls of methods that run units."""
    if not context.in_place:
        return
    sharded = [*map(_of_constructor, constructions(context)), *_of_earlier_runs(context)]
    for each in sharded:
        for file, node, message in _of_units(context, each):
            if message is _HIDDEN:
                severity = Severity.SILENT
            else:
                severity = Severity.RAISES
            if file is context.file:
                construct = shortened(file.source(node))
                yield Found(RULE, node, Action.MANUAL, message, construct, severity=severity)
            else:
                place = f"{file.shown}:{place_of(node)[0]}"
                yield Found(RULE, each.node, Action.MANUAL, f"In {place}: {message}", "fully_shard")
    if context.form == "torch" and any(each.is_low for each in sharded):
        for call in _run_by_methods(context):
            yield Found(RULE, call, Action.MANUAL, _CASTS)


@dataclass(frozen=True)
class Sharded:
    """A model and its units.

    Attributes:
        node: where they are sharded.
        classes: those of the model and of its units, as far as they are named.
        any_class: whether modules of any class can be units.
        is_low: whether units have dtypes of their own.
    """

    node: ast.AST
    classes: Collection[ast.AST]
    any_class: bool
    is_low: bool


def _of_constructor(construction: Construction) -> Sharded:
    context = construction.context
    named = named_classes(construction)
    known = {cls.node for cls in classes_of_model(construction)}
    known |= {cls.node for name in named for cls in classes(context, name)}
    has_policy = construction.value("auto_wrap_policy") is not None
    is_low = construction.value("mixed_precision") is not None
    return Sharded(construction.call, known, has_policy and not named, is_low)


def _of_earlier_runs(context: Context) -> Iterator[Sharded]:
    """What an earlier run has sharded under `like_fsdp1`, in torch's form, without FSDP1's arguments."""
    if not context.program.goes_on:
        return
    for block in context.file.of(ast.With):
        if not is_block(context, block):
            continue
        call = block.items[0].context_expr
        assert isinstance(call, ast.Call)
        inside = [*ast.walk(block)]
        tests = [ast.unparse(each.func) for each in inside if isinstance(each, ast.Call)]
        names = [each for each in inside if isinstance(each, ast.Name | ast.Attribute)]
        known = {cls.node for name in names for cls in classes(context, name)}
        known |= {cls.node for cls in classes_of_model(Construction(context, call, ""))}
        has_loop = any_is(inside, ast.For)
        is_low = any(isinstance(each, ast.keyword) and each.arg == "mp_policy" for each in inside)
        yield Sharded(block, known, has_loop and "isinstance" not in tests, is_low)


Place = tuple[File, ast.AST, str]


def _of_units(context: Context, sharded: Sharded) -> Iterator[Place]:
    """What the classes of a constructor's units do, as far as names lead to them."""
    for path in context.program.reach.of(context.file.path):
        if is_test(path):
            continue
        for cls, place in context.program.once(_places, path):
            is_derived = context.form == "torch" or _asks_type(place[1])
            if is_derived and (cls in sharded.classes or sharded.any_class):
                yield place


def _places(program: Program, path: str) -> list[tuple[ast.ClassDef, Place]]:
    """Those of a file, each with its class, a module's."""
    looked = path in program.tree.having(_WORDS)
    file = None
    if looked:
        file = program.load(path)
    if file is None:
        return []
    return [
        (cls, (file, node, message))
        for cls in file.of(ast.ClassDef)
        if is_module(program, Definition(file, cls))
        for node, message in _in_class(file, cls)
    ]


def _in_class(file: File, cls: ast.ClassDef) -> Iterator[tuple[ast.AST, str]]:
    for member in cls.body:
        if not isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if member.name == "__init_subclass__":
            given = zip(member.args.kwonlyargs, member.args.kw_defaults, strict=True)
            for keyword in [keyword.arg for keyword, default in given if default is None]:
                yield member, _KEYWORD.format(keyword)
        elif member.name in NAMES:
            yield member, _HIDDEN
        for node in ast.walk(member):
            if member.name != "__init__" and _is_base_of_self(node):
                message = _BASES
                if isinstance(node, ast.Call):
                    message = _BASE
                yield node, message
            elif _part(node) in NAMES and _is_result_of_call(file.parents[node]):
                # `self.reshard = nn.Linear(...)` is a part of the model; other values are not hidden.
                yield node, _HIDDEN


def _is_result_of_call(statement: ast.AST) -> bool:
    return isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call)


def _is_base_of_self(node: ast.AST) -> bool:
    cls = _class_asked_for_a_base(node)
    return cls is not None and ast.unparse(cls) in ("self.__class__", "type(self)")


def _class_asked_for_a_base(node: ast.AST) -> ast.expr | None:
    """`cls` of `super(cls, self)`, `cls.__bases__` and the like."""
    match node:
        case ast.Call(ast.Name("super"), [cls, _]):
            return cls
        case ast.Attribute(cls, "__base__" | "__bases__" | "__mro__" | "mro"):
            return cls
    return None


def _asks_type(node: ast.AST) -> bool:
    return isinstance(_class_asked_for_a_base(node), ast.Call)


def _part(node: ast.AST) -> str:
    """The name that is set in `self.image = ...`; empty for anything else."""
    match node:
        case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
            return name
    return ""


def _run_by_methods(context: Context) -> Iterator[ast.Call]:
    """`model.encode_image(x)`, where that method calls parts of the model, and no forward of it."""
    called = {ast.unparse(call.func) for call in context.file.of(ast.Call)}
    for method in {name for file in context.program.files for name in _running_parts(file)}:
        for attribute in context.file.attributes.get(method, ()):
            call = context.call_of(attribute)
            model = attribute.value
            # A model that is called first has no other roots.
            if call is not None and ast.unparse(model) not in called:
                if context.can_be_model(model):
                    yield call


def _running_parts(file: File) -> Iterator[str]:
    """The methods of a file's classes that call what is no method of the class: `self.image(x)`."""
    for cls in file.of(ast.ClassDef):
        methods = {each.name: each for each in cls.body if isinstance(each, ast.FunctionDef)}
        if "__init__" not in methods:
            continue
        parts = {_part(each) for each in ast.walk(methods["__init__"])}
        for name, method in methods.items():
            calls = [each.func for each in ast.walk(method) if isinstance(each, ast.Call)]
            called = {each.attr for each in calls if isinstance(each, ast.Attribute)}
            if not name.startswith("_") and name != "forward" and called & parts - methods.keys():
                yield name
