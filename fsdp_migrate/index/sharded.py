"""Where FSDP2 models go: from the `fully_shard` that shards a module in place to every use.

The way is the one that FSDP1 models take (`flow`), but for the start: `fully_shard(model)` shards what `model` is from that
call on, also for those who gave it to the function that the call stands in.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from fsdp_migrate.index.bindings import Held
from fsdp_migrate.index.flow import Flow, unchained
from fsdp_migrate.index.labels import Site
from fsdp_migrate.index.models import Models, class_tests, declared
from fsdp_migrate.index.module import Assigned, Module, Parameter
from fsdp_migrate.index.names import FSDP1_PATHS, FSDP2_PATHS
from fsdp_migrate.index.order import after, block_of, leaves
from fsdp_migrate.index.project import Definition, External

_SHARDING = frozenset(f"{path}.fully_shard" for path in FSDP2_PATHS) | {
    "fsdp_migrate.runtime.shard_model"
}
_MODULES = frozenset(f"{path}.FSDPModule" for path in FSDP2_PATHS)
_OTHERS = frozenset(f"{path}.FullyShardedDataParallel" for path in FSDP1_PATHS) | {
    "torch.nn.parallel.DistributedDataParallel",
    "torch.nn.parallel.distributed.DistributedDataParallel",
}
_SAME = frozenset({"torch.distributed.tensor.parallel.parallelize_module"})
# Words of a condition that tells models apart by how they are distributed.
_TELLING = re.compile(
    r"isinstance|hasattr|fsdp|ddp|dtensor|strateg|parallel|distributed|shard|version|backend|world",
    re.IGNORECASE,
)


@dataclass(frozen=True, eq=False)
class Place:
    """A call that shards a module: `fully_shard` itself, or a function that shards what it is given.

    Attributes:
        model: the module that is sharded, as the call gives it.
        site: of the `fully_shard`.
        alias: `model` is another name of what the call gives.
    """

    module: Module
    call: ast.Call
    model: ast.expr
    site: Site
    alias: bool = False

    @property
    def is_direct(self) -> bool:
        """Whether the call is that of `fully_shard`, and gives it this module."""
        return self.call is self.site.call and not self.alias


@dataclass(eq=False)
class Sharded:
    """The expressions of a project that hold modules sharded by `fully_shard`.

    Attributes:
        models: FSDP1's models: what may be one of them is none of these.
        places: the calls that shard modules.
        reached: the files in which such a module is seen.
    """

    models: Models
    places: list[Place] = field(default_factory=list)

    def __post_init__(self) -> None:
        project = self.project = self.models.project
        guarded = list(class_tests(project, lambda e, m: bool(project.dotted(e, m) & _MODULES)))
        others = class_tests(project, lambda e, m: bool(project.dotted(e, m) & _OTHERS))
        ruled_out = {node for _, _, contrary in guarded for node in contrary}
        ruled_out |= {node for _, behind, _ in others for node in behind}
        self._flow = Flow(self.models.uses, self.models.instances, ruled_out)
        for module in project.modules:
            for call in module.calls:
                if self.is_sharding(call, module):
                    site = Site(module, call)
                    self._flow.add(module, call, (), site)
                    for model in _given(call):
                        self._shard(module, call, model, site)
        for module, scope, name in declared(
            project, lambda e, m: bool(project.dotted(e, m) & _MODULES)
        ):
            self._flow.parameter(module, scope, name, Site(module, None))
        for module, behind, _ in guarded:
            for node in behind:
                self._flow.add(module, node, (), Site(module, None))
        self._flow.run()
        self.reached = self._flow.reached | {place.module for place in self.places}

    def is_sharding(self, call: ast.Call, module: Module) -> bool:
        """Whether a call is one of `fully_shard` (or of the runtime's function in its place)."""
        found = self.project.meanings(call.func, module)
        return any(isinstance(m, External) and m.dotted in _SHARDING for m in found) and not any(
            isinstance(m, Definition) for m in found
        )

    def is_fully_shard(self, call: ast.Call, module: Module) -> bool:
        """Whether a call is one of `fully_shard` itself."""
        return any(p.endswith(".fully_shard") for p in self.project.dotted(call.func, module))

    def holds(self, expression: ast.expr, module: Module) -> bool:
        """Whether an expression certainly can hold a sharded module.

        Not behind a condition that may say it is none, not where FSDP1's model can be meant as well, and not in code that
        runs before the module is sharded.
        """
        found = [s for s in self._flow.sites.get(expression, ()) if not s.partly]
        if not found or self.models.sites(expression):
            return False
        return any(self._is_certain(site, expression, module) for site in found)

    def has_known_class(self, expression: ast.expr) -> bool:
        """Whether the class of a sharded module is one of the project's, so that its attributes are in sight."""
        sites = self._flow.sites.get(expression, set())
        return any(
            self.models.class_of(place.model, place.module) is not None
            for place in self.places
            if place.site in sites
        )

    def _is_certain(self, site: Site, expression: ast.expr, module: Module) -> bool:
        if site.call is None:
            return True
        places = [place for place in self.places if place.site is site]
        inside = {id(n) for p in places for n in p.module.ancestors(p.call)}
        words = {w for p in places for _, test in _tests(p.module, p.call) for w in _names(test)}
        for statement, test in _tests(module, expression):
            text = ast.unparse(test).replace("torch.distributed", "")
            telling = _TELLING.search(text) or words & _names(test)
            if telling and id(statement) not in inside:
                return False
        shared = isinstance(expression, ast.Attribute) or not self._is_local(expression, module)
        return not (shared and any(self._comes_first(module, expression, p, 0) for p in places))

    def _is_local(self, expression: ast.expr, module: Module) -> bool:
        if not isinstance(expression, ast.Name):
            return True
        found = module.lookup(expression.id, module.scope_of(expression))
        return found is not None and found[0] is module.scope_of(expression)

    def _comes_first(self, module: Module, node: ast.AST, place: Place, depth: int) -> bool:
        """Whether the function around a node runs before a module is sharded, for all that can be seen."""
        function = module.enclosing_function(node)
        around = place.module.enclosing_function(place.call)
        if function is None or function is around or depth > 2:
            return False
        if getattr(function, "name", "") == "__init__":
            owner = module.enclosing_class(node)
            if owner is not None and owner is place.module.enclosing_class(place.call):
                return True
        for where, call in self.models.callers_of(function):
            if where is place.module and where.enclosing_function(call) is around:
                if not after(call, place.call):
                    return True
            elif self._comes_first(where, call, place, depth + 1):
                return True
        return False

    def _shard(
        self,
        module: Module,
        call: ast.Call,
        model: ast.expr,
        site: Site,
        depth: int = 0,
        *,
        alias: bool = False,
    ) -> None:
        """A call shards a module in place: its names hold it from here on, and so do those of the callers."""
        model = unchained(model)
        self.places.append(Place(module, call, model, site, alias))
        held = Held(module, module.statement(call), (), site)
        if isinstance(model, ast.Attribute):
            self._flow.bindings.bind_attribute(model.value, model.attr, held)
        if not isinstance(model, ast.Name):
            return
        scope = module.scope_of(model)
        bindings = scope.bindings.get(model.id, [])
        if module.lookup(model.id, scope) is None:
            self._shard_unbound(model, held)
        if not bindings or model.id in scope.elsewhere:
            return
        self._flow.bindings.bind(scope, model.id, held)
        first, *later = bindings
        if depth > 3 or not all(self._is_kept(binding, model.id, module) for binding in later):
            return
        if isinstance(first, Parameter):
            for where, caller in self.models.callers_of(first.function):
                given = self._argument(where, caller, first)
                if given is not None:
                    self._shard(where, caller, given, site, depth + 1)
        elif isinstance(first, Assigned) and not first.path:
            if isinstance(first.value, ast.Name | ast.Attribute):
                self._shard(module, call, first.value, site, depth + 1, alias=True)

    def _is_kept(self, binding: object, name: str, module: Module) -> bool:
        """Whether a name that is bound again stays the same module: `m = m.to(device)`, `m = shard(m)`."""
        if not isinstance(binding, Assigned) or binding.path:
            return False
        value = unchained(binding.value)
        if isinstance(value, ast.Name):
            return value.id == name
        if not isinstance(value, ast.Call) or not value.args:
            return False
        if not isinstance(value.args[0], ast.Name) or value.args[0].id != name:
            return False
        function = self.project.definition(value.func, module)
        if function is not None and isinstance(function.node, ast.FunctionDef):
            return _returns_first(function.node)
        return self.is_sharding(value, module) or bool(
            self.project.dotted(value.func, module) & _SAME
        )

    def _shard_unbound(self, model: ast.Name, held: Held) -> None:
        """A name that comes from elsewhere, by `import *`: from the statement on it holds what was sharded."""
        module, statement = held.module, held.statement
        assert statement is not None
        for load in module.loads[model.id]:
            if module.scope_of(load) is module.scope_of(model) and after(load, statement):
                self._flow.add(module, load, held.path, held.label)

    def _argument(self, module: Module, call: ast.Call, parameter: Parameter) -> ast.expr | None:
        for keyword in call.keywords:
            if keyword.arg == parameter.argument.arg:
                return keyword.value
        _, shift = self._flow.arguments.callee(call, module)
        position = None if parameter.position is None else parameter.position - shift
        if position is None or not 0 <= position < len(call.args):
            return None
        if any(isinstance(argument, ast.Starred) for argument in call.args[: position + 1]):
            return None
        return call.args[position]


def _given(call: ast.Call) -> list[ast.expr]:
    """What a call of `fully_shard` shards: one module, or each of a list."""
    given = call.args[:1] or [k.value for k in call.keywords if k.arg == "module"]
    return [
        module
        for value in given
        for module in (value.elts if isinstance(value, ast.List | ast.Tuple) else [value])
        if not isinstance(module, ast.Starred)
    ]


def _returns_first(function: ast.FunctionDef) -> bool:
    """Whether a function returns what it is given first, by name."""
    parameters = [*function.args.posonlyargs, *function.args.args]
    returned = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)]
    return bool(parameters and returned) and all(
        isinstance(value, ast.Name) and value.id == parameters[0].arg for value in returned
    )


def _tests(module: Module, node: ast.AST) -> Iterator[tuple[ast.AST, ast.expr]]:
    """The conditions that decide, inside of its function, whether a node runs, each with its statement."""
    child = node
    for parent in module.ancestors(node):
        if isinstance(parent, ast.If | ast.IfExp | ast.While) and child is not parent.test:
            yield parent, parent.test
        elif isinstance(parent, ast.BoolOp):
            for value in parent.values[: parent.values.index(child)]:  # type: ignore[arg-type]
                yield parent, value
        if isinstance(child, ast.stmt):
            block = block_of(parent, child)
            for before in block[: block.index(child)] if block else ():
                if isinstance(before, ast.If) and leaves(before.body):
                    yield before, before.test
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return
        child = parent


def _names(test: ast.expr) -> set[str]:
    """The names and attributes that a condition reads."""
    found = {n.id for n in ast.walk(test) if isinstance(n, ast.Name)}
    dotted = {n.attr for n in ast.walk(test) if isinstance(n, ast.Attribute)}
    owners = {
        n.value.id
        for n in ast.walk(test)
        if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)
    }
    return (found - owners) | dotted
