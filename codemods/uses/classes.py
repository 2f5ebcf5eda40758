"""`isinstance(model, FSDP)` and annotations: the class of a plain model is `FSDPModule`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Edit, Found, Import, Rule
from fsdp_migrate.facts.file import File
from fsdp_migrate.facts.names import CLASS, TORCH
from fsdp_migrate.facts.program import Program
from fsdp_migrate.findings import Action

RULE = Rule("FSDP007", "isinstance")
RULES = (RULE,)

_FIRST = "is true for every sharded model now, so that the branch for FSDP1's class below is not taken: ask for that first"
_OF_ACCELERATE = ("prepare", "prepare_model", "extract_model_from_parallel", "unwrap_model")
_NOT_KNOWN = "Accelerate asks for torch's FSDP1, which a model on FSDP2 is not: it may wrap it again, or not unwrap it"


def find(context: Context) -> Iterator[Found]:
    """The class in tests and annotations, as `FSDPModule`: models are that in every form."""
    yield from _of_fsdp2(context)
    yield from _by_others(context)
    references = [node for node, name in context.references.items() if name == CLASS]
    if not references or not context.plain or context.program.once(_tells_both_apart):
        return
    about = [n for n in references if is_tested(context, n) or context.is_annotation(n)]
    about += [node for node, name in context.quoted.items() if name == CLASS]
    free = all(context.means("FSDPModule", node, f"{TORCH}.FSDPModule") for node in about)
    if not free or any(is_tested(context, n) and _passes_over(context.file, n) for n in about):
        return
    for reference in about:
        yield Found(
            RULE,
            reference,
            Action.REWRITE,
            "becomes FSDPModule, the class of every unit",
            edits=lambda node=reference: [_renamed(context, node)],  # type: ignore[misc]
            imports=(Import(TORCH, "FSDPModule", reference),),
            removed=(reference,),
        )


def _renamed(context: Context, node: ast.expr) -> Edit:
    if isinstance(node, ast.Constant):  # an annotation in quotes
        code = context.source(node).replace(str(node.value), "FSDPModule")
        return context.replace(node, code)
    return context.rename(node, "FSDPModule")


def _tells_both_apart(program: Program) -> bool:
    """Whether the program tests for FSDP2's class as well: its branches for FSDP1 and FSDP2 stay two."""
    texts = ((path, program.data(path)) for path in program.paths)
    asking = [program.load(p) for p, text in texts if b"isinstance(" in text and b"FSDP" in text]
    files = dict.fromkeys([*program.files, *filter(None, asking)])  # which may be but a part
    return any(_tests_of_fsdp2(Context(file, program)) for file in files)


def _tests_of_fsdp2(context: Context) -> list[ast.Call]:
    """The calls `isinstance(model, FSDPModule)`, by whatever name."""
    return [
        call
        for call in context.file.calls.get("isinstance", ())
        if len(call.args) == 2
        and any(
            isinstance(each, ast.Name | ast.Attribute)
            and context.dotted(each) & {f"{TORCH}.FSDPModule"}
            for each in ast.walk(call.args[1])
        )
    ]


def _of_fsdp2(context: Context) -> Iterator[Found]:
    """Tests for FSDP2's class that come before one for FSDP1's, or have no such above them."""
    for call in _tests_of_fsdp2(context) if context.models.shards(context.file) else ():
        if any(context.fsdp1(n) == CLASS for n in ast.walk(call) if isinstance(n, ast.expr)):
            continue
        below = [n for a in context.file.ancestors(call) for n in _ways_below(a, call)]
        if any(context.fsdp1(node) == CLASS for node in below):
            yield Found(RULE, call, Action.MANUAL, _FIRST)


def _ways_below(parent: ast.AST, call: ast.Call) -> Iterator[ast.expr]:
    """The classes that are asked for where a test is false: by `elif`, or behind a block that ends."""
    if isinstance(parent, ast.If | ast.IfExp) and call in ast.walk(parent.test):
        orelse = parent.orelse if isinstance(parent.orelse, list) else [parent.orelse]
        tests = (getattr(each, "test", None) for part in orelse for each in ast.walk(part))
        for test in filter(None, tests):
            yield from (n for n in ast.walk(test) if isinstance(n, ast.Name | ast.Attribute))


def _by_others(context: Context) -> Iterator[Found]:
    """A sharded model that is given to Accelerate, whose tests for FSDP1 know torch's class alone."""
    for name in _OF_ACCELERATE if "accelerat" in context.file.text else ():
        for call in context.file.calls.get(name, ()):
            if any(context.can_be_model(each) for each in call.args):
                yield Found(RULE, call, Action.MANUAL, _NOT_KNOWN, f"{name}(...)")


def _passes_over(file: File, reference: ast.expr) -> bool:
    """Whether a loop is for what is no wrapper, such as the modules inside of them: in a plain model these are the units."""
    test = next(each for each in file.ancestors(reference) if isinstance(each, ast.Call))
    bindings = file.bindings(test.args[0])
    if not any(isinstance(getattr(b, "node", 0), ast.For | ast.comprehension) for b in bindings):
        return False
    for each in file.ancestors(test):
        if isinstance(each, ast.stmt):
            return isinstance(each, ast.If) and bool(
                each.orelse or isinstance(each.body[-1], ast.Continue)
            )
        if isinstance(each, ast.IfExp) or isinstance(getattr(each, "op", None), ast.Not):
            return True
        if hasattr(each, "generators"):
            return False
    return False


def is_tested(context: Context, reference: ast.expr) -> bool:
    """Whether a reference is among the classes of `isinstance`."""
    node: ast.AST = reference
    parent = context.file.parents[node]
    if isinstance(parent, ast.Tuple):
        node, parent = parent, context.file.parents[parent]
    called = getattr(parent, "func", None)
    if not isinstance(parent, ast.Call) or getattr(called, "id", "") != "isinstance":
        return False
    return len(parent.args) == 2 and parent.args[1] is node
