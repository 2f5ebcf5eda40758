"""One constructor call: its arguments by FSDP1's signature, and what the program around says of its model."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.index.extension import is_extended
from fsdp_migrate.index.known_modules import UNKNOWN, Makeup
from fsdp_migrate.index.makeup import makeup
from fsdp_migrate.index.models import SELF_RETURNING, Site
from fsdp_migrate.index.module import Module
from fsdp_migrate.index.names import fsdp1_member
from fsdp_migrate.index.project import Definition
from fsdp_migrate.index.values import Origin, origin, origins

# FullyShardedDataParallel.__init__, the same from torch 2.2 to 2.13.
SIGNATURE = (
    "module",
    "process_group",
    "sharding_strategy",
    "cpu_offload",
    "auto_wrap_policy",
    "backward_prefetch",
    "mixed_precision",
    "ignored_modules",
    "param_init_fn",
    "device_id",
    "sync_module_states",
    "forward_prefetch",
    "limit_all_gathers",
    "use_orig_params",
    "ignored_states",
    "device_mesh",
)
_LOOPS = (
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
)
# Contexts of other libraries that build models on the meta device.
_ON_META = frozenset({"init_empty_weights", "init_on_device", "deferred_init", "skip_init"})
# Spellings of torch 1.11 to 2.0.
FORMER_NAMES = {
    "fsdp_auto_wrap_policy": "auto_wrap_policy",
    "ignored_parameters": "ignored_states",
}


@dataclass(frozen=True, eq=False)
class Argument:
    """One argument of the call.

    Attributes:
        name: its name in FSDP1's signature.
        value: the expression.
        index: its place among the positional arguments followed by the keyword arguments.
        node: the keyword, or the value of a positional argument.
    """

    name: str
    value: ast.expr
    index: int
    node: ast.keyword | ast.expr


class Constructor:
    """A call of FSDP1's class, with its arguments by name."""

    def __init__(self, context: Context, call: ast.Call) -> None:
        self.context = context
        self.call = call
        self.site = next(site for site in context.models.sites(call) if site.call is call)
        self.arguments: dict[str, Argument] = {}
        self.unknown: list[ast.keyword] = []
        self.maker = context.models.maker(call)
        self.splat = (  # arguments that are not in sight
            self.maker is not None
            or any(isinstance(a, ast.Starred) for a in call.args)
            or any(keyword.arg is None for keyword in call.keywords)
        )
        self._bind()

    def _bind(self) -> None:
        for index, value in enumerate(self.call.args):
            if isinstance(value, ast.Starred):
                break
            if index < len(SIGNATURE):
                self.arguments[SIGNATURE[index]] = Argument(SIGNATURE[index], value, index, value)
        for index, keyword in enumerate(self.call.keywords, start=len(self.call.args)):
            if keyword.arg is None:
                continue
            name = FORMER_NAMES.get(keyword.arg, keyword.arg)
            if name in SIGNATURE:
                self.arguments[name] = Argument(name, keyword.value, index, keyword)
            else:
                self.unknown.append(keyword)

    def position(self, argument: Argument) -> int:
        """The argument's place in the call as written: `ast` lists positional arguments first, even behind `**kwargs`."""
        everything: list[ast.expr | ast.keyword] = [*self.call.args, *self.call.keywords]
        in_order = sorted(everything, key=lambda node: (node.lineno, node.col_offset))
        return in_order.index(everything[argument.index])

    def value(self, name: str) -> ast.expr | None:
        """The expression given for an argument; None if it is left out."""
        argument = self.arguments.get(name)
        return None if argument is None else argument.value

    def constant(self, name: str, default: object) -> object:
        """An argument's value where it is a literal, `default` where it is left out, and `...` where it is unknown."""
        value = self.value(name)
        if value is None:
            return default
        made = self.origin(value)
        return made.node.value if made is not None and isinstance(made.node, ast.Constant) else ...

    def origin(self, value: ast.expr) -> Origin | None:
        """The one expression that made a value."""
        return origin(self.context.project, value, self.context.module)

    def member(self, value: ast.expr, owner: str) -> str | None:
        """The enum member that a value is: `NO_SHARD` for `ShardingStrategy.NO_SHARD`, directly or through one name."""
        made = self.origin(value)
        if made is None or made.node is None:
            return None
        members = {
            fsdp1_member(path) for path in self.context.project.dotted(made.node, made.module)
        }
        found = members.pop() if len(members) == 1 else None
        return found[1] if found is not None and found[0] == owner else None

    def is_none(self, name: str) -> bool:
        """Whether an argument is left out or certainly None."""
        return self.constant(name, None) is None

    @cached_property
    def model(self) -> ast.expr | None:
        """The module that is wrapped."""
        return self.value("module")

    @cached_property
    def wrapped_before(self) -> frozenset[Site]:
        """The other constructors that have wrapped this very model: in its expression, or before in the same function.

        What is wrapped in another function may be another way to set up the same attribute.
        """
        if self.model is None:
            return frozenset()
        function_of = self.context.module.enclosing_function
        return frozenset(
            site
            for site in self.context.sites(self.model)
            if site.call is not None and site is not self.site
            if isinstance(self.model, ast.Call)
            or (
                site.module is self.context.module
                and function_of(site.call) is function_of(self.call)
            )
        )

    @cached_property
    def makeup(self) -> Makeup:
        """What the wrapped model is made of, if its class can be found."""
        results = [
            UNKNOWN if cls is None else makeup(self.context.project, cls) for cls in self.classes
        ]
        if not results:
            return UNKNOWN
        if is_extended(self._places, self.context.module):
            return UNKNOWN
        return Makeup(all(r.no_batch_norm for r in results), all(r.no_buffers for r in results))

    @property
    def _places(self) -> list[ast.expr]:
        """Where the model can be reached: the expression that is wrapped, the names on its way, and the result."""
        if self.model is None:
            return [self.call]
        made = origins(self.context.project, self.model, self.context.module)
        return [self.model, self.call, *(name.target for o in made for name in o.names)]

    @cached_property
    def classes(self) -> list[Definition | None]:
        """The classes of the project that the model can be an instance of; None among them for one that cannot be told."""
        return [] if self.model is None else list(self._built())

    def _built(self) -> Iterator[Definition | None]:
        assert self.model is not None
        pending = [
            made
            for made in origins(self.context.project, self.model, self.context.module)
            if made.node is not self.call
        ]
        seen: set[ast.AST] = set()
        while pending:
            made = pending.pop()
            node = made.node
            if node is None:
                yield None
                return
            if node in seen or self.context.models.sites(node):
                continue  # the wrapped model itself, bound to the same name
            seen.add(node)
            if not isinstance(node, ast.Call):
                yield None
                return
            if isinstance(node.func, ast.Attribute) and node.func.attr in SELF_RETURNING:
                pending += origins(self.context.project, node.func.value, made.module)
                continue
            cls = self.context.project.definition(node.func, made.module)
            yield cls if cls is not None and isinstance(cls.node, ast.ClassDef) else None

    @property
    def may_be_nested(self) -> bool:
        """Whether another constructor may wrap this model, or this one another's: one in a file that hangs together.

        A constructor that can run more than once may wrap parts of a model first, and the model last.
        """
        around = self.context.project.connected(self.context.module)
        several = sum(where in around for where, _ in self.context.models.constructors) > 1
        return several or self._may_run_again(self.context.module, self.call, frozenset())

    def _may_run_again(self, module: Module, node: ast.AST, seen: frozenset[ast.AST]) -> bool:
        """Whether code stands in a loop, or in a function that is called in one or from more than one place."""
        for around in module.ancestors(node):
            if isinstance(around, _LOOPS):
                return True
            if isinstance(around, ast.Lambda) or around in seen:
                return True
            if isinstance(around, ast.FunctionDef | ast.AsyncFunctionDef):
                references = list(self._references(module, around))
                return len(references) > 1 or any(
                    not isinstance(call := where.parents[reference], ast.Call)
                    or call.func is not reference
                    or self._may_run_again(where, call, seen | {around})
                    for where, reference in references
                )
        return False

    def _references(
        self, module: Module, function: ast.FunctionDef | ast.AsyncFunctionDef
    ) -> Iterator[tuple[Module, ast.expr]]:
        """Where a function is named. A method goes by its name alone, a constructor by its class's."""
        owner = module.parents[function]
        name, meant = function.name, Definition(module, function)
        if isinstance(owner, ast.ClassDef) and name == "__init__":
            name, meant = owner.name, Definition(module, owner)
        by_name = isinstance(owner, ast.ClassDef) and name == function.name
        project = self.context.project
        for where in project.connected(module):
            spellings = {name} | {
                alias.asname
                for statement in where.imports
                for alias in statement.names
                if alias.name == name and alias.asname
            }
            loads: list[ast.expr] = [a for a in where.attributes if a.attr == name]
            loads += [load for spelling in spellings for load in where.loads.get(spelling, ())]
            for load in loads:
                if (by_name and isinstance(load, ast.Attribute)) or meant in project.meanings(
                    load, where
                ):
                    yield where, load

    @cached_property
    def on_meta(self) -> bool:
        """Whether the program mentions the meta device where the model can be built."""
        return self._mentions_meta(self.context.module)

    @cached_property
    def on_meta_anywhere(self) -> bool:
        """Whether a file that hangs together with this one mentions the meta device."""
        around = self.context.project.connected(self.context.module)
        return any(self._mentions_meta(module) for module in around)

    @staticmethod
    def _mentions_meta(module: Module) -> bool:
        return any(
            (isinstance(node, ast.Constant) and node.value == "meta")
            or (isinstance(node, ast.alias) and node.name in _ON_META)
            or (isinstance(node, ast.Attribute) and node.attr in _ON_META)
            for node in ast.walk(module.tree)
        )


def is_argument(context: Context, load: ast.Name) -> bool:
    """Whether a name is an argument of one of FSDP1's constructors."""
    parents = context.module.parents
    around = parents[load]
    if isinstance(around, ast.keyword):
        around = parents[around]
    return (
        isinstance(around, ast.Call)
        and around.func is not load
        and context.fsdp1(around.func) == "FullyShardedDataParallel"
    )
