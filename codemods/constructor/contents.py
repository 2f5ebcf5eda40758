"""What a model may contain: the source of every class and function of the program that may help build it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from fsdp_migrate.codemods.constructor.origin import Origin, is_module
from fsdp_migrate.codemods.constructor.reads import surely_read
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.facts.file import File, last_name, values_given
from fsdp_migrate.facts.program import UNKNOWN, Definition, External, Inner, Program
from fsdp_migrate.facts.reach import reach_of
from fsdp_migrate.facts.values import value_of

# Words without which a model of this program has no such part.
BATCH_NORM = ("BatchNorm",)
BUFFERS = (*BATCH_NORM, "register_buffer", "Buffer(", "InstanceNorm", "FakeQuant")
# Packages that bring no BatchNorm and no buffers into a model of this program.
_KNOWN = {"torch", "math", "functools", "typing", "dataclasses", "einops", "numpy", "collections"}
_KNOWN |= {"fairscale", "flash_attn", "apex", "xformers", "logging", "warnings", "os", "abc"}
_ADDING = frozenset({"add_module", "register_module", "register_parameter", "setattr"})
_COMPREHENSIONS = (ast.ListComp, ast.GeneratorExp)
# Models of transformers and diffusers that are transformers, without BatchNorm.
_TRANSFORMERS = re.compile(
    r"^(transformers|diffusers)\.(.*\.)?\w+(ForCausalLM|LMHeadModel|ForSeq2SeqLM|ForConditionalGeneration"
    r"|ForSequenceClassification|EncoderModel|TextModel\w*|Transformer2DModel)(\.\w+)?$"
)


class Contents:
    """What the models of a program may contain."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.reach = reach_of(program)

    def may_hold(self, origin: Origin, words: Iterable[str]) -> bool:
        """Whether the model may have a part of a kind.

        Args:
            words: one of them is in the source of every program that has such a part.
        """
        texts = []
        for file, call in origin.factories:
            around = file.function(call) or file.tree
            texts.append(_own_text(file, around))
            made = self.made_of(file, call)
            if isinstance(made, External):
                if words is not BATCH_NORM or not _TRANSFORMERS.match(made.dotted):
                    return True
            elif isinstance(made, Definition):
                for definition in self._reached(made):
                    if self._uses_another_package(definition):
                        return True
                    texts.append(definition.file.source(definition.node))
            elif isinstance(made, Inner):
                below = self.reach.below(str(made.file.path))
                if any(map(self._imports_another_package, below)):
                    return True
                texts += map(self.reach.text, below)
            else:
                return True
        return any(word in text for word in words for text in texts)

    def may_leave_unused(self, origin: Origin) -> bool:
        """Whether a forward may use only a part of the model's parameters; a model of another package is taken to use all.

        An unused one has a gradient of zeros under FSDP1, on which weight decay and momentum act, and none under
        `fully_shard`.
        """
        made = [self.made_of(*factory) for factory in origin.factories]
        return not all(
            isinstance(each, External)
            or (isinstance(each, Definition) and isinstance(each.node, ast.ClassDef))
            for each in made
        ) or any(
            self._unused(each) or _returns_several(each)
            for each in made
            if isinstance(each, Definition)
        )

    def dataclasses_made(self, origin: Origin) -> list[str]:
        """The dataclasses of the program that a forward of the model's classes makes, and so may return."""
        made = [self.made_of(*factory) for factory in origin.factories]
        return [
            meaning.node.name
            for cls in (
                each for m in made if isinstance(m, Definition) for each in self._reached(m)
            )
            for method in getattr(cls.node, "body", ())
            if isinstance(cls.node, ast.ClassDef) and getattr(method, "name", "") == "forward"
            for call in ast.walk(method)
            if isinstance(call, ast.Call)
            for meaning in self.program.meanings(call.func, cls.file)
            if isinstance(meaning, Definition) and isinstance(meaning.node, ast.ClassDef)
            if any("dataclass" in ast.unparse(each) for each in meaning.node.decorator_list)
        ]

    def made_of(self, file: File, call: ast.Call) -> object:
        """What a call makes a model of: a class, a name of another package, or a module of the program that has the class."""
        function = call.func
        while isinstance(function, ast.Attribute | ast.Subscript | ast.Call):
            meanings = (
                self.program.meanings(function, file) if not isinstance(function, ast.Call) else ()
            )
            if len(meanings) == 1 and isinstance(meanings[0], Definition | External):
                return meanings[0]
            function = function.func if isinstance(function, ast.Call) else function.value
        if not isinstance(function, ast.Name):
            return None
        meanings = self.program.meanings(function, file)
        if len(meanings) == 1 and meanings[0] is not UNKNOWN:
            return meanings[0]
        value = value_of(self.program, file, function)  # a table of classes
        return None if value is None or value.file is file else Inner(value.file)

    def is_of_another_class(
        self, origin: Origin, context: Context, classes: Iterable[ast.expr]
    ) -> bool:
        """Whether the root is certainly an instance of none of some classes, so that a loop need not skip it."""
        meanings = [m for cls in classes for m in self.program.meanings(cls, context.file)]
        if UNKNOWN in meanings:
            return False
        wanted = {meaning.node for meaning in meanings if isinstance(meaning, Definition)}
        made = [self.made_of(*factory) for factory in origin.factories]
        for each in made:
            if not isinstance(each, Definition) or not isinstance(each.node, ast.ClassDef):
                return False
            for above in (each, *self.program.classes_above(each)):
                known = above == External("torch.nn.Module") or isinstance(above, Definition)
                if not known or getattr(above, "node", None) in wanted:
                    return False
        return bool(made)

    def builds_each(self, origin: Origin, listed: str) -> bool:
        """Whether a list of the model's holds modules that are made for it, one by one: none twice, none inside another.

        Args:
            listed: `layers`, or `blocks()` for a method that returns such an attribute.
        """
        return bool(origin.factories) and all(
            bool(classes) and all(self._builds_each(each, listed) for each in classes)
            for factory in origin.factories
            for classes in [list(self._with(factory, listed.removesuffix("()")))]
        )

    def _with(self, factory: tuple[File, ast.Call], name: str) -> Iterator[Definition]:
        """The classes of the program that a factory can make an instance of and that mention a name."""
        made = self.made_of(*factory)
        found = [made] if isinstance(made, Definition) else []
        if isinstance(made, Inner):
            paths = self.reach.below(str(made.file.path))
            files = [file for path in paths if (file := self.program.load(path)) is not None]
            found = [Definition(file, cls) for file in files for cls in file.of(ast.ClassDef)]
        word = re.compile(rf"\b{re.escape(name)}\b")
        yield from (each for each in found if word.search(each.file.source(each.node)))

    def _builds_each(self, cls: Definition, listed: str) -> bool:
        """Whether `self.layers = nn.ModuleList([Block(i) for i in ...])` is all that a class does to a list."""
        above = [each for each in self.program.classes_above(cls) if isinstance(each, Definition)]
        nodes = [(each.file, node) for each in (cls, *above) for node in ast.walk(each.node)]
        own = f"self.{_returned(nodes, listed) if listed.endswith('()') else listed}"
        made = [
            (file, node.value)
            for file, node in nodes
            if isinstance(node, ast.Assign) and own in map(ast.unparse, node.targets)
        ]
        if len(made) != 1 or not is_module(self.program, cls) or _is_changed(nodes, own):
            return False
        file, call = made[0]
        if not isinstance(call, ast.Call) or len(call.args) != 1:
            return False
        every = call.args[0].elt if isinstance(call.args[0], _COMPREHENSIONS) else None
        blocks = self.program.meanings(every.func, file) if isinstance(every, ast.Call) else ()
        return getattr(call.func, "attr", "") == "ModuleList" and [
            isinstance(getattr(block, "node", None), ast.ClassDef) for block in blocks
        ] == [True]

    def _unused(self, cls: Definition) -> bool:
        """Whether a class of the model, or one that it names, has a part that its forwards may not read."""
        modules = [
            each
            for each in self._reached(cls)
            if isinstance(each.node, ast.ClassDef) and is_module(self.program, each)
        ]
        methods = (method for each in modules for method in ast.walk(each.node))
        used = surely_read(each for each in methods if isinstance(each, ast.FunctionDef))
        return not all(_is_read(name, each, used) for each in modules for name in self._parts(each))

    def _parts(self, cls: Definition) -> Iterator[str]:
        """The attributes that a class gives itself by calls of torch.nn or of the program's classes."""
        for node in ast.walk(cls.node):
            if isinstance(node, ast.Assign | ast.AnnAssign) and self._makes_part(node.value, cls):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for each in (each for target in targets for each in ast.walk(target)):
                    if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store):
                        yield each.attr
            elif isinstance(node, ast.Call) and last_name(node.func) in _ADDING:
                given = values_given(node)
                if any(self._makes_part(each, cls) for each in given):
                    names = (each.value for each in given if isinstance(each, ast.Constant))
                    yield str(next(names, ""))

    def _makes_part(self, value: ast.expr | None, cls: Definition) -> bool:
        calls = (each for each in ast.walk(value or ast.Pass()) if isinstance(each, ast.Call))
        return any(
            isinstance(getattr(made, "node", None), ast.ClassDef)
            or getattr(made, "dotted", "").startswith("torch.nn.")
            for call in calls
            for made in self.program.meanings(call.func, cls.file)
        )

    def _reached(self, definition: Definition) -> Iterator[Definition]:
        """A class or function, and those that it names, directly or through others."""
        pending, seen = [definition], {definition.node}
        while pending:
            definition = pending.pop()
            yield definition
            for node in ast.walk(definition.node):
                if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
                    for meaning in self.program.meanings(node, definition.file):
                        if isinstance(meaning, Definition) and meaning.node not in seen:
                            seen.add(meaning.node)
                            pending.append(meaning)

    def _uses_another_package(self, definition: Definition) -> bool:
        """Whether something is called, or is a base, that another package has, which may make modules."""
        called = [node.func for node in ast.walk(definition.node) if isinstance(node, ast.Call)]
        bases = definition.node.bases if isinstance(definition.node, ast.ClassDef) else []
        return any(
            isinstance(meaning, External) and meaning.dotted.split(".")[0] not in _KNOWN
            for function in (*called, *bases)
            if isinstance(function, ast.Name | ast.Attribute)
            for meaning in self.program.meanings(function, definition.file)
        )

    def _imports_another_package(self, path: str) -> bool:
        """Whether a file imports a package that may make modules."""
        found = re.findall(r"^\s*(?:from|import) (\w+)", self.reach.text(path), re.MULTILINE)
        own = {name for name in found if any(name in other for other in self.reach.imports(path))}
        return bool({*found} - _KNOWN - own)


def _is_read(part: str, cls: Definition, used: set[str]) -> bool:
    """Whether a part is called, or all that it has is read: `F.linear(x, self.head.weight)` leaves a bias out."""
    if f".{part}" in used or f".{part}.weight" not in used:
        return f".{part}" in used
    no_bias = rf"\.{re.escape(part)}\b.*(?:Embedding|RMSNorm|bias=False)"
    return f".{part}.bias" in used or bool(re.search(no_bias, cls.file.source(cls.node)))


def _returns_several(cls: Definition) -> bool:
    """Whether a forward returns several values, not all of which a loss may use; what returns a loss uses the others for it."""
    values: list[ast.expr] = []
    for method in getattr(cls.node, "body", ()):
        if isinstance(method, ast.FunctionDef) and method.name == "forward":
            nodes = list(ast.walk(method))
            found = [n.value for n in nodes if isinstance(n, ast.Return) and n.value is not None]
            names = {each.id for each in found if isinstance(each, ast.Name)}
            made = (n for n in nodes if isinstance(n, ast.Assign))
            values += [n.value for n in made if getattr(n.targets[0], "id", "") in names]
            values += found
    return any(
        (
            isinstance(each, ast.Tuple | ast.List | ast.Dict)
            or (isinstance(each, ast.Call) and last_name(each.func)[:1].isupper())
        )
        and "loss" not in ast.unparse(each)
        for each in values
    )


def _returned(nodes: list[tuple[File, ast.AST]], method: str) -> str:
    """The attribute that `def blocks(self): return list(self.layers)` returns."""
    functions = [node for _, node in nodes if isinstance(node, ast.FunctionDef)]
    bodies = [each.body for each in functions if f"{each.name}()" == method]
    text = ast.unparse(bodies[0][0]) if len(bodies) == 1 and len(bodies[0]) == 1 else ""
    found = re.fullmatch(r"return (?:list\(self\.(\w+)\)|self\.(\w+))", text)
    return (found[1] or found[2]) if found else ""


def _is_changed(nodes: list[tuple[File, ast.AST]], own: str) -> bool:
    """Whether something may be put into a list, or taken from it by its index."""
    around = (n for _, n in nodes if isinstance(n, ast.Attribute | ast.Subscript))
    return any(
        ast.unparse(node.value) == own
        and (isinstance(node, ast.Subscript) or node.attr in {"append", "extend", "insert", "pop"})
        for node in around
    )


def _own_text(file: File, around: ast.AST) -> str:
    """The source of the statements around a constructor; of a module, those that define nothing."""
    body = getattr(around, "body", [])
    own = [s for s in body if not isinstance(s, ast.FunctionDef | ast.ClassDef)]
    return "\n".join(file.source(statement) for statement in own)
