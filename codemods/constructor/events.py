"""What a call does to a sharded model: runs it, reads its parameters, frees them, or goes backward."""

from __future__ import annotations

import ast
import builtins
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property

from fsdp_migrate.codemods.constructor.identity import Identity
from fsdp_migrate.facts.file import File, last_name, values_given
from fsdp_migrate.facts.models import Models, models_of
from fsdp_migrate.facts.names import RUNTIME
from fsdp_migrate.facts.nodes import any_below, any_is
from fsdp_migrate.facts.origins import value_of
from fsdp_migrate.facts.program import Definition, Program

# What runs a model without gradients, in the text of a file.
WORDS = rb"no_grad\b|inference_mode\b|set_grad_enabled\b|\.generate\("
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Event(Enum):
    """What a call does to the model.

    OPEN is a call of what the files do not show, which is given the model.
    """

    RUNS = auto()
    GENERATES = auto()
    BACKWARD = auto()
    READS = auto()
    FREES = auto()
    OPEN = auto()


# Methods of a module that run no forward.
_WITHOUT_FORWARD = frozenset(
    """buffers named_buffers modules named_modules children named_children load_state_dict train eval to cpu cuda float half
    bfloat16 requires_grad_ zero_grad register_buffer step no_sync apply save_pretrained push_to_hub
    set_requires_gradient_sync set_is_last_backward get_submodule""".split()  # noqa: SIM905
)
_READING = frozenset({"parameters", "named_parameters", "clip_grad_norm_"})
# The hooks of state dicts free the parameters.
_FREEING = frozenset({"state_dict", "reshard", "get_model_state_dict"})
_OPTIMIZER_STATES = frozenset(
    """optim_state_dict full_optim_state_dict sharded_optim_state_dict get_optimizer_state_dict
    flatten_sharded_optim_state_dict""".split()  # noqa: SIM905
)
_OF_TORCH = ("torch.", f"{RUNTIME}.")
# What is the same of a gathered parameter.
_HARMLESS = frozenset({"device", "dtype", "numel", "shape", "requires_grad", "is_meta", "ndim"})
# Those of lists and texts; an average has an `update` as well.
_OF_BUILTINS = frozenset({*dir(list), *dir(dict), *dir(str)} - {"update"})


@dataclass(frozen=True)
class Effect:
    """What one call does to the model, or the functions of the program that it may be a call of.

    Attributes:
        is_shown: whether the files show that it is the model, and not only that it may be.
    """

    event: Event | None = None
    functions: tuple[Definition, ...] = ()
    is_shown: bool = True


_NONE = Effect()


class Events:
    """The effects of calls on the models that one constructor shards.

    Args:
        sharding: the constructor's call, or the statement that shards.
        paths: the files that can get the model.

    Attributes:
        files: those among them that are followed.
    """

    def __init__(self, program: Program, sharding: ast.AST, paths: frozenset[str]) -> None:
        self.program = program
        known = program.tree.having(WORDS)
        loaded = [program.load(p) for p in sorted(paths) if p in known or program.mentions(p)]
        self.files = [file for file in loaded if file is not None]
        self.models: Models = models_of(program)
        self._model = Identity(program, sharding, self.files, paths)
        self._paths = paths
        self._of: dict[ast.Call, Effect] = {}

    def of(self, file: File, call: ast.Call) -> Effect:
        """What a call does."""
        if call not in self._of:
            self._of[call] = self._found(file, call)
        return self._of[call]

    def _found(self, file: File, call: ast.Call) -> Effect:
        name = last_name(call.func)
        if "backward" in name:
            return Effect(Event.BACKWARD)
        if name in _OPTIMIZER_STATES:
            if self._is_given(file, call):
                return Effect(Event.READS)
            return _NONE
        if name in ("get_model_state_dict", "get_state_dict"):
            if self._is_given(file, call):
                return Effect(Event.FREES)
            return _NONE
        if isinstance(call.func, ast.Attribute):
            own = self._method(file, call, call.func)
            if own is not None:
                return own
        functions = self._functions(file, call)
        if functions:
            return Effect(functions=functions)
        event = self._unseen(file, call)
        return Effect(event, is_shown=event is Event.OPEN or self._model.shown(file, call.func))

    def _method(self, file: File, call: ast.Call, method: ast.Attribute) -> Effect | None:
        """What a method of the model does; None if it is one of something else."""
        receiver = method.value
        name = method.attr
        if name in _READING:
            if not self._model.possible(file, receiver) or _is_harmless(file, call):
                return _NONE
            return Effect(Event.READS, is_shown=self.models.can_hold(receiver, file))
        if name == "step" and "optim" in last_name(receiver).lower():
            if self._may_train(file, receiver):
                return Effect(Event.READS)
            return _NONE
        if name in _FREEING and self._model.shown(file, receiver):
            return Effect(Event.FREES)
        is_model = any(each is not None for each in self._model.sources(file, receiver))
        if not is_model and not self.models.can_hold(receiver, file):
            return None
        runs_none = name in _WITHOUT_FORWARD or name in _OF_BUILTINS
        if runs_none or not self._model.possible(file, receiver):
            return _NONE
        if name == "generate":
            return Effect(Event.GENERATES)
        return Effect(Event.RUNS)

    def _may_train(self, file: File, optimizer: ast.expr) -> bool:
        """Whether an optimizer may have the model's parameters: the files do not show that it has only those of others."""
        pending = [value_of(self.program, file, optimizer)]
        models: list[bool] = []
        seen = set[ast.AST]()
        while pending:
            made = pending.pop()
            if made is None or made.node in seen:
                continue
            seen.add(made.node)
            for node in ast.walk(made.node):
                match node:
                    case ast.Attribute(value=model, attr=name) if name in _READING:
                        models.append(self._model.possible(made.file, model))
                    case ast.Name():
                        pending.append(value_of(self.program, made.file, node))
        return any(models) or not models

    def _unseen(self, file: File, call: ast.Call) -> Event | None:
        """What a call does of what no file of the program defines."""
        function = call.func
        if _is_builtin(file, function):
            return None
        dotted = self.program.dotted(function, file)
        if any_below(dotted, _OF_TORCH):
            return None
        if not dotted and self._can_run(file, function):
            return Event.RUNS
        if self._is_given(file, call):
            return Event.OPEN
        return None

    def _can_run(self, file: File, function: ast.expr) -> bool:
        """Whether what is called can be the model."""
        if isinstance(function, ast.Attribute):
            owner = function.value
            if isinstance(owner, ast.Name) and owner.id in ("self", "cls"):
                return self._model.possible(file, function)
            return self._model.shown(file, function)
        return self._model.possible(file, function)

    def _is_given(self, file: File, call: ast.Call) -> bool:
        return any(self._model.shown(file, value) for value in values_given(call))

    def _functions(self, file: File, call: ast.Call) -> tuple[Definition, ...]:
        """The functions of the program that a call may run; for a method of some object, those of its name."""
        called = self.models.origins.called(call, file)
        if called is not None and isinstance(called.node, ast.ClassDef):
            inits = [each for each in called.node.body if isinstance(each, ast.FunctionDef)]
            return tuple(Definition(called.file, e) for e in inits if e.name == "__init__")
        if called is not None:
            if isinstance(called.node, FUNCTIONS):
                return (called,)
            return ()
        function = call.func
        if not isinstance(function, ast.Attribute) or function.attr in _OF_BUILTINS:
            return ()
        if self.program.dotted(function, file):
            return ()
        if self._is_given(file, call):
            return self.program.once(_methods, function.attr, self._paths)
        if _is_result(function.value) and not self._model.possible(file, function.value):
            return ()
        return self._by_name.get(function.attr, ())

    @cached_property
    def _by_name(self) -> dict[str, tuple[Definition, ...]]:
        """The methods of the files that are followed, by their names."""
        found: dict[str, tuple[Definition, ...]] = {}
        for file in self.files:
            for node in file.of(ast.FunctionDef):
                if isinstance(file.parents[node], ast.ClassDef):
                    found[node.name] = (*found.get(node.name, ()), Definition(file, node))
        return found


def _methods(program: Program, name: str, paths: frozenset[str]) -> tuple[Definition, ...]:
    """The methods of a name in some files."""
    pattern = rf"def {name}\(".encode()
    files = [program.load(path) for path in sorted(program.tree.having(pattern) & paths)]
    methods: list[Definition] = []
    for file in files:
        if file is not None:
            named = [node for node in file.of(ast.FunctionDef) if node.name == name]
            own = [node for node in named if isinstance(file.parents[node], ast.ClassDef)]
            methods += [Definition(file, node) for node in own]
    return tuple(methods)


def _is_harmless(file: File, call: ast.Call) -> bool:
    """Whether `model.parameters()` is read for what is the same of a gathered parameter: a count, a device, a dtype."""
    parent = file.parents[call]
    match parent:
        case ast.Call(func=ast.Name(id="next" | "len" | "list" | "any" | "sum")):
            user = file.parents[parent]
            if isinstance(user, ast.Subscript):
                user = file.parents[user]
            return isinstance(user, ast.Attribute) and user.attr in _HARMLESS
        case ast.comprehension(target=target):
            names = {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}
            around = file.parents[parent]
            reads = [n for n in ast.walk(around) if isinstance(n, ast.Name) and n.id in names]
            uses = [file.parents[n] for n in reads if isinstance(n.ctx, ast.Load)]
            return all(isinstance(each, ast.Attribute) and each.attr in _HARMLESS for each in uses)
    return False


def _is_result(expression: ast.expr) -> bool:
    """Whether an expression is what a call returns, or a part of that."""
    return any_is(ast.walk(expression), ast.Call)


def _is_builtin(file: File, function: ast.expr) -> bool:
    """Whether a name is a builtin that calls nothing which it is given."""
    is_free = isinstance(function, ast.Name) and not file.bindings(function)
    name = last_name(function)
    return is_free and hasattr(builtins, name) and name not in ("map", "filter")
