"""What is known to go wrong, by the test's id. A test that begins to pass fails here: take its line away then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

_DEAD = "silent: the optimizer holds parameters that fully_shard replaced; FSDP501 does not see it"
_SHARDS = (
    "silent: state_dict() of a model that is not followed gives shards, and no finding says so"
)
_CLASS = "silent: a use of the class on a line that has another finding is not reported"
_NAME = "loud: a name that the program goes on using is no longer bound"

KNOWN: dict[str, str] = {
    "state dict from a partial": _SHARDS,
    "state dict of a field of a dataclass": _SHARDS,
    "FSDP bound to a partial of itself": "silent: what the partial adds is lost",
    "FSDP bound by a loop": "silent: bindings that say nothing of the value count as FSDP1's class",
    "FSDP bound by a comprehension": "silent: names of a comprehension are not its own",
    "the class replaced from outside": "silent: `module.NAME = value` is not seen",
    "a strategy set from outside": "silent: `module.NAME = value` is not seen",
    "the class beside a rewritten test": _CLASS,
    "the class beside a constructor": _CLASS,
    "the class's name as text": "silent: the class's name in a comparison with text is not reported",
    "a device set later": "silent: any `set_device` anywhere in the file lets device_id go",
    "a policy that grows": "silent: a policy that is read elsewhere may have been changed there",
    "import torch.distributed.fsdp as fsdp": "loud: the import goes although fsdp.fully_shard needs it",
    "grouped import of the package": "loud: the import goes although fsdp.fully_shard needs it",
    "del FSDP": _NAME,
    "__all__ with a type": _NAME,
    "__all__ that grows": _NAME,
    "__all__ in parts": _NAME,
    "the class as a class attribute by import": _NAME,
    "used above the import that stays": "loud: a needed name goes to a later import of the block (_beside)",
    "a class made by a call": "a call in the policy is evaluated for every module",
    "a policy named in the call": _NAME,
    "a strategy named in the call": _NAME,
    "a MixedPrecision named in the call": _NAME,
    "a None named in the call": _NAME,
    "a policy read through its module": _NAME,
    "a MixedPrecision read through its module": _NAME,
    "a list called list": "loud: builtins of the loop can be names of the program's",
    "root of a subclass of the policy's class": "loud: the root is sharded twice when the policy's class is external",
    "root of a subclass of an external class": "loud: the root is sharded twice when the policy's class is external",
    # test_switches.py
    "braces in the model's expression": "refused: str.format on source",
    "braces in the policy": "refused: str.format on source",
    "dotted model over several lines": "refused: the condition does not parse",
    "walrus as the model": "refused: an assignment expression without parentheses",
    "policy on a shared line": "refused: an assignment on a shared line cannot go",
    "form feed at the line's start": "refused: LibCST and ast count columns differently after a form feed",
    "comment inside a chain of attributes": "refused: the comments of an attribute that goes away",
    "comment inside a method that is not called": "refused: the comments of an attribute that goes away",
    "context in parentheses with comments": "refused: the comments of the parentheses",
    "FSDP(FSDP(model))": "loud: fully_shard(fully_shard(model)) is an AssertionError",
    "a module called module": "silent or loud: the model's own attribute `module` is taken for FSDP1's wrapper",
    "annotations in quotes": "ugly: the import goes, the quoted annotation stays",
}


def params(table: Mapping[str, object]) -> list[Any]:
    """The rows of a table; those that are known to go wrong are expected to."""
    return [
        pytest.param(
            value,
            id=name,
            marks=[pytest.mark.xfail(strict=True, reason=KNOWN[name])] if name in KNOWN else [],
        )
        for name, value in table.items()
    ]
