"""What a model class is made of, as far as its source can prove it.

Two rewrites depend on it: mixed precision (FSDP1 keeps BatchNorm in full precision) and `buffer_dtype` (without buffers it
does nothing). The proof covers the classes of the project: all code that can put a module into the model must be in sight,
and every module that it makes must be torch's and known, or a class of the project that is looked at likewise.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator

from fsdp_migrate.index.known_modules import (
    HANDING_ON,
    PLAIN,
    STORING,
    UNKNOWN,
    Makeup,
    is_container,
    of_external,
)
from fsdp_migrate.index.module import Assigned, Module, Opaque, Parameter
from fsdp_migrate.index.project import Definition, External, Project


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ANY_VALUE = _words("eval exec getattr vars globals locals __import__ next")

# Methods that give no module but those at hand or among the arguments.
_METHODS = _words(
    """append extend insert add add_module register_module register_parameter apply parameters named_parameters modules
    named_modules children named_children buffers train eval to cuda cpu float half bfloat16 double state_dict items keys
    values item tolist view reshape unsqueeze squeeze expand transpose permute repeat pow cos sin cumsum detach clone
    numel size dim contiguous triu tril masked_fill format join split startswith endswith upper lower info debug
    warning __init__ __init_subclass__ __setattr__ update reset_parameters register_load_state_dict_pre_hook"""
)
_PLAIN_TYPES = _words(
    """int float bool str bytes complex None tuple list dict set frozenset Tuple List Dict Set Optional Union Sequence
    Iterable Mapping Literal dtype device Tensor Size"""
)


def makeup(project: Project, cls: Definition) -> Makeup:
    """What `cls` is made of: every module that its methods construct is either torch's own or walked likewise."""
    return _Proof(project, cls).result()


class _Proof:
    """The attempt to prove what one class is made of."""

    def __init__(self, project: Project, cls: Definition) -> None:
        self.project = project
        self.found = self._reachable(cls)
        self.building = self._building()

    def result(self) -> Makeup:
        made = PLAIN
        for definition in self.found:
            made &= self._of(definition)
            if made == UNKNOWN:
                break
        return made

    # what is looked at

    def _reachable(self, cls: Definition) -> list[Definition]:
        """The class, those above it, and all functions and classes that their code names."""
        found, seen = [cls], {cls}
        for definition in found:  # grows on the way
            for reference in _references(definition.node):
                for meaning in self.project.meanings(reference, definition.module):
                    if isinstance(meaning, Definition) and meaning not in seen:
                        seen.add(meaning)
                        found.append(meaning)
        return found

    def _building(self) -> set[str]:
        """The names of the methods that can put a module into the model: not `forward` and what it alone uses."""
        methods = [
            node
            for definition in self.found
            for node in ast.walk(definition.node)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        names = {"__init__"} | {method.name for method in methods if _stores(method)}
        while True:
            used = {
                node.attr
                for method in methods
                if method.name in names
                for node in ast.walk(method)
                if isinstance(node, ast.Attribute)
            }
            if used <= names:
                return names
            names |= used

    def _builds(self, node: ast.AST, definition: Definition) -> bool:
        """Whether code stands in a method that builds; a function is taken to, and so is the body of a class."""
        method: ast.AST | None = None
        for around in (node, *definition.module.ancestors(node)):
            if isinstance(around, ast.FunctionDef | ast.AsyncFunctionDef):
                method = around
            if around is definition.node:
                break
        if method is None or isinstance(definition.node, ast.FunctionDef | ast.AsyncFunctionDef):
            return True
        return getattr(method, "name", "") in self.building

    # the proof

    def _of(self, definition: Definition) -> Makeup:
        made = PLAIN
        module, node = definition.module, definition.node
        if isinstance(node, ast.ClassDef):
            for above in (*node.bases, *node.decorator_list):
                if not self.project.meanings(_function(above), module) and not _is_builtin(
                    above, module
                ):
                    return UNKNOWN
        for reference in _references(node):
            made &= self._of_reference(reference, module)
        for call in (inner for inner in ast.walk(node) if isinstance(inner, ast.Call)):
            if self._builds(call, definition) and not self._is_known_call(call, definition):
                return UNKNOWN
        for value in self._stored(definition):
            if self._is_foreign(value, module):
                return UNKNOWN
        return made

    def _of_reference(self, reference: ast.expr, module: Module) -> Makeup:
        made = PLAIN
        last = reference.id if isinstance(reference, ast.Name) else getattr(reference, "attr", "")
        if "BatchNorm" in last:
            return UNKNOWN
        if last in {"register_buffer", "Buffer"}:
            made = Makeup(True, False)
        for dotted in self.project.dotted(reference, module):
            made &= of_external(dotted)
        return made

    def _is_known_call(self, call: ast.Call, definition: Definition) -> bool:
        """Whether a call of code that builds can make no module that is not looked at."""
        module, function = definition.module, call.func
        meanings = self.project.meanings(function, module)
        if meanings:
            return True  # judged as a reference, or looked at
        if isinstance(function, ast.Name):
            return _is_builtin(function, module) and function.id not in _ANY_VALUE
        if not isinstance(function, ast.Attribute):
            return False
        own = isinstance(function.value, ast.Name) and function.value.id in {"self", "cls"}
        if own and any(
            isinstance(d.node, ast.ClassDef) and self.project.method(d, function.attr)
            for d in self.found
        ):
            return True
        in_place = function.attr.endswith("_") and not function.attr.endswith("__")
        return in_place or function.attr in _METHODS or function.attr == "register_buffer"

    def _stored(self, definition: Definition) -> Iterator[ast.expr]:
        """The values that code which builds may put into the model: stored, returned, handed to a container."""
        for node in ast.walk(definition.node):
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if node.value is not None and any(not isinstance(t, ast.Name) for t in targets):
                    if self._builds(node, definition):
                        yield node.value
            elif isinstance(node, ast.Return):
                if node.value is not None and self._builds(node, definition):
                    yield node.value
            elif isinstance(node, ast.Call) and self._builds(node, definition):
                if self._hands_on(node, definition.module):
                    yield from node.args
                    yield from (keyword.value for keyword in node.keywords)

    def _hands_on(self, call: ast.Call, module: Module) -> bool:
        """Whether what a call is given can end in the model as it is."""
        meanings = self.project.meanings(call.func, module)
        if not meanings:
            function = call.func
            if isinstance(function, ast.Name):
                return function.id == "setattr"
            if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Call):
                cls = module.enclosing_class(call)  # `super().__init__(...)` of a container
                return cls is not None and self._is_container(Definition(module, cls))
            return isinstance(function, ast.Attribute) and function.attr in STORING
        return any(
            self._is_container(meaning)
            if isinstance(meaning, Definition)
            else isinstance(meaning, External)
            and (meaning.dotted.split(".")[0] in HANDING_ON or is_container(meaning.dotted))
            for meaning in meanings
        )

    def _is_container(self, cls: Definition) -> bool:
        return isinstance(cls.node, ast.ClassDef) and any(
            isinstance(base, External) and is_container(base.dotted)
            for base in self.project.bases(cls)
        )

    def _is_foreign(self, value: ast.expr, module: Module, depth: int = 0) -> bool:
        """Whether a value can be, or hold, a module that comes from outside of what is looked at."""
        if depth > 12:
            return True
        inside: Iterable[ast.expr] = ()
        if isinstance(value, ast.Tuple | ast.List | ast.Set):
            inside = value.elts
        elif isinstance(value, ast.Dict):
            inside = value.values
        elif isinstance(value, ast.IfExp):
            inside = (value.body, value.orelse)
        elif isinstance(value, ast.BoolOp):
            inside = value.values
        elif isinstance(value, ast.Starred | ast.NamedExpr | ast.Await):
            inside = (value.value,)
        elif isinstance(value, ast.ListComp | ast.SetComp | ast.GeneratorExp):
            inside = (value.elt,)
        elif isinstance(value, ast.DictComp):
            inside = (value.value,)
        elif isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add | ast.Mult):
            inside = (value.left, value.right)  # of lists
        elif isinstance(value, ast.Attribute):
            return self._is_foreign_attribute(value, module, depth)
        elif isinstance(value, ast.Subscript):
            inside = (value.value,)
        elif isinstance(value, ast.Name):
            return self._is_foreign_name(value, module, depth)
        return any(self._is_foreign(part, module, depth + 1) for part in inside)

    def _is_foreign_attribute(self, value: ast.Attribute, module: Module, depth: int) -> bool:
        owner = value.value
        if isinstance(owner, ast.Name) and owner.id == "self":
            return False  # stored on self before, and judged there
        if self.project.meanings(value, module):
            return not all(of_external(d) == PLAIN for d in self.project.dotted(value, module))
        if isinstance(owner, ast.Name):
            found = module.lookup(owner.id, module.scope_of(owner))
            if found and len(found[1]) == 1 and isinstance(found[1][0], Parameter):
                annotation = found[1][0].argument.annotation
                cls = self.project.definition(annotation, module) if annotation else None
                return cls is None or not _has_plain_field(cls, value.attr)
        return self._is_foreign(owner, module, depth + 1)

    def _is_foreign_name(self, name: ast.Name, module: Module, depth: int) -> bool:
        found = module.lookup(name.id, module.scope_of(name))
        if found is None:
            return not _is_builtin(name, module)
        for binding in found[1]:
            if isinstance(binding, Parameter):
                if not self._is_plain_parameter(binding, module):
                    return True
            elif isinstance(binding, Assigned):
                at_top = (
                    found[0] is module.scope
                )  # no code of the class: calls there are not judged
                if at_top and any(isinstance(n, ast.Call) for n in ast.walk(binding.value)):
                    return True
                if self._is_foreign(binding.value, module, depth + 1):
                    return True
            elif isinstance(binding, Opaque):
                source = getattr(binding.node, "iter", None)
                if source is None or self._is_foreign(source, module, depth + 1):
                    return True
        return False

    def _is_plain_parameter(self, parameter: Parameter, module: Module) -> bool:
        """Whether a parameter can be no module: by its annotation, its default, or the arithmetic done with it."""
        name, annotation = parameter.argument.arg, parameter.argument.annotation
        if name == "self":
            return True
        if annotation is not None and self._is_plain_annotation(annotation, module):
            return True
        default = _default(parameter)
        if isinstance(default, ast.Constant) and default.value is not None:
            return True
        return any(_is_number(load, module) for load in _loads(parameter, module))

    def _is_plain_annotation(self, annotation: ast.expr, module: Module) -> bool:
        for node in ast.walk(annotation):
            if isinstance(node, ast.Name):
                cls = self.project.definition(node, module)
                if cls is not None and isinstance(cls.node, ast.ClassDef):
                    if any(isinstance(base, External) for base in self.project.bases(cls)):
                        return False  # a module, for all that is known
                elif node.id not in _PLAIN_TYPES and node.id not in {"torch", "typing", "t"}:
                    return False
            elif isinstance(node, ast.Attribute):
                if node.attr not in _PLAIN_TYPES:
                    return False
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                return False
        return True


def _references(node: ast.AST) -> Iterator[ast.expr]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name | ast.Attribute) and isinstance(inner.ctx, ast.Load):
            yield inner


def _function(expression: ast.expr) -> ast.expr:
    return expression.func if isinstance(expression, ast.Call) else expression


def _stores(method: ast.AST) -> bool:
    """Whether a method may store something on an object."""
    return any(
        (isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store))
        or (isinstance(node, ast.Name) and node.id == "setattr")
        or (isinstance(node, ast.Attribute) and node.attr in STORING)
        for node in ast.walk(method)
    )


def _is_builtin(expression: ast.expr, module: Module) -> bool:
    return (
        isinstance(expression, ast.Name)
        and module.lookup(expression.id, module.scope_of(expression)) is None
        and hasattr(builtins, expression.id)
        and not module.stars
    )


def _default(parameter: Parameter) -> ast.expr | None:
    arguments = parameter.function.args
    if parameter.argument in arguments.kwonlyargs:
        return arguments.kw_defaults[arguments.kwonlyargs.index(parameter.argument)]
    positional = [*arguments.posonlyargs, *arguments.args]
    if parameter.argument not in positional:
        return None
    index = positional.index(parameter.argument) - len(positional) + len(arguments.defaults)
    return arguments.defaults[index] if index >= 0 else None


def _loads(parameter: Parameter, module: Module) -> Iterator[ast.Name]:
    """Where a function reads one of its parameters."""
    for load in module.loads.get(parameter.argument.arg, ()):
        if module.enclosing_function(load) is parameter.function:
            yield load


def _is_number(load: ast.Name, module: Module) -> bool:
    """Whether a name stands where only a number can: no module takes part in a division."""
    parent = module.parents[load]
    if isinstance(parent, ast.BinOp):
        return isinstance(parent.op, ast.Div | ast.FloorDiv | ast.Pow)
    return (
        isinstance(parent, ast.Call)
        and load in parent.args
        and isinstance(parent.func, ast.Name)
        and parent.func.id == "range"
    )


def _has_plain_field(cls: Definition, name: str) -> bool:
    """Whether a class declares an attribute of a plain type, as a dataclass does."""
    return any(
        isinstance(line, ast.AnnAssign)
        and isinstance(line.target, ast.Name)
        and line.target.id == name
        and isinstance(line.annotation, ast.Name)
        and line.annotation.id in _PLAIN_TYPES
        for line in cls.node.body
    )
