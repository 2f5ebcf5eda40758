"""FSDP1 of Composer and llm-foundry as Python sets it, and their functions that work on FSDP1 alone."""

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.libraries import rules
from fsdp_migrate.codemods.libraries.configuration import composer, tree
from fsdp_migrate.codemods.libraries.configuration.reading import from_call, from_python
from fsdp_migrate.codemods.libraries.settings import project_of
from fsdp_migrate.codemods.registry import codemod
from fsdp_migrate.codemods.rule import Found
from fsdp_migrate.findings import Action

_PASSED = (
    "This selects FSDP1 in Composer, unless it is an `FSDP2Config` or the launch sets `FSDP_VERSION=2`. Pass "
    "`FSDP2Config(...)` of `composer.utils`."
)
_STATES = (
    "This has no effect on an FSDP2 model, whose state dict has DTensors. Use `get_model_state_dict(model, "
    "options=StateDictOptions(full_state_dict=True, cpu_offload=True))`."
)
_WRAPS = "This wraps with FSDP1. Pass an `FSDP2Config` to the Trainer, or call `parallelize_composer_model`."
# Functions and context managers of Composer.
_FUNCTIONS = {
    "fsdp_state_dict_type_context": _STATES,
    "fsdp_get_optim_state_dict": _STATES,
    "prepare_fsdp_module": _WRAPS,
}


@codemod(words=("composer", "parallelism_config"))
def find(context: Context) -> Iterator[Found]:
    """Settings that are passed to Composer, and calls of its functions."""
    if "composer" not in context.file.text and "parallelism_config" not in context.file.text:
        return
    for call in context.file.of(ast.Call):
        path = next(iter(context.dotted(call.func)), "")
        name = path.rpartition(".")[2]
        is_composers = path.startswith("composer.")
        if is_composers and name in _FUNCTIONS:
            yield Found(rules.COMPOSER, call, Action.MANUAL, _FUNCTIONS[name], f"{name}(...)")
        elif is_composers and name == "FSDPConfig":
            yield from _of_mapping(context, call, from_call(context.file, call, _unknown))
        else:
            yield from _of_keywords(context, call, is_composers)


def _of_keywords(context: Context, call: ast.Call, is_composers: bool) -> Iterator[Found]:
    for keyword in call.keywords:
        value = keyword.value
        if keyword.arg == "parallelism_config" and isinstance(value, ast.Dict):
            for key, inner in zip(value.keys, value.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "fsdp":
                    yield from _of_value(context, inner)
        elif keyword.arg == "fsdp_config" and is_composers:
            yield from _of_value(context, value)


def _of_value(context: Context, value: ast.expr) -> Iterator[Found]:
    """Settings as a value: a dictionary, here or where a name got it, or what only a run knows."""
    if isinstance(value, ast.Constant) and value.value is None:
        return
    known = None
    if isinstance(value, ast.Name):
        known = context.value(value)
    made = value
    if known is not None and known.file is context.file:
        made = known.node
    if isinstance(made, ast.Dict):
        mapping = from_python(context.file, made, _unknown)
        assert isinstance(mapping, tree.Mapping)
        yield from _of_mapping(context, made, mapping)
    elif not isinstance(made, ast.Call) or "FSDP" not in context.source(made.func):
        yield Found(rules.COMPOSER, value, Action.MANUAL, _PASSED)


def _of_mapping(context: Context, node: ast.expr, settings: tree.Mapping) -> Iterator[Found]:
    said = composer.said_of(settings, project_of(context), is_python=True)
    if said:
        source = context.source(node)
        construct = source
        if "\n" in source:
            construct = "{...}"
        yield Found(rules.COMPOSER, node, Action.MANUAL, said, construct)


def _unknown(_node: ast.expr) -> tree.Data:
    return tree.UNKNOWN
