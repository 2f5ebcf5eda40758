"""`isinstance(model, FSDP)` and annotations: the class of a plain model is `FSDPModule`."""

import ast
import re
from collections.abc import Iterable, Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Edit, Found, Import, Rule
from fsdp_migrate.facts.file import File, last_name
from fsdp_migrate.facts.models import models_of
from fsdp_migrate.facts.names import CLASS, RUNTIME, TORCH
from fsdp_migrate.facts.program import Program
from fsdp_migrate.facts.scopes import Parameter
from fsdp_migrate.findings import Action

RULE = Rule("FSDP007", "isinstance")
RULES = (RULE,)

_FIRST = "is true for every sharded model now, so that the branch for FSDP1's class below is not taken: ask for that first"
_TOO = "is true of the models of FSDP1's constructors, too, from now on: what it decides for FSDP2 alone is theirs as well"
_NO_WRAPPER = "is true of the modules in the wrappers now, which are the units: leave it out"
_BOTH = (
    "is true of a unit, which is its wrapper and the module in it at once: what is done with other modules was done with that "
    "module, and is not done with the unit"
)
_FALSE = "is false of every model that fully_shard shards: ask for FSDPModule"
# What calls a function with each module of a model.
_WALKS = ("apply", "apply_activation_checkpointing", "filter")
_SECOND = re.compile(r"fsdp_?2", re.IGNORECASE)
_IS_WRAPPER = f"{RUNTIME}.is_wrapper"
_OF_ACCELERATE = ("prepare", "prepare_model", "extract_model_from_parallel", "unwrap_model")
_NOT_KNOWN = "Accelerate asks for torch's FSDP1, which a model on FSDP2 is not: it may wrap it again, or not unwrap it"


def find(context: Context) -> Iterator[Found]:
    """The class in tests and annotations, as `FSDPModule`: models are that in every form."""
    yield from _of_fsdp2(context)
    yield from _by_others(context)
    references = [node for node, name in context.references.items() if name == CLASS]
    if not references or not context.plain:
        return
    of_wrappers = [n for n in references if is_tested(context, n) and _tells_apart(context, n)]
    yield from (_of_wrappers(context, reference) for reference in of_wrappers)
    about = [n for n in references if is_tested(context, n) or context.is_annotation(n)]
    about += [node for node, name in context.quoted.items() if name == CLASS]
    about = [node for node in about if node not in of_wrappers]
    if context.program.once(_tells_both_apart):
        yield from _false_now(context, about)
        return
    if not all(context.means("FSDPModule", node, f"{TORCH}.FSDPModule") for node in about):
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


def _of_wrappers(context: Context, reference: ast.expr) -> Found:
    """A test for wrappers among modules: in place the units are the modules themselves."""
    test = context.file.parents[reference]
    if not _passes_over(context.file, reference):
        return Found(RULE, reference, Action.MANUAL, _BOTH)
    if not isinstance(test, ast.Call) or not context.means("is_wrapper", test, _IS_WRAPPER):
        return Found(RULE, reference, Action.MANUAL, _NO_WRAPPER)
    return Found(
        RULE,
        test,
        Action.RUNTIME,
        "becomes is_wrapper: a unit that is sharded in place is the module itself, and has no wrapper",
        edits=lambda: [context.replace(test, f"is_wrapper({context.source(test.args[0])})")],
        imports=(Import(RUNTIME, "is_wrapper", reference),),
        removed=(reference,),
    )


def _false_now(context: Context, about: Iterable[ast.expr]) -> Iterator[Found]:
    """In torch's form, tests for FSDP1's class in a program that also asks for FSDP2's: no constructor makes such models."""
    both = {node for call in _tests_of_fsdp2(context) for node in ast.walk(call)}
    for reference in about if context.form == "torch" else ():
        if is_tested(context, reference) and reference not in both:
            yield Found(RULE, reference, Action.MANUAL, _FALSE)


def _renamed(context: Context, node: ast.expr) -> Edit:
    if isinstance(node, ast.Constant):  # an annotation in quotes
        code = context.source(node).replace(str(node.value), "FSDPModule")
        return context.replace(node, code)
    return context.rename(node, "FSDPModule")


def _tells_both_apart(program: Program) -> bool:
    """Whether the program tests for FSDP2's class as well: its branches for FSDP1 and FSDP2 stay two."""
    texts = ((path, program.tree.data(path)) for path in program.tree.paths)
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
    """Tests for FSDP2's class that come before one for FSDP1's, or have none of it above them."""
    for call in _tests_of_fsdp2(context) if context.models.shards(context.file) else ():
        if _names_fsdp1(context, call):
            continue
        below = [n for a in context.file.ancestors(call) for n in _ways_below(a, call)]
        if any(context.fsdp1(node) == CLASS for node in below):
            yield Found(RULE, call, Action.MANUAL, _FIRST)
        elif _decides_alone(context, call):
            yield Found(RULE, call, Action.MANUAL, _TOO)


def _names_fsdp1(context: Context, test: ast.AST) -> bool:
    return any(context.fsdp1(n) == CLASS for n in ast.walk(test) if isinstance(n, ast.expr))


def _decides_alone(context: Context, call: ast.Call) -> bool:
    """Whether a model of FSDP1's constructors can come to a test for FSDP2's class that no test for FSDP1's is above."""
    file, function = context.file, context.file.function(call)
    around = [n for n in (call, *file.ancestors(call)) if isinstance(n, ast.stmt)]
    tests = [n.test for n in around if isinstance(n, ast.If) and call not in ast.walk(n.test)]
    for statement in around:
        block = file.block(statement)
        tests += [n.test for n in block[: block.index(statement)] if isinstance(n, ast.If)]
    if any(_names_fsdp1(context, test) for test in tests):
        return False
    if not context.program.once(_shards_itself):
        return False
    name = "" if function is None else function.name
    if name.lstrip("_").startswith("is_"):  # asked of any model
        return True
    is_of_fsdp2 = _SECOND.search(name) or _SECOND.search(file.path.stem)
    return not is_of_fsdp2 and context.models.sharded(call.args[0], file) is not False


def _shards_itself(program: Program) -> bool:
    models = models_of(program)
    return any(models.constructors(file) for file in program.files)


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


def _tells_apart(context: Context, reference: ast.expr) -> bool:
    """Whether a test tells wrappers from the modules in them: in a loop over modules, or in a function asked of each."""
    file = context.file
    bindings = file.bindings(_test_of(file, reference).args[0])
    is_item = any(isinstance(getattr(b, "node", 0), ast.For | ast.comprehension) for b in bindings)
    if not is_item and not any(_is_asked_of_each(file, binding) for binding in bindings):
        return False
    decides = _decides(file, reference)
    has_two = isinstance(decides, ast.If | ast.IfExp) and bool(decides.orelse)
    return has_two or _passes_over(file, reference)


def _test_of(file: File, reference: ast.expr) -> ast.Call:
    return next(each for each in file.ancestors(reference) if isinstance(each, ast.Call))


def _decides(file: File, reference: ast.expr) -> ast.AST:
    """What a test decides: a branch, a negation, or which modules a comprehension has."""
    test = _test_of(file, reference)
    return next(
        each
        for each in file.ancestors(test)
        if isinstance(each, ast.stmt | ast.IfExp)
        or isinstance(getattr(each, "op", None), ast.Not)
        or hasattr(each, "generators")
    )


def _passes_over(file: File, reference: ast.expr) -> bool:
    """Whether nothing is done with a wrapper."""
    decides = _decides(file, reference)
    if isinstance(decides, ast.If):
        return not decides.orelse and _leaves(decides.body[-1])
    return isinstance(decides, ast.UnaryOp)


def _leaves(statement: ast.stmt) -> bool:
    """`continue`, `return`, `return False`: nothing is done with a wrapper."""
    if isinstance(statement, ast.Return):
        value = statement.value or ast.Constant(None)
        return isinstance(value, ast.Constant) and not value.value
    return isinstance(statement, ast.Continue)


def _is_asked_of_each(file: File, binding: object) -> bool:
    """Whether a parameter is each module of a model: of what is given to `apply`, `filter` or as a `check_fn`."""
    if not isinstance(binding, Parameter):
        return False
    function = binding.function
    name = getattr(function, "name", "")
    for value in [function] if isinstance(function, ast.Lambda) else file.loads.get(name, ()):
        user = file.parents[value]
        if isinstance(user, ast.keyword) and user.arg == "check_fn":
            return True
        if isinstance(user, ast.Call) and value in user.args and last_name(user.func) in _WALKS:
            return True
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
