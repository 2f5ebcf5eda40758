"""From an expression that holds a followed value to the expressions that hold it next.

The flow goes forwards, so its cost grows with the uses of FSDP1 and not with the project. Within one function the order of
statements counts: `model.load_state_dict(...)` above `model = FSDP(model)` is a call on the plain module.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Callable
from typing import Any

from fsdp_migrate.index.arguments import Arguments
from fsdp_migrate.index.bindings import Bindings, Held
from fsdp_migrate.index.instances import Instances
from fsdp_migrate.index.labels import Label, Maker, Result, Site, lose, maker_of
from fsdp_migrate.index.module import Module, Scope
from fsdp_migrate.index.paths import ANY, Item, Path, key_of, step_into, taken_by
from fsdp_migrate.index.project import Definition
from fsdp_migrate.index.uses import Uses

# Methods that return the module they are called on.
SELF_RETURNING = frozenset(
    {
        "to",
        "cuda",
        "cpu",
        "train",
        "eval",
        "float",
        "half",
        "bfloat16",
        "double",
        "requires_grad_",
        "apply",
    }
)


def unchained(model: ast.expr) -> ast.expr:
    """The model in `model.to(device).train()`."""
    while (
        isinstance(model, ast.Call)
        and isinstance(model.func, ast.Attribute)
        and model.func.attr in SELF_RETURNING
    ):
        model = model.func.value
    return model


# Methods that change or measure a container and give nothing of it away.
_HARMLESS = frozenset({"append", "extend", "insert", "keys", "clear", "update", "index", "count"})
# Decorators that leave a function's result what it is.
_DECORATORS = ("property", "staticmethod", "classmethod", "cache", "lru_cache", "cached_property")


class Flow:
    """Values of interest and the expressions that hold them.

    Attributes:
        sites: where the models that an expression can hold were made.
        reached: the files in which a model is seen.
        made: the calls of makers, with the maker.
    """

    def __init__(self, uses: Uses, instances: Instances, ruled_out: set[ast.expr]) -> None:
        self.uses = uses
        self.instances = instances
        self.ruled_out = ruled_out  # behind a test that the model is none of FSDP1's
        self.sites: dict[ast.expr, set[Site]] = {}
        self.reached: set[Module] = set()
        self.made: dict[ast.Call, Maker] = {}
        self.bindings = Bindings(uses, instances, self.add)
        self.arguments = Arguments(uses, instances, self.bindings, self.add)
        self._seen: set[tuple[ast.expr, Path, Label]] = set()
        self._queue: deque[tuple[Module, ast.expr, Path, Label]] = deque()
        self._made_sites: dict[ast.Call, Site] = {}

    def add(self, module: Module, node: ast.expr, path: Path, label: Label) -> None:
        """Notes that an expression holds a value, at `path` if it is a container."""
        key = (node, path, label)
        if key in self._seen or node in self.ruled_out:
            return
        self._seen.add(key)
        if isinstance(label, Site):
            self.reached.add(module)
            if not path:
                self.sites.setdefault(node, set()).add(label)
        self._queue.append((module, node, path, label))

    def parameter(self, module: Module, scope: Scope, name: str, site: Site) -> None:
        """Notes that a parameter holds a model."""
        self.bindings.bind(scope, name, Held(module, None, (), site))

    def call(self, module: Module, call: ast.Call, maker: Maker) -> None:
        """Notes that a call makes a model."""
        if call not in self.made:
            self.made[call] = maker
            maker.calls.append((module, call))
            self._made_sites[call] = Site(module, call)
            self.add(module, call, (), self._made_sites[call])
        elif self.made[call] is not maker:
            lose(maker, module, call)  # which of the two it is shows only when the program runs

    def run(self) -> None:
        """Follows everything noted to its last use."""
        while self._queue:
            module, node, path, label = self._queue.popleft()
            if len(path) > 4:
                lose(label, module, node)
                continue
            parent = module.parents[node]
            follow = _FOLLOW.get(type(parent))
            if follow is None or not follow(self, module, node, parent, path, label):
                lose(label, module, node)

    # Each of these returns whether all is known that the node's parent does with the value.

    def _pass(self, module: Module, node: ast.expr, parent: Any, path: Path, label: Label) -> bool:
        """`a if test else b`, `a or b`, `await a`: the whole is the value of a part."""
        if node is not getattr(parent, "test", None):
            self.add(module, parent, path, label)
        return True

    def _ignore(
        self, module: Module, node: ast.expr, parent: Any, path: Path, label: Label
    ) -> bool:
        """`if a:`, `a is None`, `not a`: nothing is passed on."""
        return True

    def _assign(
        self, module: Module, node: ast.expr, parent: Any, path: Path, label: Label
    ) -> bool:
        targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
        for target in targets:
            self.bindings.assign(target, Held(module, parent, path, label))
        if isinstance(parent, ast.NamedExpr):
            self.add(module, parent, path, label)
        return True

    def _extend(
        self, module: Module, node: ast.expr, parent: Any, path: Path, label: Label
    ) -> bool:
        """`models += [FSDP(m)]`."""
        if path:
            self.bindings.store(parent.target, Held(module, parent, path, label))
        return bool(path)

    def _contain(
        self, module: Module, node: ast.expr, parent: Any, path: Path, label: Label
    ) -> bool:
        step = step_into(parent, node)
        if step is not None:
            self.add(module, parent, (step, *path), label)
        return step is not None

    def _loop(self, module: Module, node: ast.expr, parent: Any, path: Path, label: Label) -> bool:
        """`for a in values`, in a statement or a comprehension."""
        if node is not parent.iter:
            return True
        if path and not path[0].mapping:
            within = module.parents[parent] if isinstance(parent, ast.comprehension) else None
            held = Held(module, parent.target, path[1:], label, within=within)
            self.bindings.assign(parent.target, held)
        return True

    def _starred(
        self, module: Module, node: ast.expr, parent: Any, path: Path, label: Label
    ) -> bool:
        around = module.parents[parent]
        if isinstance(around, ast.Call):
            return self.arguments.spread(module, around, path, label)
        if isinstance(around, ast.Tuple | ast.List) and path and not path[0].mapping:
            self.add(module, around, (Item(), *path[1:]), label)
            return True
        return False

    def _keyword(
        self, module: Module, node: ast.expr, parent: Any, path: Path, label: Label
    ) -> bool:
        call = module.parents[parent]
        return isinstance(call, ast.Call) and self.arguments.give(module, call, node, path, label)

    def _call(self, module: Module, node: ast.expr, parent: Any, path: Path, label: Label) -> bool:
        if node is not parent.func:
            return self.arguments.give(module, parent, node, path, label)
        if isinstance(label, Maker) and not path:
            self.call(module, parent, label)
        elif isinstance(label, Result) and not path:
            self.add(module, parent, label.path, label.of)
        return True

    def _attribute(
        self, module: Module, node: ast.expr, parent: Any, path: Path, label: Label
    ) -> bool:
        call = module.parents[parent]
        called = isinstance(call, ast.Call) and call.func is parent
        if path:
            if not called or parent.attr in _HARMLESS:
                return called
            assert isinstance(call, ast.Call)
            inside = path if parent.attr in SELF_RETURNING else taken_by(parent.attr, call, path)
            if inside is not None:
                self.add(module, call, inside, label)
            return inside is not None or parent.attr in {"get", "pop", "setdefault"}
        if not isinstance(label, Site):
            return False
        if parent.attr in {"module", "_fsdp_wrapped_module"}:
            self.add(module, parent, (), label)
        elif parent.attr in SELF_RETURNING and called:
            assert isinstance(call, ast.Call)
            self.add(module, call, (), label)
        return True

    def _subscript(
        self, module: Module, node: ast.expr, parent: Any, path: Path, label: Label
    ) -> bool:
        if node is not parent.value or not path:
            return not path
        if not isinstance(parent.ctx, ast.Load):
            return True
        if isinstance(parent.slice, ast.Slice):
            self.add(module, parent, (Item(ANY, path[0].mapping), *path[1:]), label)
        elif path[0].matches(key_of(parent.slice)):
            self.add(module, parent, path[1:], label)
        return True

    def _default(
        self, module: Module, node: ast.expr, parent: Any, path: Path, label: Label
    ) -> bool:
        """`def save(model=FSDP(net))`: the default is what the parameter can hold."""
        function = module.parents[parent]
        positional = [*parent.posonlyargs, *parent.args]
        first = len(positional) - len(parent.defaults)
        pairs = [
            *zip(positional[first:], parent.defaults, strict=True),
            *zip(parent.kwonlyargs, parent.kw_defaults, strict=True),
        ]
        for parameter, default in pairs:
            if default is node:
                held = Held(module, None, path, label)
                self.bindings.bind(module.scopes[function], parameter.arg, held)
        return True

    def _return(
        self, module: Module, node: ast.expr, parent: Any, path: Path, label: Label
    ) -> bool:
        """`return model`, `yield model`, `lambda m: FSDP(m)`: the function's calls give it."""
        function = module.enclosing_function(node) if parent is not None else None
        if isinstance(parent, ast.Lambda):
            function = parent
        if isinstance(parent, ast.Yield):
            path = (Item(), *path)
        result = Result(label, path)
        if function is None or result.is_too_deep:
            return False
        if isinstance(function, ast.Lambda):
            self.add(module, function, (), result)
            return True
        if maker_of(label) is not None and not _keeps_results(function):
            return False
        for where, call in self.uses.callers.get(function, ()):
            self.add(where, call, path, label)
        owner = module.parents[function]
        if isinstance(owner, ast.ClassDef):
            self._from_method(Definition(module, owner), function, module, result)
        else:
            scope = module.scope_of(function)
            self.bindings.bind(scope, function.name, Held(module, None, (), result))
        return True

    def _from_method(
        self,
        owner: Definition,
        function: ast.FunctionDef | ast.AsyncFunctionDef,
        module: Module,
        result: Result,
    ) -> None:
        """`builder.build(m)` and, for a property, `builder.model`, where the class of `builder` is known."""
        is_property = any(ast.unparse(d).endswith("property") for d in function.decorator_list)
        for where, load in self.uses.attributes.get(function.name, ()):
            holder = self.instances.owner(load.value, where)
            if holder is None:
                if maker_of(result) and not self.uses.project.meanings(load.value, where):
                    lose(result, where, load)
            elif owner in self.instances.family(holder) or holder in self.instances.family(owner):
                if is_property:
                    self.add(where, load, result.path, result.of)
                else:
                    self.add(where, load, (), result)


def _keeps_results(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return all(
        ast.unparse(d.func if isinstance(d, ast.Call) else d).rpartition(".")[2] in _DECORATORS
        for d in function.decorator_list
    )


_Follow = Callable[[Flow, Module, ast.expr, Any, Path, Label], bool]
_FOLLOW: dict[type[ast.AST], _Follow] = {
    **dict.fromkeys((ast.IfExp, ast.BoolOp, ast.Await), Flow._pass),
    **dict.fromkeys(
        (ast.If, ast.While, ast.Assert, ast.Expr, ast.Compare, ast.UnaryOp, ast.FormattedValue),
        Flow._ignore,
    ),
    **dict.fromkeys((ast.Assign, ast.AnnAssign, ast.NamedExpr), Flow._assign),
    **dict.fromkeys(
        (
            ast.Tuple,
            ast.List,
            ast.Set,
            ast.Dict,
            ast.ListComp,
            ast.SetComp,
            ast.GeneratorExp,
            ast.DictComp,
        ),
        Flow._contain,
    ),
    **dict.fromkeys((ast.For, ast.AsyncFor, ast.comprehension), Flow._loop),
    ast.AugAssign: Flow._extend,
    ast.Starred: Flow._starred,
    ast.keyword: Flow._keyword,
    ast.Call: Flow._call,
    ast.Attribute: Flow._attribute,
    ast.Subscript: Flow._subscript,
    ast.arguments: Flow._default,
    **dict.fromkeys((ast.Return, ast.Yield, ast.Lambda), Flow._return),
}
