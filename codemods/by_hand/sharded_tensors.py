"""What a program does with a ShardedTensor: FSDP2's sharded state dicts hold DTensors."""

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.by_hand.measured import is_torchs
from fsdp_migrate.codemods.by_hand.private_modules import is_copy
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.registry import codemod
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.facts.file import last_name, words_in
from fsdp_migrate.findings import Action, Severity

RULE = Rule("FSDP524", "sharded-tensor")

_NAME = "ShardedTensor"
_NO_LONGER = (
    "This test is {} true under FSDP2, whose sharded state dicts hold DTensors. Test for "
    "`torch.distributed.tensor.DTensor`."
)
_PARTS = ("local_shards", "local_tensor", "sharding_spec")
_NO_PARTS = (
    "This is a method of ShardedTensor. FSDP2's sharded state dicts hold DTensors, which do not have it. Use "
    "`value.to_local()` for this rank's shard, and `value.placements` for how it is sharded."
)


@codemod(words=(_NAME, *_PARTS))
def find(context: Context) -> Iterator[Found]:
    """Tests for the class of FSDP1's shards, and methods of it in functions without such a test."""
    file = context.file
    if is_copy(file) or not context.models.shards():
        return
    tests = [*_tests(context)]
    for test in tests:
        if not _tests_dtensors(context, file.function(test) or file.tree):
            text = _NO_LONGER.format("always" if _is_negated(test) else "never")
            yield Found(RULE, test, Action.MANUAL, text)
    for name in _PARTS:
        for method in file.attributes.get(name, ()):
            call = context.call_of(method)
            if call is not None and not _is_tested(context, call, tests):
                yield Found(RULE, call, Action.MANUAL, _NO_PARTS, severity=Severity.RAISES)


def _is_tested(context: Context, call: ast.Call, tests: list[ast.AST]) -> bool:
    """Whether the function of a call asks for the class of its values: then the test is what is reported."""
    around = context.file.function(call) or context.file.tree
    return _tests_dtensors(context, around) or any(
        around in context.file.ancestors(test) for test in tests
    )


def _tests(context: Context) -> Iterator[ast.AST]:
    """Tests for torch's class: `isinstance(v, ShardedTensor)`, `type(v) is ShardedTensor`, `case ShardedTensor():`."""
    file = context.file
    if _NAME not in file.text:
        return
    calls = (*file.calls.get("isinstance", ()), *file.calls.get("issubclass", ()))
    for test in (*calls, *file.of(ast.Compare)):
        names = [node for node in ast.walk(test) if isinstance(node, ast.Name | ast.Attribute)]
        if any(last_name(name) == _NAME and is_torchs(context, name) for name in names):
            yield test
    for case in file.of(ast.MatchClass):
        if last_name(case.cls) == _NAME and is_torchs(context, case.cls):
            yield case


def _is_negated(test: ast.AST) -> bool:
    return isinstance(test, ast.Compare) and isinstance(
        test.ops[0], ast.IsNot | ast.NotEq | ast.NotIn
    )


def _tests_dtensors(context: Context, around: ast.AST) -> bool:
    """Whether a function asks for FSDP2's class as well."""
    tests = context.file.calls.get("isinstance", ())
    return any(
        around in context.file.ancestors(each) and "DTensor" in words_in(each) for each in tests
    )
