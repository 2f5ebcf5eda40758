"""Whether a model has no buffers of floating point: all classes that it is made of are visible, and none registers one."""

from __future__ import annotations

import ast
import builtins
import re
from dataclasses import dataclass, field

from fsdp_migrate.codemods.constructor.construction import Construction
from fsdp_migrate.codemods.constructor.flow import defined
from fsdp_migrate.facts.file import File, is_method, last_name
from fsdp_migrate.facts.program import Definition, External, Program

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# Modules of torch that have, or may have, buffers of floating point.
_WITH_BUFFERS = re.compile(r"BatchNorm|InstanceNorm|Loss$|DataParallel|quant|Quant")
_REGISTERS = ("register_buffer", "Buffer")
# Methods that make no module of their own.
_MAKE_NONE = frozenset({*dir(list), *dir(dict), *dir(str)}) | frozenset(
    """apply parameters named_parameters modules named_modules add_module append requires_grad_ eval train
    normal_ uniform_ zero_ fill_ post_init""".split()  # noqa: SIM905
)


def has_no_buffers(construction: Construction) -> bool:
    """Whether the files show that no module of a constructor's model registers a buffer."""
    module = construction.module
    if module is None:
        return False
    program = construction.context.program
    flow = construction.flow(module)
    made = [end for end in flow.ends if not _is_sharding(construction, end.node)]
    if flow.unknown or not made:
        return False
    search = _Search(program)
    return all(search.is_plain(end.file, end.node) for end in made)


def _is_sharding(construction: Construction, node: ast.expr) -> bool:
    """Whether a value is the constructor's own: `model = FSDP(model)`."""
    return node is construction.call


@dataclass
class _Search:
    program: Program
    seen: set[ast.AST] = field(default_factory=set)

    def is_plain(self, file: File, made: ast.expr) -> bool:
        """Whether an expression is a call of a class that makes no buffer."""
        if not isinstance(made, ast.Call):
            return False
        found = defined(self.program, file, made)
        return bool(found) and all(map(self._is_plain_class, found))

    def _is_plain_class(self, cls: Definition) -> bool:
        if cls.node in self.seen:
            return True
        self.seen.add(cls.node)
        if not isinstance(cls.node, ast.ClassDef):
            return False
        for above in self.program.classes_above(cls):
            if isinstance(above, External):
                if not self._is_plain_name(above.dotted):
                    return False
            elif not isinstance(above, Definition) or not self._is_plain_class(above):
                return False
        return self._makes_none(cls.file, cls.node)

    def _makes_none(self, file: File, node: ast.AST) -> bool:
        """Whether the code of a class or a function registers no buffer, and calls nothing that may."""
        calls = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
        return all(self._is_plain_call(file, call) for call in calls)

    def _is_plain_call(self, file: File, call: ast.Call) -> bool:
        function = call.func
        name = last_name(call.func)
        if name in _REGISTERS:
            return False
        method = file.function(call)
        if method is not None and is_method(method) and method.name == "forward":
            return True  # which makes no modules
        dotted = self.program.dotted(function, file)
        if dotted:
            return all(map(self._is_plain_name, dotted))
        found = defined(self.program, file, call)
        if found:
            return all(map(self._is_plain_definition, found))
        if isinstance(function, ast.Name):
            return not file.bindings(function) and hasattr(builtins, name)
        return isinstance(function, ast.Attribute) and self._is_plain_method(function)

    def _is_plain_definition(self, found: Definition) -> bool:
        if isinstance(found.node, ast.ClassDef):
            return self._is_plain_class(found)
        if found.node in self.seen:
            return True
        self.seen.add(found.node)
        return self._makes_none(found.file, found.node)

    def _is_plain_method(self, method: ast.Attribute) -> bool:
        """Whether a method makes no module: the object's own ones are read with its class."""
        match method.value:
            case ast.Name(id="self") | ast.Call(func=ast.Name(id="super")):
                return True
        return method.attr in _MAKE_NONE

    def _is_plain_name(self, dotted: str) -> bool:
        """Whether a name of another library makes no buffer: those of torch, of Python, of mathematics."""
        if dotted.startswith("torch."):
            return _WITH_BUFFERS.search(dotted) is None
        return dotted.partition(".")[0] in ("math", "typing", "abc", "object", "functools")
