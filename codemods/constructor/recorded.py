"""What a run gave to a constructor, in plain PyTorch, for the arguments whose values no file shows.

The plain form is then right for that configuration alone: each value that the program could start with otherwise is checked,
in the program's own terms. Without such a check the constructor stays on the bridge; only units may be another grouping
of the same parameters, which trains the same.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from fsdp_migrate.codemods.constructor import arguments, precision, recorded_units
from fsdp_migrate.codemods.constructor.construction import FREE, NEEDED, Construction
from fsdp_migrate.codemods.constructor.origin import HINT, Origin, keeps_parameters, origin_of
from fsdp_migrate.codemods.constructor.plain import Plain, Stays, has_torch, is_pure, spent
from fsdp_migrate.codemods.constructor.recorded_checks import OPTIONS, conditions, written
from fsdp_migrate.codemods.constructor.translate import HYBRID, mesh, translated
from fsdp_migrate.codemods.constructor.wrapping import named_classes
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Import
from fsdp_migrate.facts.names import CLASS, RUNTIME
from fsdp_migrate.facts.program import Definition, External
from fsdp_migrate.facts.values import branches

if TYPE_CHECKING:
    from fsdp_migrate.values import Recorded

_WORLD, _CURRENT = "dist.group.WORLD", "torch.cuda.current_device()"
_LONG = 40


def parts(construction: Construction, names: Iterable[str], stays: Stays) -> dict[str, Plain]:
    """What arguments are in plain PyTorch by what a run gave them, by name.

    Raises:
        Stays: `stays`, if nothing was recorded; another, if the values differ or only the runtime has them.
    """
    recorded = construction.context.recorded(construction.call)
    if recorded is None:
        given = [each.value for each in construction.arguments if each.name in names]
        is_open = not all(_is_written(construction.context, value) for value in given)
        if is_open or construction.is_partly_known or "auto_wrap_policy" in names:
            raise Stays(f"{stays}; {HINT}, or write it out")
        raise stays
    if construction.ran is None:
        differs = ", ".join(sorted(NEEDED & recorded.differs.keys()))
        raise Stays(f"calls or ranks differed in: {differs}")
    by_run = _ByRun(construction, recorded)
    found = {name: by_run.part(name) for name in names}
    return {"**": by_run.keys(), **found} if construction.dictionaries else found


def origin(construction: Construction) -> Origin:
    """Where a model comes from; where the files do not show it, a run has seen that nothing held its parameters.

    Raises:
        Stays: if something held them, or neither says it.
    """
    known = construction.ran
    is_held = known is not None and known["parameters_held"]
    if is_held and not keeps_parameters(construction):
        raise Stays("an optimizer, or a list, held the model's parameters when it was wrapped")
    try:
        return origin_of(construction)
    except Stays:
        if known is None:
            raise
        calls = [(construction.context.file, construction.call)]
        return Origin(calls=calls, has_optimizer=is_held)


def chosen_class(construction: Construction) -> Plain:
    """FSDP1's class, where an expression chooses among several: checked, since the others make other models."""
    context, function = construction.context, construction.call.func
    made = context.value(function)
    leaves = branches(made.node) if made is not None else []
    name = next(context.source(leaf) for leaf in leaves if context.references.get(leaf) == CLASS)
    source = written(function)
    return Plain(fixed=f"{source}={name}", checks=(f"{source} is {name}",))


class _ByRun:
    def __init__(self, construction: Construction, recorded: Recorded) -> None:
        self.construction = construction
        self.context = construction.context
        file, maker = self.context.file, construction.maker
        if maker is not None and file.function(maker.call) is not file.function(construction.call):
            recorded = replace(recorded, names={})  # those of another function
        self.recorded = recorded

    def part(self, name: str) -> Plain:
        """One argument, with its check."""
        if name == "param_init_fn" and not self._has_values:
            from fsdp_migrate.values import NOT_GIVEN

            if NOT_GIVEN in self.recorded.differs.get(name, ()):
                raise Stays("param_init_fn was not always given")
            return recorded_units.initialization(
                self.construction, self.recorded, self.expression(name), self._named, self._device
            )
        if name in self.recorded.differs:
            seen = " and ".join(self.recorded.differs[name])
            raise Stays(f"{name} differed between calls or ranks: {seen}")
        text, value = self.recorded.arguments.get(name, "None"), self.expression(name)
        made = self._plain(name, text)
        if value is None or _writes(value, (*made.shared.values(), *made.above)):
            return made  # as the program says, whatever that is
        if not self._is_bound(value) and not self._can_go(value):
            raise Stays(f"evaluating {name} may have side effects")
        checks = () if self._is_free(name, text, value) else self._checks(name, text, value)
        given = self.context.value(value)
        if _writes(value, checks):
            made = replace(made, kept=(*made.kept, value))
        elif given is not None and (spare := spent(self.context, given)):
            made = replace(made, statements=spare, removed=(given.node,))
        if name == "auto_wrap_policy" and named_classes(self.construction):
            return made  # whatever classes the program chooses
        units = "by class" if made.units else "by name" if made.members else "none"
        short = f"={text.removeprefix('ShardingStrategy.')}" if len(text) < _LONG else ""
        fixed = f"{name}{short}" if checks else ""
        fixed = f"units {units}" if name == "auto_wrap_policy" else fixed
        unsaid = (
            ""
            if checks or not fixed
            else "; not checked when the program runs: with other units it trains the same"
        )
        message = "; ".join(filter(None, (f"as recorded: {text}{unsaid}", made.message)))
        needs = tuple(
            need._replace(at=self.construction.call.func)
            for option, need in OPTIONS.items()
            if any(option in check for check in checks)
        )
        return replace(
            made, message=message, fixed=fixed, checks=checks, imports=(*made.imports, *needs)
        )

    @property
    def _has_values(self) -> bool:
        """Whether the model had its values on all ranks, and no function was given to make them."""
        given = self.recorded.arguments.get("param_init_fn", "None")
        differs = "param_init_fn" in self.recorded.differs
        return (
            given == "None" and not differs and not recorded_units.was_on_meta(self.recorded.facts)
        )

    def _is_free(self, name: str, text: str, value: ast.expr) -> bool:
        """Whether an argument can have no other value, or none that makes a difference."""
        if name in FREE or text == _CURRENT or _is_written(self.context, value):
            return True
        if name == "auto_wrap_policy":
            return bool(named_classes(self.construction))
        return name == "device_id" and arguments.is_set_before(self.construction, value)

    def _checks(self, name: str, text: str, value: ast.expr) -> tuple[str, ...]:
        """The conditions under which an argument has its recorded value; units may be grouped otherwise.

        Raises:
            Stays: if there is none.
        """
        found = conditions(self.construction, self.recorded, value, text)
        if not any(found) and name != "auto_wrap_policy":
            raise Stays(f"{name} was {text}, and nothing that its function can name says so")
        return tuple(map(self._named, filter(None, found)))

    def expression(self, name: str) -> ast.expr | None:
        """What gives an argument: in the call, or as a key of what is unpacked into it; None if nothing does."""
        for argument in self.construction.arguments:
            if argument.name == name and not argument.unpacked:
                return argument.value
        if name not in self._seen:
            return None
        made = ast.Subscript(self._dictionary, ast.Constant(name), ast.Load())
        return ast.copy_location(ast.fix_missing_locations(made), self._dictionary)

    def keys(self) -> Plain:
        """What is unpacked into the call: a name for it, and the check that it has no other key than those that were seen."""
        own = {each.name for each in self.construction.arguments if not each.unpacked}
        seen = ", ".join(json.dumps(key) for key in sorted(self._seen - own))
        source = written(self._dictionary)
        name = self._name or source
        first = () if name == source else (f"{name} = {source}",)
        check = f"set({name}) <= {{{seen}}}" if seen else f"not {name}"
        return Plain(first=first, checks=(check,), kept=(self._dictionary,))

    @property
    def _seen(self) -> set[str]:
        """The arguments that were given; `param_init_fn` may have been another one on other ranks."""
        return {*self.recorded.arguments, *({"param_init_fn"} & self.recorded.differs.keys())}

    @cached_property
    def _dictionary(self) -> ast.expr:
        """What is unpacked into the call.

        Raises:
            Stays: if that is not a single dictionary.
        """
        found = self.construction.dictionaries
        if len(found) != 1 or any(
            isinstance(each, ast.Starred) for each in self.construction.call.args
        ):
            raise Stays("arguments are unpacked from several places")
        return found[0]

    @cached_property
    def _name(self) -> str | None:
        """A name for what is unpacked, if it has none."""
        if isinstance(self._dictionary, ast.Name | ast.Attribute):
            return None
        return self.context.free("options", self.construction.call)

    def _is_bound(self, value: ast.expr) -> bool:
        """Whether an argument is a key of a dictionary that is evaluated as before."""
        return isinstance(value, ast.Subscript) and value.value in self.construction.dictionaries

    def _named(self, code: str) -> str:
        """Code with the name of what is unpacked."""
        if not self.construction.dictionaries or self._name is None:
            return code
        return code.replace(written(self._dictionary), self._name)

    def _can_go(self, value: ast.AST) -> bool:
        """Whether nothing is missed without an expression: a function of the program in it sets nothing."""
        if isinstance(value, ast.Lambda) or is_pure(self.context, value):
            return True
        if isinstance(value, ast.Call) and getattr(value.func, "id", "") != "getattr":
            made = self.context.program.definition(value.func, self.context.file)
            if made is None or any(_sets(inner) for inner in ast.walk(made.node)):
                return False
        return not isinstance(value, ast.Await | ast.NamedExpr) and all(
            self._can_go(child) for child in ast.iter_child_nodes(value)
        )

    def _plain(self, name: str, text: str) -> Plain:
        """A recorded value in plain PyTorch.

        Raises:
            Stays: if only the runtime has it.
        """
        own = {"device_mesh": self._mesh, "process_group": self._group}
        if name in own:
            return own[name](text)
        if name == "ignored_modules" and text != "None":
            return recorded_units.ignored(self.construction, self.recorded, self._source(name))
        if name == "auto_wrap_policy":
            return recorded_units.units(self.construction, self.recorded)
        if name == "device_id":
            if text in ("None", _CURRENT, "torch.device('cpu')"):
                return Plain()
            raise Stays(f"device_id was {text}: the runtime makes this device the current one")
        if name == "sharding_strategy" and self._strategy == "NO_SHARD":
            return Plain()  # it is the mesh
        value = _parsed(name, text)
        made = translated(name, value)
        if name == "sync_module_states" and value:
            return replace(made, above=(self._broadcast(),))
        if name == "mixed_precision" and value is not None:
            if not has_torch(self.context, self.construction.call):
                raise Stays("mixed_precision: its types need `import torch`")
            made = made if self.recorded.facts["buffers"] else precision.without_buffers(made)
        return made

    def _broadcast(self) -> str:
        if self._has_own_ranks():
            raise Stays("sync_module_states: the runtime broadcasts among the ranks that shard")
        return f"broadcast_module_states({{model}}{self._device})"

    @property
    def _device(self) -> str:
        """The argument for the device that the program gives, if it gives one."""
        given = self.expression("device_id") is not None
        return f", device={self._source('device_id')}" if given else ""

    @property
    def _strategy(self) -> str:
        text = self.recorded.arguments.get("sharding_strategy", "None")
        return str(_parsed("sharding_strategy", text) or "FULL_SHARD")

    def _has_own_ranks(self) -> bool:
        given = [self.recorded.arguments.get(name) for name in ("process_group", "device_mesh")]
        return any(text not in (None, "None", _WORLD) for text in given)

    def _mesh(self, text: str) -> Plain:
        """The mesh that was given, or that the strategy needs where neither a mesh nor a group was."""
        if text == "None":
            if self._has_own_ranks() or self._strategy not in (*HYBRID, "NO_SHARD"):
                return Plain()
            ranks = self.recorded.facts["shard_ranks"]
            code = mesh(self._strategy, self._device_type(), ranks, self._world)
            module = "torch.distributed.device_mesh"
            return self._named_mesh(code, "init_device_mesh", module)
        call = ast.parse(text, mode="eval").body
        assert isinstance(call, ast.Call)
        shape, named = ast.literal_eval(call.args[1]), ast.unparse(call.keywords[0].value) != "None"
        source = self._source("device_mesh")
        if self._strategy in HYBRID and len(shape) == 2 and named:
            return Plain(shared={"mesh": source})
        if self._strategy not in HYBRID and self._strategy != "NO_SHARD" and len(shape) == 1:
            return Plain(shared={"mesh": source})
        return self._built(f"device_mesh={source}")

    @property
    def _world(self) -> str:
        """The number of ranks, as source."""
        context, call = self.context, self.construction.call
        is_bound = context.file.scope_of(call).lookup("dist") is not None
        if is_bound and context.means("dist", call, "torch.distributed"):
            return "dist.get_world_size()"
        if has_torch(context, call):
            return "torch.distributed.get_world_size()"
        raise Stays("sharding_strategy: the mesh needs `import torch.distributed as dist`")

    def _group(self, text: str) -> Plain:
        if text in ("None", _WORLD):
            return Plain()
        source = self._source("process_group")
        if self._strategy in ("FULL_SHARD", "SHARD_GRAD_OP"):
            code = f"DeviceMesh.from_group({source}, {self._device_type()})"
            return self._named_mesh(code, "DeviceMesh", "torch.distributed.device_mesh")
        return self._built(f"process_group={source}")

    def _built(self, given: str) -> Plain:
        code = f'build_mesh("{self._strategy}", {self._device_type()}, {given})'
        return self._named_mesh(code, "build_mesh", RUNTIME)

    def _named_mesh(self, code: str, function: str, module: str) -> Plain:
        name = self.context.free("mesh", self.construction.call)
        need = Import(module, function, self.construction.call.func)
        return Plain(shared={"mesh": name}, above=(f"{name} = {code}",), imports=(need,))

    def _source(self, name: str) -> str:
        value = self.expression(name)
        assert value is not None
        return self._named(written(value))

    def _device_type(self) -> str:
        """The kind of device: asked of the device that the program gives, else as it was."""
        value = self.expression("device_id")
        is_device = self.recorded.arguments.get("device_id", "").startswith("torch.device(")
        if is_device and isinstance(value, ast.Name | ast.Attribute):
            return f"{self._named(written(value))}.type"
        return f'"{self.recorded.facts["device_type"]}"'


def _is_written(context: Context, value: ast.expr) -> bool:
    """Whether an expression can have one value only: it consists of literals and names from other packages."""
    made = context.value(value)
    if made is None or isinstance(value, ast.Subscript):
        return False
    for node in ast.walk(made.node) if not isinstance(made.node, ast.Lambda) else ():
        if isinstance(node, ast.Call) and context.program.definition(node.func, made.file):
            return False
        if isinstance(node, ast.Name):
            meanings = context.program.meanings(node, made.file)
            if not meanings or not all(isinstance(m, External | Definition) for m in meanings):
                return False
    return True


def _writes(value: ast.expr, lines: Iterable[str]) -> bool:
    """Whether code contains an expression verbatim."""
    wanted = re.compile(rf"(?<![\w.]){re.escape(written(value))}(?!\w)")
    return any(map(wanted.search, lines))


def _parsed(name: str, text: str) -> object:
    """A recorded value as `translated` takes it.

    Raises:
        Stays: if it has no text.
    """
    try:
        node = ast.parse(text, mode="eval").body
    except SyntaxError:
        raise Stays(f"{name} was {text}, which only the bridge supports") from None
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Call):
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        if name == "cpu_offload":
            return bool(given)
        return {
            k: v.value if isinstance(v, ast.Constant) else ast.unparse(v) for k, v in given.items()
        }
    raise Stays(f"{name} was {text}")


def _sets(node: ast.AST) -> bool:
    """Whether a statement changes what is not a function's own."""
    if isinstance(node, ast.Global | ast.Nonlocal | ast.Delete | ast.Yield | ast.Await):
        return True
    return isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store)
