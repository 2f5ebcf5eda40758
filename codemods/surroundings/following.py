"""From `model.parameters()` of an FSDP1 model to every expression that holds a parameter, through a whole project.

What is followed lies at a path inside a value: a name of a loop over `model.named_parameters()` holds a pair, its second
element a parameter. Parameters that are taken above the constructor are no FSDP1 parameters and are not followed.
"""

from __future__ import annotations

import ast
from collections import deque
from dataclasses import replace
from weakref import WeakKeyDictionary

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.optimizers.kept_parameters import FILLING, TAKING
from fsdp_migrate.codemods.surroundings.parameters import (
    ANY_KEY,
    EACH,
    OF_THE_SAME,
    Held,
    Parameters,
    Step,
)
from fsdp_migrate.index.models import Models, Site
from fsdp_migrate.index.module import FunctionNode, Module
from fsdp_migrate.index.order import reaches
from fsdp_migrate.index.project import Project

_PASSING = frozenset({"list", "tuple", "set", "iter", "sorted", "reversed"})
# Methods whose value is as well.
_COPIES = frozenset({"clone", "contiguous", "cpu", "cuda", "detach", "float", "to"})
_MODULES = {
    "modules": (EACH,),
    "children": (EACH,),
    "named_modules": (EACH, 1),
    "named_children": (EACH, 1),
}
_LEAVES = frozenset({"weight", "bias"})
_LONGEST = 5
# How the classes of optimizers are called in packages that do not say so.
_OPTIMIZERS = ("adam", "adafactor", "lamb", "lars", "lion", "muon", "sgd", "shampoo")


_FOUND: WeakKeyDictionary[Models, Parameters] = WeakKeyDictionary()


def parameters_in(context: Context) -> Parameters:
    """The parameters of a project's FSDP1 models, found once for all of its files."""
    found = _FOUND.get(context.models)
    if found is None:
        found = _FOUND[context.models] = _Follower(context.models).run()
    return found


class _Follower:
    """Goes from the models of a project to everything that holds their parameters."""

    def __init__(self, models: Models) -> None:
        self.models = models
        self.project = models.project
        self.found = Parameters()
        self._queue: deque[tuple[ast.expr, Held]] = deque()
        self._seen: set[tuple[ast.expr, tuple[Step, ...], str]] = set()

    def run(self) -> Parameters:
        for module in self.models.reached:
            for attribute in module.attributes:
                sites = self.models.sites(attribute.value)
                if not sites or not isinstance(attribute.ctx, ast.Load):
                    continue
                self._of_module(module, attribute, sites)
        while self._queue:
            node, held = self._queue.popleft()
            self._step(node, held)
        return self.found

    def _of_module(self, module: Module, attribute: ast.Attribute, sites: frozenset[Site]) -> None:
        """`model.parameters()`, `model.modules()`, and `model.head.weight`."""
        call = module.parents[attribute]
        called = isinstance(call, ast.Call) and call.func is attribute
        if called and attribute.attr in TAKING:
            assert isinstance(call, ast.Call)
            path = (EACH, 1) if attribute.attr == "named_parameters" else (EACH,)
            self._add(call, Held(module, sites, path, call))
        elif called and attribute.attr in _MODULES:
            assert isinstance(call, ast.Call)
            self._add(call, Held(module, sites, _MODULES[attribute.attr], call, "module"))
        elif not called:
            self._leaf(module, attribute, sites)

    def _leaf(self, module: Module, attribute: ast.expr, sites: frozenset[Site]) -> None:
        node: ast.AST = attribute
        while isinstance(node, ast.Attribute | ast.Subscript):
            if isinstance(node, ast.Attribute) and node.attr in _LEAVES:
                if isinstance(node.ctx, ast.Load):
                    self._add(node, Held(module, sites, (), node))
                return
            around = module.parents[node]
            if getattr(around, "value", None) is not node:
                return
            node = around

    def _add(self, node: ast.expr, held: Held) -> None:
        key = node, held.path, held.kind
        if key in self._seen or len(held.path) > _LONGEST:
            return
        self._seen.add(key)
        if held.kind == "parameter":
            if not held.path:
                self.found.held.setdefault(node, held)
            elif held.path == (EACH,):
                self.found.several.setdefault(node, held)
        self._queue.append((node, held))

    def _step(self, node: ast.expr, held: Held) -> None:
        """From an expression to what holds its value next."""
        module, path = held.module, held.path
        parent = module.parents[node]
        if isinstance(parent, ast.keyword):
            parent = module.parents[parent]
        if isinstance(parent, ast.Attribute):
            self._attribute(parent, held)
        elif isinstance(parent, ast.Call):
            self._given(node, parent, held)
        elif isinstance(parent, ast.Subscript) and node is parent.value and path:
            self._element(parent, held)
        elif isinstance(parent, ast.IfExp | ast.BoolOp):
            if node is not getattr(parent, "test", None):
                self._add(parent, held)
        elif isinstance(parent, ast.Starred):
            around = module.parents[parent]
            if isinstance(around, ast.List | ast.Tuple) and path:
                self._add(around, held)
        elif isinstance(parent, ast.List | ast.Set | ast.ListComp | ast.SetComp | ast.GeneratorExp):
            if not isinstance(parent, ast.List | ast.Set) and node is not parent.elt:
                return
            self._add(parent, replace(held, path=(EACH, *path)))
        elif isinstance(parent, ast.Tuple):
            self._add(parent, replace(held, path=(parent.elts.index(node), *path)))
        elif isinstance(parent, ast.Dict) and node in parent.values:
            key = parent.keys[parent.values.index(node)]
            name = str(key.value) if isinstance(key, ast.Constant) else ANY_KEY
            self._add(parent, replace(held, path=(name, *path)))
        elif isinstance(parent, ast.DictComp) and node is parent.value:
            self._add(parent, replace(held, path=(ANY_KEY, *path)))
        elif isinstance(parent, ast.For | ast.comprehension) and node is parent.iter:
            if path and path[0] is EACH:
                self._bind(parent.target, replace(held, path=path[1:]), parent)
        elif isinstance(parent, ast.Assign | ast.AnnAssign | ast.NamedExpr):
            targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
            for target in targets:
                self._bind(target, held, parent)
        elif isinstance(parent, ast.Return | ast.Yield):
            self._returned(parent, held)

    def _attribute(self, parent: ast.Attribute, held: Held) -> None:
        call = held.module.parents[parent]
        called = isinstance(call, ast.Call) and call.func is parent
        if not held.path and held.kind == "parameter":
            if parent.attr in OF_THE_SAME and isinstance(parent.ctx, ast.Load):
                self._add(parent, held)
            elif called and parent.attr in _COPIES:
                assert isinstance(call, ast.Call)
                self._add(call, held)
        elif not held.path and held.kind == "module":
            self._of_module(held.module, parent, held.sites)
        elif held.kind == "optimizer":
            if parent.attr == "param_groups":
                self._add(parent, replace(held, path=(EACH, "params", EACH), kind="parameter"))
        elif called and parent.attr in {"items", "values"} and held.path[:1] == (ANY_KEY,):
            assert isinstance(call, ast.Call)
            inside = (EACH, 1) if parent.attr == "items" else (EACH,)
            self._add(call, replace(held, path=(*inside, *held.path[1:])))

    def _element(self, parent: ast.Subscript, held: Held) -> None:
        first, rest = held.path[0], held.path[1:]
        if isinstance(parent.slice, ast.Slice):
            self._add(parent, held)
            return
        wanted = parent.slice.value if isinstance(parent.slice, ast.Constant) else ...
        if first in {EACH, ANY_KEY} or wanted == first:
            if isinstance(parent.ctx, ast.Load):
                self._add(parent, replace(held, path=rest))

    def _given(self, node: ast.expr, call: ast.Call, held: Held) -> None:
        """A call is given the value."""
        path, module = held.path, held.module
        function = call.func
        name = function.id if isinstance(function, ast.Name) else ""
        if node is function:
            return
        if held.kind == "parameter" and path and _makes_optimizer(self.project, module, call):
            self.found.optimizers.setdefault(call, held)
            self._add(call, replace(held, path=(), kind="optimizer"))
        elif isinstance(function, ast.Attribute) and function.attr in FILLING:
            inside = path if function.attr in {"extend", "update"} else (EACH, *path)
            self._bind(function.value, replace(held, path=inside), call)
        elif name == "dict" and path[:2] == (EACH, 1):
            self._add(call, replace(held, path=(ANY_KEY, *path[2:])))
        elif path[:1] == (EACH,) and (name in _PASSING or self._chains(module, function)):
            self._add(call, held)
        elif name == "next" and path[:1] == (EACH,):
            self._add(call, replace(held, path=path[1:]))
        elif name == "enumerate" and path[:1] == (EACH,):
            self._add(call, replace(held, path=(EACH, 1, *path[1:])))
        elif name == "zip" and path[:1] == (EACH,) and node in call.args:
            self._add(call, replace(held, path=(EACH, call.args.index(node), *path[1:])))
        elif name in {"map", "filter"} and path[:1] == (EACH,):
            if name == "filter":
                self._add(call, held)
            if isinstance(call.args[0], ast.Lambda) and call.args[0].args.args:
                parameter = call.args[0].args.args[0].arg
                self._name(module, call.args[0], parameter, replace(held, path=path[1:]))
        else:
            self._argument(node, call, held)

    def _chains(self, module: Module, function: ast.expr) -> bool:
        paths = self.project.dotted(function, module)
        return any(path.startswith("itertools.chain") for path in paths)

    def _argument(self, node: ast.expr, call: ast.Call, held: Held) -> None:
        """A function of the project is given the value."""
        made = self.project.definition(call.func, held.module)
        if made is None or not isinstance(made.node, ast.FunctionDef | ast.AsyncFunctionDef):
            return
        arguments = made.node.args
        names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
        for keyword in call.keywords:
            if keyword.value is node and keyword.arg:
                self._name(made.module, made.node, keyword.arg, held)
        if node in call.args and call.args.index(node) < len(names):
            self._name(made.module, made.node, names[call.args.index(node)], held)

    def _returned(self, parent: ast.Return | ast.Yield, held: Held) -> None:
        function = held.module.enclosing_function(parent)
        path = held.path if isinstance(parent, ast.Return) else (EACH, *held.path)
        for where, call in self.models.callers_of(function) if function else ():
            self._add(call, replace(held, module=where, path=path))

    def _bind(self, target: ast.expr, held: Held, binder: ast.AST) -> None:
        """A name, or the names of a tuple, hold the value from a statement or loop on."""
        module = held.module
        if isinstance(target, ast.Tuple | ast.List):
            step = held.path[0] if held.path else EACH
            for index, element in enumerate(target.elts):
                if step == index or (step is EACH and held.path):
                    self._bind(element, replace(held, path=held.path[1:]), binder)
        elif isinstance(target, ast.Name):
            loop = binder if isinstance(binder, ast.For | ast.comprehension) else None
            scope = module.scope_of(target)
            for load in module.loads.get(target.id, ()):
                if _loop_of(module, load) is not loop:
                    continue
                found = module.lookup(target.id, module.scope_of(load))
                if found is None or load is target:
                    continue
                owner = module.lookup(target.id, scope)
                if owner is None or found[0] is not owner[0]:
                    continue
                same = module.scope_of(load) is scope
                if not loop and same and not reaches(module, scope, target.id, binder, load):
                    continue
                self._add(load, held)

    def _name(self, module: Module, function: FunctionNode, name: str, held: Held) -> None:
        """A parameter of a function holds the value."""
        scope = module.scopes[function]
        for load in module.loads.get(name, ()):
            found = module.lookup(name, module.scope_of(load))
            if found and found[0] is scope and _loop_of(module, load) is None:
                self._add(load, replace(held, module=module))


def _makes_optimizer(project: Project, module: Module, call: ast.Call) -> bool:
    """Whether a call that is given parameters makes an optimizer, by its name or by its class's bases."""
    made = project.definition(call.func, module)
    if made is not None:
        return isinstance(made.node, ast.ClassDef) and any(
            "optim" in ast.unparse(base).lower() for base in made.node.bases
        )
    paths = project.dotted(call.func, module) or {ast.unparse(call.func)}
    return any(
        not path.rpartition(".")[2].startswith("_")
        and "sched" not in path.lower()
        and ("optim" in path.lower() or path.rpartition(".")[2].lower().startswith(_OPTIMIZERS))
        for path in paths
    )


def _loop_of(module: Module, load: ast.Name) -> ast.AST | None:
    """The innermost loop or comprehension that gives a name its value where it is read."""
    child: ast.AST = load
    for parent in module.ancestors(load):
        if isinstance(parent, ast.For) and child in parent.body:
            if _binds(parent.target, load.id):
                return parent
        elif isinstance(parent, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            for generator in parent.generators:
                if child is not generator and _binds(generator.target, load.id):
                    return generator
        elif isinstance(parent, ast.comprehension) and child is not parent.iter:
            if _binds(parent.target, load.id):
                return parent
        child = parent
    return None


def _binds(target: ast.expr, name: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(target))
