"""Names of torch's private FSDP1 modules: they import fine, and answer wrongly about a model on FSDP2."""

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.registry import codemod
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.codemods.uses import handles
from fsdp_migrate.facts.file import File
from fsdp_migrate.facts.names import is_private
from fsdp_migrate.facts.scopes import Imported
from fsdp_migrate.findings import Action, Severity

NAME = Rule("FSDP014", "private-api", Severity.RAISES)

_UNITS = (
    "FSDP2 has no such state. To test whether a module is sharded, use `isinstance(module, FSDPModule)`; "
    "rewrite code that reads the state or passes it on."
)
_HANDLES = (
    "FSDP2 has no handles. Names and shapes are those of `unit.named_parameters()`. To gather the values of a unit use "
    "`unit.unshard()`, to free them `unit.reshard()`."
)
_CALL = "FSDP2 has no such function. Call the model: its forward gathers and frees parameters."
_READ = "FSDP2 has no such function. Read whole parameters with `p.full_tensor()`, on all ranks."
LAZY_INIT = (
    "FSDP2 needs no such call: the first forward initializes the model. "
    'To move an idle model, use `model.to("cpu")` and `model.to("cuda")`.'
)
FLAT = (
    "FSDP2 has no flat parameters: the parameters of a sharded module are DTensors. "
    "Use `p.to_local()` for this rank's shard of a parameter."
)
# Names of torch's private FSDP1 modules, and what to do. The page of the rule shows the same.
NAMES = {
    "FlatParameter": FLAT,
    "FlatParamHandle": _HANDLES,
    "_get_fsdp_handles": _HANDLES,
    "_module_handle": _HANDLES,
    "_FSDPState": _UNITS,
    "_get_module_fsdp_state": _UNITS,
    "_get_module_fsdp_state_if_fully_sharded_module": _UNITS,
    "_has_fsdp_params": _UNITS,
    "_get_fsdp_states": _UNITS,
    "_is_fsdp_flattened": "FSDP2 has no flat parameters. Use `isinstance(parameter, DTensor)`.",
    "_lazy_init": LAZY_INIT,
    "_post_forward": _CALL,
    "_pre_forward": _CALL,
    "_root_pre_forward": _CALL,
    "_reshard": "FSDP2 has no such function. Use `unit.reshard()` to free the parameters of a unit.",
    "_unshard": "FSDP2 has no such function. Use `unit.unshard()` to gather the parameters of a unit.",
    "_unshard_fsdp_state_params": _READ,
    "_unshard_params": _READ,
    "_unshard_params_for_summon": _READ,
}
_OTHER = (
    "This code reads FSDP1's private state, which an FSDP2 model does not have. Rewrite it with public functions of "
    "FSDP2."
)
# Names that mean the same for any module, and modules of such names.
_HARMLESS = frozenset(
    """FSDP_PREFIX FSDP_WRAPPED_MODULE HandleTrainingState TrainingState _ConfigAutoWrap _Policy _fsdp_extensions
    _recursive_wrap _set_fsdp_extensions _shard_utils _wrap clean_tensor_name""".split()  # noqa: SIM905
)


@codemod(words=("fsdp._", " _", "(_", ",_", "\t_", "FlatParam", "fully_sharded_data_"))
def find(context: Context) -> Iterator[Found]:
    """Private names of torch's FSDP1."""
    if is_copy(context.file):
        return  # torch's own code
    imported = {local: b.alias for local, b, path in _imports(context) if _concerns(path)}
    nodes = {
        _outermost(context, load) for name in imported for load in context.file.loads.get(name, ())
    }
    nodes |= {_outermost(context, node) for node in _written_out(context)}
    nodes -= handles.replaced(context)
    for node in sorted(nodes, key=lambda n: (n.lineno, n.col_offset)):
        yield from _name(context, node)
    for name, alias in imported.items():
        if not context.file.loads.get(name):
            yield Found(NAME, alias, Action.MANUAL, NAMES.get(alias.name, _OTHER), alias.name)


def _imports(context: Context) -> Iterator[tuple[str, Imported, str]]:
    """The imports of a file that run: the local name, the import, and the path that it means."""
    for scope in context.file.scopes:
        for local, bindings in scope.bindings.items():
            for binding in bindings:
                if isinstance(binding, Imported):
                    if binding.member:
                        member = f".{binding.member}"
                    else:
                        member = ""
                    yield local, binding, f"{binding.module}{member}"


def _written_out(context: Context) -> Iterator[ast.Attribute]:
    """Private names that are written out: `torch.distributed.fsdp._runtime_utils._reshard`."""
    if "fsdp._" in context.file.text:
        for name, attributes in context.file.attributes.items():
            if name.startswith("_"):
                for a in attributes:
                    if any(map(_concerns, context.dotted(a))):
                        yield a


def _concerns(dotted: str) -> bool:
    """Whether a dotted path is a private FSDP1 name that looks into FSDP1's models."""
    return is_private(dotted) and not _HARMLESS & set(dotted.split("."))


def _outermost(context: Context, node: ast.expr) -> ast.expr:
    """`utils._reshard` for the `utils` in it, which is a private module."""
    parent = context.file.parents[node]
    while isinstance(parent, ast.Attribute) and any(map(is_private, context.dotted(parent))):
        node = parent
        parent = context.file.parents[parent]
    return node


def _name(context: Context, node: ast.expr) -> Iterator[Found]:
    paths = context.dotted(node)
    name = next((path.rpartition(".")[2] for path in paths if _concerns(path)), None)
    if name is None:
        return
    message = NAMES.get(name, _OTHER)
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        message = "This patches a part of torch's FSDP1, which FSDP2 does not run. Remove the patch, or patch FSDP2 instead."
    yield Found(NAME, node, Action.MANUAL, message, name)


def is_copy(file: File) -> bool:
    """Whether a file is the program's own copy of one of torch's."""
    return "/torch/distributed/" in file.path.as_posix()
