"""FSDP1's type of state dicts and its configurations as torch's `StateDictOptions`, each flag by its expression."""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fsdp_migrate.codemods.conditions import either
from fsdp_migrate.codemods.context import Context, keyword
from fsdp_migrate.codemods.rule import Import
from fsdp_migrate.facts.file import File, last_name
from fsdp_migrate.facts.names import TORCH
from fsdp_migrate.facts.nodes import has_double_star, is_none
from fsdp_migrate.facts.scopes import Assigned

MODULE = "torch.distributed.checkpoint.state_dict"
_KIND = "StateDictType"
_FULL = "FULL_STATE_DICT"
_LOCAL = "LOCAL_STATE_DICT"
_KINDS = (_FULL, "SHARDED_STATE_DICT", _LOCAL)
_TRUE = "True"
_FALSE = "False"
_OFFLOAD = "offload_to_cpu"
_RANK_0 = "rank0_only"
# Whether each configuration offloads where it is not said: that of an optimizer does.
_CONFIGURATIONS = {
    "FullStateDictConfig": _FALSE,
    "ShardedStateDictConfig": _FALSE,
    "FullOptimStateDictConfig": _TRUE,
    "ShardedOptimStateDictConfig": _TRUE,
    "LocalStateDictConfig": _FALSE,
    "LocalOptimStateDictConfig": _FALSE,
}
# The arguments for configurations, with their places, and whether FSDP1 offloads without one.
_GIVEN = (("state_dict_config", 2, _FALSE), ("optim_state_dict_config", 3, _TRUE))
_ON_DEVICE = (
    " If `{}` is false, every rank gets whole tensors on its own device; FSDP1 moved them to the CPU, torch does so only "
    "on rank 0."
)
_FIRST = re.compile(r"rank|main|master|first|primary|should_save", re.IGNORECASE)


class Untranslatable(Exception):
    """A type that torch's options do not say; the message is for users."""


@dataclass(frozen=True)
class Setting:
    """A type of state dicts with its configuration.

    Attributes:
        full: whether state dicts are whole, as source.
        offload: whether they are on the CPU, as source.
        rank_0: whether only the first rank has them, as source.
        is_local: whether FSDP1's were flat, which FSDP2's shards take the place of.
        config: the configuration that says so, where one is given.
        spent: FSDP1's code that nothing needs any more.
        imports: names that the sources use.
    """

    full: str = _TRUE
    offload: str = _FALSE
    rank_0: str = _FALSE
    is_local: bool = False
    config: ast.expr | None = None
    spent: tuple[ast.AST, ...] = ()
    imports: tuple[Import, ...] = ()

    def to_get(self, *, for_rank_0: bool, side_by_side: bool) -> str:
        """The options for getting a state dict; "" where torch's defaults say the same.

        Args:
            for_rank_0: whether the program uses the state dict on one rank alone.
            side_by_side: whether the first rank of a model may be another than rank 0, which alone torch gives whole
                state dicts on the CPU.
        """
        offload = self.offload
        if self.full == _TRUE:
            offload = self._on_rank_0(for_rank_0)
            if side_by_side:
                offload = _FALSE
        elif self.config is None and self.rank_0 == _FALSE:
            offload = _FALSE  # FSDP1's default for states of optimizers, which nobody asked for
        return _code(full_state_dict=self.full, cpu_offload=offload)

    def _on_rank_0(self, for_rank_0: bool) -> str:
        """Whether whole tensors are for rank 0 alone, as source: torch gives them to it on the CPU, or to every rank."""
        if self.rank_0 == _FALSE:
            if self.offload == _TRUE and for_rank_0:
                return _TRUE
            return _FALSE
        if self.rank_0 == _TRUE:
            if self.offload == _FALSE:
                return _TRUE
            return self.offload
        # On the CPU of every rank, where that flag is false: what one rank alone uses may be on its CPU in any case.
        if self.offload == _TRUE and for_rank_0:
            return _TRUE
        return self.rank_0

    def on_device(self, options: str) -> str:
        """What options say of whole tensors that FSDP1 had on the CPU of each rank under some condition; "" if nothing."""
        is_on_cpu = self.full == self.offload == _TRUE
        if not is_on_cpu or f"cpu_offload={self.rank_0}" not in options or self.rank_0 == _TRUE:
            return ""
        return _ON_DEVICE.format(self.rank_0)

    def to_set(self, strict: str = _TRUE) -> str:
        """The options for loading one: rank 0's tensors are sent to the others, so that missing keys are an error."""
        code = _code(full_state_dict=self.full, broadcast_from_rank0=self.full)
        if strict == _TRUE:
            return code
        inside = code.partition("(")[2].removesuffix(")")
        return f"StateDictOptions({', '.join(filter(None, (inside, f'strict={strict}')))})"


def _code(**flags: str) -> str:
    given = [f"{name}={value}" for name, value in flags.items() if value != _FALSE]
    if given:
        return f"StateDictOptions({', '.join(given)})"
    return ""


_WRITE = "Use `get_model_state_dict(model, options=StateDictOptions(...))` instead of `model.state_dict()`."


def settings(context: Context, call: ast.Call) -> tuple[Setting, Setting]:
    """The setting of models and that of optimizers that a call of `state_dict_type` gives.

    Raises:
        Untranslatable: if torch's options do not say it.
    """
    if has_double_star(call):
        raise Untranslatable(f"This call unpacks its arguments. {_WRITE}")
    kind = keyword(call, "state_dict_type", 1)
    if kind is None:
        raise Untranslatable(f"This file does not show the type of state dict. {_WRITE}")
    full, used = _full(context, kind)
    given = [keyword(call, name, position) for name, position, _ in _GIVEN]
    if full not in (_TRUE, _FALSE) and any(_is_full(context, each) for each in given):
        full = _TRUE
        used = None
    spent: list[ast.AST] = [call.func]
    imports: list[Import] = []
    if used is None:
        spent.append(kind)
    elif used == _KIND:
        imports.append(Import(TORCH, _KIND))
    found = []
    for config, (_, _, default) in zip(given, _GIVEN, strict=True):
        offload = default
        rank_0 = _FALSE
        if config is not None and not is_none(config):
            offload, rank_0, is_known = _flags(context, config)
            if is_known:
                spent.append(config)
        found.append(Setting(full, offload, rank_0, is_local(context, kind), config))
    own, optimizers = found
    if optimizers.config is None and own.rank_0 == _TRUE:
        # Written beside the model's, by the rank that has that.
        optimizers = replace(own, offload=_TRUE)
    own = replace(own, spent=tuple(spent), imports=tuple(imports))
    return own, replace(optimizers, spent=own.spent, imports=own.imports)


def is_local(context: Context, kind: ast.expr | None) -> bool:
    """Whether a type is LOCAL_STATE_DICT, itself or by a name that is bound once."""
    if isinstance(kind, ast.Name) and (made := context.value(kind)) is not None:
        kind = made.node
    return last_name(kind) == _LOCAL


def _full(context: Context, kind: ast.expr) -> tuple[str, str | None]:
    """Whether a type is the whole one, as source; and the name that the source needs, "" for none, None for a literal."""
    member = context.member(kind)
    if member is not None and member[0] == _KIND:
        if member[1] not in _KINDS:
            raise Untranslatable(f"FSDP2 has no `{member[1]}`. {_WRITE}")
        if member[1] == _FULL:
            return _TRUE, None
        return _FALSE, None
    if isinstance(kind, ast.IfExp):
        one, _ = _full(context, kind.body)
        other, _ = _full(context, kind.orelse)
        return either(kind.test, one, other, context.source), None
    found = list(values(context.file, kind))
    if len(found) == 1 and found[0] is not kind:
        made = context.member(found[0])
        if isinstance(found[0], ast.IfExp) or (made is not None and made[0] == _KIND):
            return _full(context, found[0])
    spelled = _spelled(context)
    if spelled:
        return f"{ast.unparse(kind)} == {spelled}.{_FULL}", ""
    return f"{ast.unparse(kind)} == {_KIND}.{_FULL}", _KIND


def _spelled(context: Context) -> str:
    """How the file writes FSDP1's enum; "" where it does not."""
    nodes = [node for node, name in context.references.items() if name == _KIND]
    return next((ast.unparse(node) for node in nodes), "")


def values(file: File, value: ast.expr) -> Iterator[ast.expr]:
    """The expressions of a file that can give a name or an attribute of `self` its value; the value itself if none."""
    found: Sequence[ast.expr | None] = ()
    if isinstance(value, ast.Name):
        bindings = file.bindings(value)
        if bindings and all(isinstance(b, Assigned) and not b.path for b in bindings):
            found = [b.value for b in bindings if isinstance(b, Assigned)]
    elif isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name):
        around = file.enclosing_class(value)
        stores = [a for a in file.attributes.get(value.attr, ()) if isinstance(a.ctx, ast.Store)]
        own = [a for a in stores if file.enclosing_class(a) is around]
        found = [_assigned(file.parents[store]) for store in own]
    given = [each for each in found if each is not None]
    if given and len(given) == len(found):
        yield from given
    else:
        yield value


def _assigned(statement: ast.AST) -> ast.expr | None:
    """What an assignment gives."""
    if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        return statement.value
    return None


_WHOLE = ("FullStateDictConfig", "FullOptimStateDictConfig")


def _is_full(context: Context, config: ast.expr | None) -> bool:
    """Whether a configuration is one of whole state dicts: with another type FSDP1 raised."""
    if config is None:
        return False
    for each in values(context.file, config):
        if not isinstance(each, ast.Call) or context.fsdp1(each.func) not in _WHOLE:
            return False
    return True


def _flags(context: Context, config: ast.expr) -> tuple[str, str, bool]:
    """What a configuration says of offloading and of rank 0, as source, and whether its own code is no longer needed."""
    if isinstance(config, ast.IfExp):
        one = _flags(context, config.body)
        other = _flags(context, config.orelse)
        flags = [
            either(config.test, a, b, context.source)
            for a, b in zip(one[:2], other[:2], strict=True)
        ]
        return flags[0], flags[1], one[2] and other[2]
    if isinstance(config, ast.Call):
        name = context.fsdp1(config.func) or ""
        if name in _CONFIGURATIONS:
            offload = keyword(config, _OFFLOAD, 0)
            rank_0 = keyword(config, _RANK_0, 1)
            offload_code = _CONFIGURATIONS[name]
            if offload is not None:
                offload_code = ast.unparse(offload)
            rank_0_code = _FALSE
            if rank_0 is not None:
                rank_0_code = ast.unparse(rank_0)
            return offload_code, rank_0_code, True
    every = {_flags(context, each) for each in values(context.file, config) if each is not config}
    attributes = context.file.attributes
    uses = [*attributes.get(_OFFLOAD, ()), *attributes.get(_RANK_0, ())]
    if len(every) == 1 and all(isinstance(use.ctx, ast.Load) for use in uses):
        return every.pop()
    source = ast.unparse(config)
    return f"{source}.{_OFFLOAD}", f"{source}.{_RANK_0}", False


def is_for_rank_0(context: Context, call: ast.expr) -> bool:
    """Whether every use of what is assigned from a call is under a test for one rank, in torch's form."""
    file = context.file
    if context.form != "torch":
        return False
    statement = file.parents[call]
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
        return False
    reads = file.reads(statement.targets[0])
    return bool(reads) and all(_is_under_test(context, read) for read in reads)


def _is_under_test(context: Context, node: ast.AST) -> bool:
    around = context.file.ancestors(node)
    tests = [each.test for each in around if isinstance(each, ast.If | ast.IfExp)]
    return any(_FIRST.search(ast.unparse(test)) for test in tests)


def is_typed(file: File, node: ast.AST) -> bool:
    """Whether a node is in the context of a type of state dicts."""
    withs = [each for each in file.ancestors(node) if isinstance(each, ast.With)]
    contexts = [item.context_expr for each in withs for item in each.items]
    return any("state_dict_type" in file.source(each) for each in contexts)
