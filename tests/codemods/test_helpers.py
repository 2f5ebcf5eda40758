"""What plain code imports from the runtime: a helper only where torch has no public function of the same meaning."""

from __future__ import annotations

import ast
from pathlib import Path

from fsdp_migrate.codemods import registry
from fsdp_migrate.codemods.registry import all_rules
from fsdp_migrate.facts.names import NAMES, RUNTIME

from .pages import examples_of

CODEMODS = Path(registry.__file__).parent

# The helpers, and why torch's own functions do not do.
REASONS = {
    "broadcast_module_states": "torch's _sync_params_and_buffers is private, and set_model_state_dict with "
    "broadcast_from_rank0 passes over buffers that no state dict has",
    "cast_buffers": "MixedPrecisionPolicy casts no buffers, as MixedPrecision(buffer_dtype=...) did",
    "clip_grad_norm_": "torch.nn.utils.clip_grad_norm_ returns a DTensor, and fails on offloaded gradients; it is "
    "used where the result is not",
    "like_fsdp1": "fully_shard shards and nothing else; a line of its own says what FSDP1 did besides, and can go",
    "local_shard": "DTensor.to_local is no method of a plain tensor, and a function that takes norms may be given other models",
    "no_sync": "set_requires_gradient_sync(False) stays in force until it is set back",
    "summon_full_params": "unshard() does not recurse, casts, and forgets changes",
    "units": "fully_shard knows no policies, strategies, groups, ignored modules, and no order of initialization",
    "unwrap": "a model of fully_shard is itself, and one of DistributedDataParallel has a wrapper",
}


def _emitted() -> set[str]:
    """The names that the codemods import from the runtime: `Import(RUNTIME, name)`, in their source."""
    found = set()
    for file in CODEMODS.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            called = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
            given = node.args if isinstance(node, ast.Call) else []
            if called == "Import" and getattr(given[0], "id", "") == "RUNTIME":
                name = given[1]
            elif called == "_runtime":  # a short form of it
                name = given[0]
            else:
                continue
            if isinstance(name, ast.Constant):
                found.add(str(name.value))
            else:
                assert file.name == "form.py", f"{file.name}: a name that is not written out"
    return found


def test_every_helper_has_a_reason() -> None:
    assert _emitted() == set(REASONS)


def test_examples_show_no_other_helper() -> None:
    shown = set()
    for rule in all_rules():
        for example in examples_of(rule):
            after = example.after if RUNTIME in (example.after or "") else ""
            for node in ast.walk(ast.parse(after or "")):
                if isinstance(node, ast.ImportFrom) and node.module == RUNTIME:
                    shown |= {alias.name for alias in node.names}
    assert shown - NAMES <= set(REASONS)
    assert len(shown - NAMES) > 3


def test_the_runtime_has_every_helper() -> None:
    runtime = ast.parse((CODEMODS.parent / "runtime" / "__init__.py").read_text("utf-8"))
    names = {
        alias.name for n in ast.walk(runtime) if isinstance(n, ast.ImportFrom) for alias in n.names
    }
    assert set(REASONS) <= names
