"""`isinstance(model, FSDP)`: the class of a model of `fully_shard` is `FSDPModule`."""

import ast
import re
from collections.abc import Iterable, Iterator

from fsdp_migrate.codemods.constructor.wrappers import in_place
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.edit.decided import decided, outermost
from fsdp_migrate.codemods.edit.text import Refused, comments_between
from fsdp_migrate.codemods.registry import codemod
from fsdp_migrate.codemods.rule import Edit, Found, Import, Rule
from fsdp_migrate.codemods.uses.both_classes import (
    branch_of_fsdp2,
    classes,
    holds,
    tells_both_apart,
    tests_of_fsdp2,
)
from fsdp_migrate.codemods.uses.guards import shards_itself
from fsdp_migrate.codemods.uses.wrappers import Selects, Walks
from fsdp_migrate.facts.file import File
from fsdp_migrate.facts.models import INNER, Models
from fsdp_migrate.facts.names import CLASS, TORCH
from fsdp_migrate.facts.program import Program
from fsdp_migrate.findings import Action, Severity

RULE = Rule("FSDP007", "isinstance")

_FIRST = (
    "This test is now true for every sharded model, so the branch for FSDP1's class below no longer runs. Test for "
    "FSDP1's class first."
)
_TOO = (
    "This test is now also true for the models that FSDP1's constructor used to wrap. Check that the code for FSDP2 "
    "suits them."
)
_ALWAYS_FALSE = (
    "This test skipped FSDP1's wrappers. FSDP2 has no separate wrapper, so it is always false now"
)
_BOTH = (
    "This test now matches the module itself, because there is no separate wrapper. The branch for other modules used to "
    "run for the module inside the wrapper and no longer does: run it here as well."
)
_FALSE = (
    "This test is false for models sharded by `fully_shard`, so they take the other branch now. If this branch is meant "
    "for them too, test for `FSDPModule` as well."
)
_FAILS = "This check fails for models sharded by `fully_shard`. Test for `FSDPModule` as well."
_TOGETHER = (
    "Still works: this test also names `FSDPModule`, the class of models sharded by `fully_shard`."
)
_OTHER_BRANCH = (
    "Unchanged: this test is false for models sharded by `fully_shard`, which take the branch for `FSDPModule` in line "
    "{}. Nothing has to be done."
)
_NOTHING_INSIDE = (
    "Unchanged: this test is false for models sharded by `fully_shard`, which have no wrapper to look into. Nothing has "
    "to be done."
)
_SECOND = re.compile(r"fsdp_?2", re.IGNORECASE)
_OF_ACCELERATE = ("prepare", "prepare_model", "extract_model_from_parallel", "unwrap_model")
_NOT_KNOWN = (
    "Accelerate recognizes only torch's FSDP1 here, so it may wrap this model again or fail to unwrap it. "
    "Let Accelerate shard the model, or do not pass it here."
)
_OF_COMPOSER = (
    "This test is about a model that Composer wraps: with FSDP2 if it is given an `FSDP2Config`, else with FSDP1. Test "
    "for `(FSDP, FSDPModule)`."
)


@codemod(words=("isinstance", "prepare", "extract_model", "unwrap_model"))
def find(context: Context) -> Iterator[Found]:
    """The class in tests, as `FSDPModule`: models are that in every form."""
    yield from _of_fsdp2(context)
    yield from _by_others(context)
    references = [node for node, name in context.references.items() if name == CLASS]
    if not references or not context.in_place:
        return
    of_wrappers = dict(_not_of_units(context, references))
    for reference, selects in of_wrappers.items():
        found = _of_wrappers(context, reference, selects)
        if found is not None:
            yield found
    about = [n for n in references if is_tested(context, n) and n not in of_wrappers]
    if context.program.once(tells_both_apart):
        yield from _false_now(context, about)
        return
    if context.program.once(_is_wrapped_by_composer, context.models):
        for reference in about:
            yield Found(RULE, reference, Action.MANUAL, _OF_COMPOSER)
        return
    if not all(context.means("FSDPModule", node, f"{TORCH}.FSDPModule") for node in about):
        return
    for reference in about:
        yield Found(
            RULE,
            reference,
            Action.REWRITE,
            "Replaced by `FSDPModule`, the class of every sharded module.",
            edits=lambda node=reference: [context.rename(node, "FSDPModule")],  # type: ignore[misc]
            imports=(Import(TORCH, "FSDPModule", reference),),
            removed=(reference,),
        )


def _not_of_units(
    context: Context, references: Iterable[ast.expr]
) -> Iterator[tuple[ast.expr, Selects]]:
    """The tests that met a wrapper and the module in it, and do not select the wrappers."""
    walks = Walks(context.models)
    file = context.file
    for reference in references:
        if not is_tested(context, reference):
            continue
        test = _test_of(file, reference)
        if walks.meets_both(test, file):
            selects = walks.selects(test, file)
            if selects is not Selects.UNITS:
                yield reference, selects


def _of_wrappers(context: Context, reference: ast.expr, selects: Selects) -> Found | None:
    """A test for wrappers among modules that a unit, which is both, must not pass or fail as it is."""
    test = _test_of(context.file, reference)
    if selects is Selects.BOTH:
        return Found(RULE, reference, Action.MANUAL, _BOTH)
    forms = in_place(context)
    if forms == {False}:
        return None  # every model stays in a wrapper
    is_among_others = context.file.parents[reference] is not test

    def edits() -> list[Edit]:
        if is_among_others:
            return [_without(context, test, reference)]
        return decided(context.file, test, answer=False)

    try:
        if False in forms:
            raise Refused("other models still have FSDP1's wrapper")
        edits()
    except Refused as refusal:
        message = f"{_ALWAYS_FALSE}. Remove it yourself: fsdp-migrate did not, because {refusal}."
        return Found(RULE, reference, Action.MANUAL, message)
    node: ast.AST = context.file.parents[outermost(context.file, test)]
    if not isinstance(node, ast.If):
        node = test
    removed: ast.expr = test
    if is_among_others:
        removed = reference
    return Found(
        RULE,
        node,
        Action.REWRITE,
        f"Removed: {_ALWAYS_FALSE[0].lower()}{_ALWAYS_FALSE[1:]}.",
        context.source(test),
        edits=edits,
        removed=(removed,),
        refused=Action.MANUAL,
    )


def _without(context: Context, test: ast.Call, reference: ast.expr) -> Edit:
    """`isinstance(module, (FSDP, DDP))` without one of its classes."""
    wanted = test.args[1]
    others = [context.source(each) for each in classes(wanted) if each is not reference]
    if comments_between(context.file, *context.file.span(wanted)):
        raise Refused("the test contains a comment")
    code = f"({', '.join(others)})"
    if isinstance(wanted, ast.BinOp):
        code = " | ".join(others)
    elif len(others) == 1:
        code = others[0]
    return context.replace(wanted, code)


def _false_now(context: Context, about: Iterable[ast.expr]) -> Iterator[Found]:
    """In torch's form, tests for FSDP1's class in a program that also asks for FSDP2's: no constructor makes such models."""
    if context.form != "torch":
        return
    of_both = tests_of_fsdp2(context.program, context.file)
    for reference in about:
        test = _test_of(context.file, reference)
        if test in of_both:
            yield Found(RULE, reference, Action.RUNTIME, _TOGETHER)
        else:
            yield _false(context, reference, test)


def _false(context: Context, reference: ast.expr, test: ast.Call) -> Found:
    """What comes of a test that no sharded model passes."""
    statement = context.file.statement(test)
    if (
        isinstance(statement, ast.Assert)
        and holds(context.program, statement.test, context.file) is False
    ):
        return Found(RULE, reference, Action.MANUAL, _FAILS, severity=Severity.RAISES)
    other = branch_of_fsdp2(context, test)
    if other is not None:
        message = _OTHER_BRANCH.format(other.lineno)
        return Found(RULE, reference, Action.RUNTIME, message)
    if _only_unwraps(statement, test):
        return Found(RULE, reference, Action.RUNTIME, _NOTHING_INSIDE)
    return Found(RULE, reference, Action.MANUAL, _FALSE)


def _only_unwraps(statement: ast.stmt, test: ast.Call) -> bool:
    """`if isinstance(layer, FSDP): layer = layer.module`."""
    match statement:
        case ast.If(asked, [ast.Assign(value=ast.Attribute(attr=part))], []):
            return asked is test and part in INNER
    return False


def _is_wrapped_by_composer(program: Program, models: Models) -> bool:
    """Whether a program imports Composer and wraps no model itself."""
    statements = [each for file in program.files for each in file.of(ast.ImportFrom)]
    packages = {(each.module or "").partition(".")[0] for each in statements}
    return "composer" in packages and not any(map(models.constructors, program.files))


def _of_fsdp2(context: Context) -> Iterator[Found]:
    """Tests for FSDP2's class that come before one for FSDP1's, or have none of it above them."""
    if context.program.goes_on and context.program.calls("like_fsdp1"):
        return  # an earlier run wrote them
    if not context.models.shards(context.file):
        return
    for call in tests_of_fsdp2(context.program, context.file):
        if _names_fsdp1(context, call):
            continue
        below = [n for a in context.file.ancestors(call) for n in _ways_below(a, call)]
        if CLASS in map(context.fsdp1, below):
            yield Found(RULE, call, Action.MANUAL, _FIRST)
        elif _decides_alone(context, call):
            yield Found(RULE, call, Action.MANUAL, _TOO)


def _names_fsdp1(context: Context, test: ast.AST) -> bool:
    return any(context.fsdp1(n) == CLASS for n in ast.walk(test) if isinstance(n, ast.expr))


def _decides_alone(context: Context, call: ast.Call) -> bool:
    """Whether a model of FSDP1's constructors can come to a test for FSDP2's class that no test for FSDP1's is above."""
    file = context.file
    function = context.file.function(call)
    around = [n for n in (call, *file.ancestors(call)) if isinstance(n, ast.stmt)]
    tests = [n.test for n in around if isinstance(n, ast.If) and call not in ast.walk(n.test)]
    for statement in around:
        block = file.block(statement)
        tests += [n.test for n in block[: block.index(statement)] if isinstance(n, ast.If)]
    if any(_names_fsdp1(context, test) for test in tests):
        return False
    if not context.program.once(shards_itself):
        return False
    name = ""
    if function is not None:
        name = function.name
    if name.lstrip("_").startswith("is_"):  # asked of any model
        return True
    is_of_fsdp2 = _SECOND.search(name) or _SECOND.search(file.path.stem)
    return not is_of_fsdp2 and context.models.sharded(call.args[0], file) is not False


def _ways_below(parent: ast.AST, call: ast.Call) -> Iterator[ast.expr]:
    """The classes that are asked for where a test is false: by `elif`, or behind a block that ends."""
    if not isinstance(parent, ast.If | ast.IfExp) or call not in ast.walk(parent.test):
        return
    below: list[ast.AST] = []
    if isinstance(parent, ast.If):
        below += parent.orelse
    else:
        below.append(parent.orelse)
    for part in below:
        for each in ast.walk(part):
            if isinstance(each, ast.If | ast.IfExp | ast.While | ast.Assert):
                names = [n for n in ast.walk(each.test) if isinstance(n, ast.Name | ast.Attribute)]
                yield from names


def _by_others(context: Context) -> Iterator[Found]:
    """A sharded model that is given to Accelerate, whose tests for FSDP1 know torch's class alone."""
    if "accelerat" not in context.file.text:
        return
    for name in _OF_ACCELERATE:
        for call in context.file.calls.get(name, ()):
            if any(map(context.can_be_model, call.args)):
                yield Found(RULE, call, Action.MANUAL, _NOT_KNOWN, f"{name}(...)")


def _test_of(file: File, reference: ast.expr) -> ast.Call:
    return next(each for each in file.ancestors(reference) if isinstance(each, ast.Call))


def is_tested(context: Context, reference: ast.expr) -> bool:
    """Whether a reference is among the classes of `isinstance`."""
    for around in context.file.ancestors(reference):
        match around:
            case ast.Tuple() | ast.BinOp(op=ast.BitOr()):
                continue
            case ast.Call(func=ast.Name(id="isinstance"), args=[_, wanted]):
                return reference in classes(wanted)
        return False
    return False
