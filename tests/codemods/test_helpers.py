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
    "build_mesh": "init_device_mesh takes a shape, and FSDP1's strategies follow groups and the ranks of a node",
    "CPUOffload": "a check compares the program's own value, which is of this class, with the recorded one",
    "MixedPrecision": "a check compares the program's own value, which is of this class, with the recorded one",
    "cast_buffers": "MixedPrecisionPolicy casts no buffers, as MixedPrecision(buffer_dtype=...) did",
    "clip_grad_norm_": "torch.nn.utils.clip_grad_norm_ returns a DTensor, and fails on offloaded gradients; it is "
    "used where the result is not",
    "fill_unused_gradients": "FSDP2 leaves the gradient of a parameter that no forward used None, FSDP1's was zeros",
    "keep_class_names": "fully_shard gives a module another class, and transformers finds by its name what to record",
    "local_shard": "DTensor.to_local is no method of a plain tensor, and a function that takes norms may be given other models",
    "materialize": "to_empty takes all modules below or one; FSDP1 initialized those of one unit, in its own order",
    "no_sync": "set_requires_gradient_sync(False) stays in force until it is set back",
    "replace_in_optimizers": "fully_shard replaces the parameters that an older optimizer holds, and tells no optimizer",
    "run_in_full_precision": "MixedPrecisionPolicy(output_dtype=...) casts to one type; FSDP1 gave the outputs of a "
    "BatchNorm the type of its inputs",
    "summon_full_params": "unshard() does not recurse, casts, and forgets changes",
    "use_full_state_dicts": "nothing of torch's says what a model's own state_dict() gives, wherever it is called; "
    "get_model_state_dict takes its place where the model is certainly one of FSDP1's",
}


def _emitted() -> set[str]:
    """The names that the codemods import from the runtime: `Import(RUNTIME, name)`, in their source."""
    found = set()
    for file in CODEMODS.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Import":
                module, name, *_ = [*node.args, ast.Constant("")]
                if isinstance(module, ast.Name) and module.id == "RUNTIME":
                    assert isinstance(name, ast.Constant), (
                        f"{file.name}: a name that is not written out"
                    )
                    found.add(str(name.value))
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
