"""Models that Accelerate shards: what code does with them, where the settings beside it become version 2.

The rules for a model that the program shards itself look at them too. Of the rest, Accelerate 1.15 itself says what holds
(`Accelerator.prepare`, `prepare_model`); its model is a plain one of `fully_shard`, on which nothing answers for FSDP1.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from copy import copy
from typing import cast

from fsdp_migrate.codemods.context import Context, keyword
from fsdp_migrate.codemods.libraries.rules import MODEL
from fsdp_migrate.codemods.libraries.settings import is_accelerates
from fsdp_migrate.codemods.libraries.sharded import Prepared, prepared_of
from fsdp_migrate.codemods.printed import is_only_printed
from fsdp_migrate.codemods.registry import codemod
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.codemods.uses.classes import find as of_classes
from fsdp_migrate.codemods.uses.classes import is_tested
from fsdp_migrate.codemods.uses.clipping import RULE as CLIP
from fsdp_migrate.codemods.uses.no_sync import RULE as NO_SYNC
from fsdp_migrate.facts.file import File, is_name, last_name, root_of
from fsdp_migrate.facts.names import CLASS
from fsdp_migrate.facts.nodes import constant, has_any, receiver
from fsdp_migrate.facts.program import Definition, Program, is_module
from fsdp_migrate.facts.unreached import is_for_others
from fsdp_migrate.findings import Action, Severity
from fsdp_migrate.search import Search
from fsdp_migrate.source import is_test

_PYTHON = (
    r"FullyShardedDataParallelPlugin\(|ACCELERATE_USE_FSDP|"
    r"\bfsdp[\"']?\s*[=:]\s*\[?[\"'](?:full|shard|hybrid|auto|offload)"
)
_SETS = Search(_PYTHON)
_SECOND = Search(r"\bfully_shard\b")
_FROZEN = (
    "For a model without an optimizer, use `prepare_model(model, evaluation_mode=True)`, which does not shard it, or "
    "`fully_shard`."
)
_TOGETHER = f"This call raises under FSDP2. Pass a model and its optimizer to the same call of `prepare()`. {_FROZEN}"
_ONE = f"This call raises under FSDP2. Pass only one model, with its optimizer, to each call of `prepare()`. {_FROZEN}"
_STATES = (
    "This returns DTensors under FSDP2; under FSDP1 it returned whole tensors. Use `accelerator.get_state_dict(model)` "
    "for whole tensors."
)
_NORM = "This raises under FSDP2, because `accelerator.clip_grad_norm_` returns a DTensor. Use `norm.item()`."
_COUNT = (
    "This now counts the elements of whole parameters. Under FSDP1 it counted this rank's shards, so a sum over ranks is "
    "now too large: do not add up the ranks' results."
)
_NAMES = (
    "This returns the original parameter names. Under FSDP1 without `use_orig_params=True` all were `_flat_param`, so "
    "groups that are selected by name change: check which parameters now have no weight decay."
)
_BY_TRANSFORMERS = {"get_parameter_names": _NAMES} | dict.fromkeys(
    ("get_model_param_count", "num_parameters"), _COUNT
)
_SEVERITIES = {
    False: Severity.SILENT,
    True: Severity.PRINTS,
}  # by whether the value is only printed
_FLUSH = (
    "Under FSDP1 this call left the root's parameters gathered. FSDP2 frees them again, so other methods of the model "
    "raise when they use them: register those with `register_fsdp_forward_method` of `torch.distributed.fsdp`."
)
_BESIDE = (
    "This calls a part of the model outside its `forward`, where the root's parameters are sharded. Call "
    '`register_fsdp_forward_method(model, "{}")` of `torch.distributed.fsdp` after sharding.'
)
_PART = re.compile(r"self(\.\w+)+\.(?:forward|generate)")
_CALLS_PART = rb"\bself\.[\w.]+\.(?:forward|generate)\b"
_TEST = "This test is false for a model that Accelerate shards with FSDP2. Test for `FSDPModule` as well."
_GONE = "This raises `AttributeError` for a model that Accelerate shards with FSDP2. {}"
# What FSDP1's class has and `FSDPModule` has not.
_MISSING: dict[str, tuple[Rule, str]] = {
    "clip_grad_norm_": (CLIP, "Use `accelerator.clip_grad_norm_(model.parameters(), max_norm)`."),
    "no_sync": (NO_SYNC, "Use `accelerator.no_sync(model)`."),
    "module": (MODEL, "Use `accelerator.unwrap_model(model)`."),
    "sharding_strategy": (MODEL, "Remove what reads it: parameters are always sharded."),
} | dict.fromkeys(
    ("check_is_root", "compute_device", "limit_all_gathers", "process_group", "training_state"),
    (MODEL, "Remove this."),
)


@codemod()
def find(context: Context) -> Iterator[Found]:
    """What Accelerate refuses, what its models do not answer, and what the other rules say of them."""
    if not _is_concerned(context):
        return
    sharded = copy(context)
    sharded.models = prepared_of(context.program)
    yield from _prepared(sharded)
    yield from _asked(sharded)
    yield from _called(sharded)
    yield from _norms(sharded)
    yield from _tested(sharded)
    # About what is done with models, whoever shards them; the others know none.
    of_models = lambda name: name.startswith("by_hand.") and name not in _BY_NAME  # noqa: E731
    if context.ask:
        found = context.ask(sharded, of_models)
    else:
        found = ()
    for each in found:
        if not is_for_others(context.file, each.node):
            yield each


def _is_concerned(context: Context) -> bool:
    """Whether Accelerate shards what a file trains: not for a test that sets nothing, for inference, in Accelerate itself."""
    program = context.program
    file = context.file
    reach = context.program.reach
    if not (program.is_set or program.has(_PYTHON)):
        return False
    if is_accelerates(context) and not is_test(str(file.path)):
        return False
    if _SECOND(file.text) or (is_test(str(file.path)) and "fsdp_version" in file.text):
        return False  # it is written for FSDP2, or tests each version
    sets = _SETS(file.text)
    if sets or is_test(str(file.path)) or not prepared_of(program).shards(file):
        return sets
    trains = has_any(file.text, ("optim", "backward(", ".train("))
    return trains or not reach.is_start(str(file.path))


_BY_NAME = ("by_hand.dynamic_names", "by_hand.private_modules", "by_hand.module_names")


def _prepared(context: Context) -> Iterator[Found]:
    """Calls of `prepare` and `prepare_model` that raise under FSDP2."""
    models = cast(Prepared, context.models)
    file = context.file
    for call in file.calls.get("prepare", ()):
        if not models.is_prepare(call, file) or is_for_others(file, call):
            continue
        kinds = [models.kind(each, file) for each in call.args]
        apart = {*kinds} & {"model", "optimizer"}
        message = _TOGETHER
        if kinds.count("model") > 1:
            message = _ONE
        if kinds.count("model") > 1 or (len(apart) == 1 and "" not in kinds):
            yield Found(MODEL, call, Action.MANUAL, message, f"{context.source(call.func)}(...)")
    for call in file.calls.get("prepare_model", ()):
        whole = keyword(call, "evaluation_mode", 2)
        if models.is_constructor(call, file) and constant(whole) is not True:
            yield Found(MODEL, call, Action.MANUAL, _TOGETHER)


def _asked(context: Context) -> Iterator[Found]:
    """Attributes of FSDP1's class, and state dicts, of such models."""
    file = context.file
    for name, (rule, way) in _MISSING.items():
        for attribute in file.attributes.get(name, ()):
            is_read = isinstance(attribute.ctx, ast.Load) and not is_for_others(file, attribute)
            if is_read and context.can_be_model(attribute.value):
                yield Found(rule, attribute, Action.MANUAL, _GONE.format(way))
    for call in (*file.calls.get("state_dict", ()), *_saved(file)):
        owner = receiver(call)
        if owner is None or not context.can_be_model(owner) or is_for_others(file, call):
            continue
        withs = [each for each in file.ancestors(call) if isinstance(each, ast.With)]
        items = [context.source(item.context_expr) for each in withs for item in each.items]
        if not any("state_dict_type" in each or "summon_full" in each for each in items):
            yield Found(MODEL, call, Action.MANUAL, _STATES, severity=Severity.SILENT)


def _saved(file: File) -> Iterator[ast.Call]:
    """The calls of `named_parameters` from which comes what a function with `save` in its name is given."""
    for call in file.calls.get("named_parameters", ()):
        reads = _reads_of_result(file, call)
        if any(_is_given_to_save(file, read) for read in reads):
            yield call


def _reads_of_result(file: File, call: ast.Call) -> Iterable[ast.Name]:
    """Where the variable is read that a call's statement sets."""
    statement = file.statement(call)
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        return file.reads(statement.targets[0])
    return ()


def _is_given_to_save(file: File, read: ast.Name) -> bool:
    calls = [each for each in file.ancestors(read) if isinstance(each, ast.Call)]
    return any("save" in last_name(each.func).lower() for each in calls)


def _called(context: Context) -> Iterator[Found]:
    """Counts by transformers, and calls that need the root's parameters, which FSDP2 frees behind a forward, too."""
    file = context.file
    for name, message in _BY_TRANSFORMERS.items():
        for call in file.calls.get(name, ()):
            owner = receiver(call)
            if call.args:
                owner = call.args[0]
            if owner is not None and context.can_be_model(owner) and not is_for_others(file, call):
                severity = _SEVERITIES[message == _COUNT and is_only_printed(file, call)]
                yield Found(MODEL, call, Action.MANUAL, message, severity=severity)
    for statement in file.of(ast.Expr):
        flush = statement.value
        if isinstance(flush, ast.Call) and context.can_be_model(flush.func):
            yield Found(MODEL, flush, Action.MANUAL, _FLUSH)
    for name in _own_methods(context) & file.calls.keys():
        for call in file.calls[name]:
            owner = receiver(call)
            if owner is not None and context.can_be_model(owner):
                yield Found(MODEL, call, Action.MANUAL, _BESIDE.format(name))


def _own_methods(context: Context) -> set[str]:
    """The methods of modules that a file imports, other than forward, that call a part of the module, maybe by another."""
    program = context.program
    reach = context.program.reach
    paths = [p for p in reach.below(str(context.file.path)) if "def forward(" in reach.text(p)]
    methods: dict[str, set[str]] = {}  # with what they call of themselves
    if program.tree.having(_CALLS_PART).isdisjoint(paths):
        return set()
    for path in paths:
        for name, called in program.once(_methods, path):
            methods.setdefault(name, set()).update(called)
    found = {name for name, called in methods.items() if any(map(_PART.fullmatch, called))}
    while more := {n for n, by in methods.items() if {f"self.{m}" for m in found} & by} - found:
        found |= more
    return found - {"forward", "__init__"}


def _methods(program: Program, path: str) -> list[tuple[str, set[str]]]:
    """The methods of a file's modules, each with what it calls of itself."""
    file = program.load(path)
    if not file:
        return []
    found = []
    for cls in file.of(ast.ClassDef):
        own = [each for each in cls.body if isinstance(each, ast.FunctionDef)]
        if own and is_module(program, Definition(file, cls)):
            found += [(method.name, _called_of_self(method)) for method in own]
    return found


def _called_of_self(method: ast.FunctionDef) -> set[str]:
    """What a method calls of its object: `self.head`, `self.head.forward`."""
    called = [node.func for node in ast.walk(method) if isinstance(node, ast.Call)]
    return {ast.unparse(node) for node in called if is_name(root_of(node), "self")}


def _norms(context: Context) -> Iterator[Found]:
    """Uses of the norm that `accelerator.clip_grad_norm_` returns which DTensors refuse."""
    file = context.file
    models = cast(Prepared, context.models)
    for call in file.calls.get("clip_grad_norm_", ()):
        if models.takes(call, file, "clip_grad_norm_"):
            for read in _reads_of_result(file, call):
                if _is_refused(file, read):
                    yield Found(MODEL, read, Action.MANUAL, _NORM)


def _is_refused(file: File, norm: ast.Name) -> bool:
    """Whether a DTensor raises where a norm is read: in a format, or behind `numpy()`, unless it is made whole before."""
    for around in file.ancestors(norm):
        match around:
            case ast.stmt() | ast.Attribute(attr="item" | "full_tensor"):
                return False
            case ast.Attribute(attr="numpy" | "tolist"):
                return True
            case ast.FormattedValue(format_spec=ast.JoinedStr()):
                return True
    return False


def _tested(context: Context) -> Iterator[Found]:
    """Tests for FSDP1's class that stay; the others become tests for `FSDPModule`."""
    rewritten = {found.node for found in of_classes(context)}
    for reference, name in context.references.items():
        if name == CLASS and reference not in rewritten and is_tested(context, reference):
            test = next(n for n in context.file.ancestors(reference) if isinstance(n, ast.Call))
            if context.can_be_model(test.args[0]) and not is_for_others(context.file, test):
                yield Found(MODEL, test, Action.MANUAL, _TEST, severity=Severity.SILENT)
