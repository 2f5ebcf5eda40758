"""What a state-dict type with its configurations means in options of `torch.distributed.checkpoint.state_dict`."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from fsdp_migrate.codemods.context import RUNTIME, Context
from fsdp_migrate.index.module import Module
from fsdp_migrate.index.names import PACKAGE, fsdp1_member
from fsdp_migrate.index.project import Definition
from fsdp_migrate.index.values import Origin, origin

SIGNATURE = ("module", "state_dict_type", "state_dict_config", "optim_state_dict_config")
Options = dict[str, str]  # of StateDictOptions, as source
_TRUE = "True"


@dataclass(frozen=True)
class Settings:
    """A type, and where its state dicts go.

    Attributes:
        kind: FULL, SHARDED or LOCAL.
        offload, rank0_only: of the model's configuration; False and False by default.
        optim_offload, optim_rank0_only: of the optimizer's; True and False by default.
    """

    kind: str = "FULL"
    offload: bool = False
    rank0_only: bool = False
    optim_offload: bool = True
    optim_rank0_only: bool = False

    def of_model(self) -> Options | None:
        """The options of `get_model_state_dict`; None if there are none that say the same."""
        return _saving(self.kind, self.offload, self.rank0_only)

    def of_optimizer(self) -> Options | None:
        """The options of `get_optimizer_state_dict`; None if there are none that say the same."""
        return _saving(self.kind, self.optim_offload, self.optim_rank0_only)

    @property
    def is_default_of_optimizer(self) -> bool:
        """Whether the runtime's `optim_state_dict` does the same where no type is set."""
        return (self.kind, self.optim_offload, self.optim_rank0_only) == ("FULL", True, False)

    def to_model(self) -> Options:
        """The options of `set_model_state_dict`."""
        return {"full_state_dict": _TRUE} if self.kind == "FULL" else {}

    def to_optimizer(self) -> Options:
        """The options of `set_optimizer_state_dict`: with `rank0_only` FSDP1 takes what rank 0 has."""
        options = self.to_model()
        if options and self.optim_rank0_only:
            options["broadcast_from_rank0"] = _TRUE
        return options


DEFAULT = Settings()


def _saving(kind: str, offload: bool, rank0_only: bool) -> Options | None:
    if kind == "SHARDED":
        return {"cpu_offload": _TRUE} if offload else {}
    if kind != "FULL" or offload != rank0_only:
        return None  # a full state dict on the CPU is rank 0's alone
    full = {"full_state_dict": _TRUE}
    return {**full, "cpu_offload": _TRUE} if offload else full


def arguments(call: ast.Call) -> dict[str, ast.expr] | None:
    """What a call gives for each parameter of `state_dict_type`; None if some of it is not in sight."""
    if any(isinstance(a, ast.Starred) for a in call.args) or len(call.args) > len(SIGNATURE):
        return None
    given = dict(zip(SIGNATURE, call.args, strict=False))
    for keyword in call.keywords:
        if keyword.arg not in SIGNATURE:
            return None
        given[keyword.arg] = keyword.value
    return given


def settings(context: Context, call: ast.Call) -> Settings | str:
    """What a call of `state_dict_type` or `set_state_dict_type` asks for, or why that cannot be told."""
    given = arguments(call)
    if given is None or "state_dict_type" not in given:
        return "the type is not in sight"
    kind = _kind(context, given["state_dict_type"])
    if kind is None:
        return "the type is known only when the program runs"
    flags = _flags(context, given.get("state_dict_config"), kind, "StateDictConfig", False)
    of_optimizer = _flags(
        context, given.get("optim_state_dict_config"), kind, "OptimStateDictConfig", kind != "LOCAL"
    )
    if flags is None or of_optimizer is None:
        return "the configuration is known only when the program runs"
    return Settings(kind, *flags, *of_optimizer)


def _kind(context: Context, expression: ast.expr) -> str | None:
    made = made_by(context, expression)
    if made is None or made.node is None:
        return None
    members = {_member(path) for path in context.project.dotted(made.node, made.module)}
    kinds = {member[1] for member in members if member and member[0] == "StateDictType"}
    if len(members) != 1 or len(kinds) != 1:
        return None
    name = kinds.pop().removesuffix("_STATE_DICT")
    return name if name in {"FULL", "SHARDED", "LOCAL"} else None


def _member(path: str) -> tuple[str, str] | None:
    """Likewise for the runtime's types, which a program has after a first migration."""
    return fsdp1_member(path.replace(f"{RUNTIME}.", f"{PACKAGE}."))


def _flags(
    context: Context, expression: ast.expr | None, kind: str, base: str, offload: bool
) -> tuple[bool, bool] | None:
    """`offload_to_cpu` and `rank0_only` of a configuration; None if it is not in sight or of another type."""
    if expression is None:
        return offload, False
    made = made_by(context, expression)
    if made is None or made.node is None:
        return None
    if isinstance(made.node, ast.Constant) and made.node.value is None:
        return offload, False
    name = f"{kind.capitalize()}{base}"
    call = made.node
    if not isinstance(call, ast.Call):
        return None
    if context.project.dotted(call.func, made.module) != {f"{RUNTIME}.{name}"}:
        if context.project.fsdp1(call.func, made.module) != name:
            return None
    names = ["offload_to_cpu", "rank0_only" if kind == "FULL" else "_use_dtensor"]
    flags = {names[0]: offload, names[1]: False}
    if any(isinstance(a, ast.Starred) for a in call.args) or len(call.args) > len(names):
        return None
    given = [*zip(names, call.args, strict=False), *((k.arg, k.value) for k in call.keywords)]
    for flag, value in given:
        made_of = origin(context.project, value, made.module)
        node = None if made_of is None else made_of.node
        if flag not in flags or not isinstance(node, ast.Constant):
            return None
        if not isinstance(node.value, bool):
            return None
        flags[flag] = node.value
    return flags[names[0]], kind == "FULL" and flags[names[1]]


def made_by(context: Context, expression: ast.expr) -> Origin | None:
    """The one expression that made a value: through names, and attributes that are given one value."""
    module = context.module
    for _ in range(4):
        made = origin(context.project, expression, module)
        if made is None or not isinstance(made.node, ast.Attribute):
            return made
        value = _given_once(context, made.node, made.module)
        if value is None:
            return made
        expression, module = value, made.module
    return None


def _given_once(context: Context, attribute: ast.Attribute, module: Module) -> ast.expr | None:
    """The value of an attribute of `self` or of a class, where one statement of that class gives it and no other does."""
    owner = attribute.value
    if isinstance(owner, ast.Name) and owner.id in {"self", "cls"}:
        cls = module.enclosing_class(attribute)
    else:
        found = context.project.definition(owner, module)
        cls = found.node if found is not None and isinstance(found.node, ast.ClassDef) else None
        if isinstance(found, Definition) and found.module is not module:
            return None
    if cls is None or cls.decorator_list:  # a dataclass gives its fields what its caller gives
        return None
    values = [
        statement.value
        for statement in cls.body
        if isinstance(statement, ast.Assign | ast.AnnAssign)
        if any(getattr(target, "id", "") == attribute.attr for target in _targets(statement))
    ]
    for other in context.project.modules:
        for node, scope in other.scopes.items():
            if isinstance(node, ast.ClassDef) and node is not cls:
                if attribute.attr in scope.bindings:  # a class below may give another value
                    return None
        for store in other.attributes:
            if store.attr != attribute.attr or isinstance(store.ctx, ast.Load):
                continue
            statement = other.parents[store]
            own = other is module and other.enclosing_class(store) is cls
            if not own or getattr(store.value, "id", "") != "self":
                return None
            if not isinstance(statement, ast.Assign | ast.AnnAssign):
                return None
            values.append(statement.value)
    return values[0] if len(values) == 1 else None


def _targets(statement: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    return statement.targets if isinstance(statement, ast.Assign) else [statement.target]
