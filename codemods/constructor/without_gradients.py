"""Whether a program may run a sharded model without gradients, in a block or a function under `no_grad` or `inference_mode`."""

from __future__ import annotations

import ast
import builtins

from fsdp_migrate.facts.file import File, last_name, values_given
from fsdp_migrate.facts.models import Models, models_of
from fsdp_migrate.facts.program import Program

WORDS = rb"no_grad\b|inference_mode\b"
_NAMES = ("no_grad", "inference_mode")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# Methods of a module that run no forward.
_WITHOUT_FORWARD = frozenset(
    """parameters named_parameters buffers named_buffers modules named_modules children named_children state_dict
    load_state_dict train eval to cpu cuda float half bfloat16 requires_grad_ zero_grad register_buffer step""".split()  # noqa: SIM905
)


def runs_in(program: Program, path: str) -> bool:
    """Whether a file may run a sharded model without gradients, as far as it shows."""
    file = program.load(path)
    return file is None or _Search(program).file(file)


class _Search:
    """The calls under `no_grad` in one file, and in the functions that these call."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.models: Models = models_of(program)
        self.seen: set[ast.AST] = set()

    def file(self, file: File) -> bool:
        nodes: list[ast.expr] = []
        for name in _NAMES:
            nodes += [*file.attributes.get(name, ()), *file.loads.get(name, ())]
        regions = [_region(file, node) for node in nodes]
        return any(region is None or self.region(file, region) for region in regions)

    def region(self, file: File, region: ast.AST) -> bool:
        if region in self.seen:
            return False
        self.seen.add(region)
        calls = (node for node in ast.walk(region) if isinstance(node, ast.Call))
        return any(self.may_run(file, call) for call in calls)

    def may_run(self, file: File, call: ast.Call) -> bool:
        function = call.func
        if last_name(function) in _NAMES:
            return False
        if isinstance(function, ast.Attribute):
            if function.attr in _WITHOUT_FORWARD:
                return False
            if self.models.can_hold(function.value, file):
                return True
        called = self.models.called(call, file)
        if called is not None and isinstance(called.node, _FUNCTIONS):
            return self.region(called.file, called.node)
        if _is_builtin(file, function):
            return False
        is_known = called is not None or bool(self.program.dotted(function, file))
        if not is_known and self._can_hold(file, function):
            return True
        if any(each.startswith("torch.") for each in self.program.dotted(function, file)):
            return False
        return any(self.models.can_hold(value, file) for value in values_given(call))

    def _can_hold(self, file: File, function: ast.expr) -> bool:
        """Whether what is called can be a model, or a method of an object that may have one."""
        if not isinstance(function, ast.Attribute):
            return self.models.sharded(function, file) is not False
        owner = function.value
        if isinstance(owner, ast.Name) and owner.id in ("self", "cls"):
            return self.models.sharded(function, file) is not False
        if self.models.can_hold(function, file):
            return True
        is_object = isinstance(owner, ast.Name) or isinstance(
            getattr(owner, "value", None), ast.Name
        )
        is_method = function.attr in self.program.once(_names_of_methods)
        return is_object and is_method and self.models.sharded(owner, file) is not False


def _is_builtin(file: File, function: ast.expr) -> bool:
    """Whether a name is a builtin that calls nothing which it is given."""
    is_free = isinstance(function, ast.Name) and not file.bindings(function)
    name = last_name(function)
    return is_free and hasattr(builtins, name) and name not in ("map", "filter")


def _region(file: File, node: ast.expr) -> ast.AST | None:
    """What runs without gradients by a use of `no_grad`; None if that is not a `with` or a decorator."""
    parent = file.parents[node]
    if isinstance(parent, ast.Call) and parent.func is node:
        node, parent = parent, file.parents[parent]
    if isinstance(parent, ast.withitem):
        return file.parents[parent]
    if isinstance(parent, _FUNCTIONS) and node in parent.decorator_list:
        return parent
    return None


def _names_of_methods(program: Program) -> frozenset[str]:
    """The names of all methods in the files that mention FSDP."""
    functions = ((file, each) for file in program.files for each in file.of(ast.FunctionDef))
    return frozenset(
        each.name for file, each in functions if isinstance(file.parents[each], ast.ClassDef)
    )
