"""Where FSDP1 models go: from the call that makes one, through names, attributes, arguments and results, to every use."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from fsdp_migrate.index.flow import SELF_RETURNING as SELF_RETURNING
from fsdp_migrate.index.flow import Flow
from fsdp_migrate.index.instances import Instances
from fsdp_migrate.index.labels import Maker as Maker
from fsdp_migrate.index.labels import Site as Site
from fsdp_migrate.index.module import Module, Parameter, Scope
from fsdp_migrate.index.order import branches, same_text
from fsdp_migrate.index.project import Definition, Project
from fsdp_migrate.index.uses import Uses

_CLASS = "FullyShardedDataParallel"
# Wrappers whose models have some of the same methods and are none of FSDP1's.
OTHER_WRAPPERS = (".DistributedDataParallel", ".DataParallel")


class Models:
    """The expressions of a project that hold FSDP1 models.

    Attributes:
        constructors: the calls that make models: of the class itself, and of what stands for it.
        makers: the partial applications of the class, and the references to `wrap` where it wraps by the class.
        reached: the files in which a model is seen.
        uses, instances: the tables that the models were followed by.
    """

    def __init__(self, project: Project) -> None:
        self.project = project
        self.uses = Uses(project)
        self.instances = Instances(project)
        tests = list(class_tests(project, self._is_class))
        ruled_out = {node for _, _, contrary in tests for node in contrary}
        self._flow = Flow(self.uses, self.instances, ruled_out)
        self.constructors = [
            (module, call)
            for module in project.modules
            for call in module.calls
            if self._is_class(call.func, module)
        ]
        self.makers = [*self._partials(), *self._wraps()]
        for module, call in self.constructors:
            self._flow.add(module, call, (), Site(module, call))
        for maker in self.makers:
            self._flow.add(maker.module, maker.node, (), maker)
        for module, scope, name in declared(project, self._is_class):
            self._flow.parameter(module, scope, name, Site(module, None))
        for module, guarded, _ in tests:
            for node in guarded:
                self._flow.add(module, node, (), Site(module, None))
        self._flow.run()
        for maker in self.makers:
            self.constructors += maker.calls
        self.reached = self._flow.reached

    def sites(self, expression: ast.expr) -> frozenset[Site]:
        """The places where the model that `expression` holds can have been made; empty if it holds none."""
        found = self._flow.sites.get(expression, ())
        return frozenset(site for site in found if not site.partly)

    def sharded(self, expression: ast.expr, module: Module) -> frozenset[Site]:
        """Likewise, where a part of the model may have been wrapped and not the model itself."""
        found = set(self._flow.sites.get(expression, ()))
        cls = self.class_of(expression, module)
        if cls is not None:
            found |= self._flow.bindings.partly_sharded.get(cls, set())
        return frozenset(found)

    def maker(self, call: ast.Call) -> Maker | None:
        """What makes the model where a call is not one of the class itself."""
        return self._flow.made.get(call)

    def callers_of(self, function: ast.AST) -> list[tuple[Module, ast.Call]]:
        """The calls that are known to run a function of the project."""
        return self.uses.callers.get(function, [])

    def class_of(self, expression: ast.expr, module: Module) -> Definition | None:
        """The class of the project whose instance an expression is."""
        return self.instances.class_of(expression, module)

    def _is_class(self, expression: ast.expr, module: Module) -> bool:
        return self.project.fsdp1(expression, module) == _CLASS

    def _partials(self) -> Iterator[Maker]:
        """`functools.partial(FSDP, ...)`."""
        for module in self.project.modules:
            if "partial" not in module.text:
                continue
            for call in module.calls:
                if (
                    call.args
                    and self._is_class(call.args[0], module)
                    and self.project.dotted(call.func, module) == {"functools.partial"}
                ):
                    yield Maker(module, call)

    def _wraps(self) -> Iterator[Maker]:
        """`wrap`, in files around one that enables it for the class."""
        enabled = {
            other
            for module in self.project.modules
            if "enable_wrap" in module.text
            for call in module.calls
            if self.project.fsdp1(call.func, module) == "enable_wrap"
            if any(
                k.arg == "wrapper_cls" and self._is_class(k.value, module) for k in call.keywords
            )
            for other in self.project.connected(module)
        }
        for module in self.project.modules:
            if module not in enabled or "wrap" not in module.text:
                continue
            for call in module.calls:
                if self.project.fsdp1(call.func, module) == "wrap":
                    yield Maker(module, call.func)


_IsClass = Callable[[ast.expr, Module], bool]


def declared(project: Project, is_class: _IsClass) -> Iterator[tuple[Module, Scope, str]]:
    """The parameters whose annotation names a class: alone, quoted, or as one of several."""
    for module in project.modules:
        for scope in module.scopes.values():
            for name, bindings in scope.bindings.items():
                for binding in bindings:
                    annotation = isinstance(binding, Parameter) and binding.argument.annotation
                    if annotation and any(
                        isinstance(node, ast.Name | ast.Attribute | ast.Constant)
                        and is_class(node, module)
                        for node in ast.walk(annotation)
                    ):
                        yield module, scope, name


def class_tests(
    project: Project, is_class: _IsClass
) -> Iterator[tuple[Module, list[ast.expr], list[ast.expr]]]:
    """What stands behind `if isinstance(model, FSDP):`, and behind its contrary or behind `if isinstance(model, DDP):`."""
    for module in project.modules:
        for call in module.calls:
            if not (
                isinstance(call.func, ast.Name)
                and call.func.id == "isinstance"
                and len(call.args) == 2
            ):
                continue
            subject, kind = call.args
            if not isinstance(subject, ast.Name | ast.Attribute):
                continue
            if is_class(kind, module):
                behind, contrary = branches(module, call)
                yield module, same_text(behind, subject), same_text(contrary, subject)
            elif any(path.endswith(OTHER_WRAPPERS) for path in project.dotted(kind, module)):
                behind, _ = branches(module, call)
                yield module, [], same_text(behind, subject)
