"""Whether the body of `with FSDP.state_dict_type(model, ...)` does only what needs no context.

Every mention of the model must be one that is known here, and no other call may have a way to the model. Anything else could
rely on the type: a trainer that holds the model, a function that is given it.
"""

from __future__ import annotations

import ast
import builtins
from dataclasses import dataclass, field

from fsdp_migrate.codemods.context import Context, shortened
from fsdp_migrate.facts.file import values_given
from fsdp_migrate.facts.names import CLASS
from fsdp_migrate.facts.program import Definition, External

# FSDP1's functions for optimizers that do the same under every type.
_ANY_TYPE = frozenset(
    {"full_optim_state_dict", "sharded_optim_state_dict", "shard_full_optim_state_dict"}
    | {
        "scatter_full_optim_state_dict",
        "flatten_sharded_optim_state_dict",
        "rekey_optim_state_dict",
    }
)
_ASK = frozenset({"hasattr", "id", "isinstance", "len", "print", "type"})
_ATTRIBUTES = frozenset({"config", "device", "dtype", "training"})
_METHODS = frozenset(
    {"eval", "train", "modules", "named_modules", "parameters", "named_parameters", "buffers"}
    | {"named_buffers", "zero_grad"}
)
# Methods of strings, containers, paths, files, tensors and loggers.
_HARMLESS = frozenset(
    {"add_scalar", "append", "as_posix", "barrier", "clone", "close", "copy", "cpu", "critical"}
    | {"cuda", "debug", "detach", "endswith", "error", "exception", "exists", "extend", "float"}
    | {"flush", "format", "get", "get_rank", "get_world_size", "half", "info", "is_dir", "is_file"}
    | {"item", "items", "join", "joinpath", "keys", "log", "lower", "mkdir", "numel", "open", "pop"}
    | {"print", "replace", "setdefault", "size", "split", "startswith", "strip", "to", "update"}
    | {"upper", "values", "wait_for_everyone", "warning", "write"}
)
_OTHERS = ("opt", "sched", "scaler", "loader", "sampler", "dataset", "tokenizer")
_SAVES = ("state_dict", "save_model", "save_pretrained", "save_state", "save_checkpoint")


@dataclass(eq=False)
class Body:
    """What a body does.

    Attributes:
        saves, loads: `model.state_dict()` and `model.load_state_dict(state)`.
        to_load: `FSDP.optim_state_dict_to_load(model, optimizer, states)`.
        reason: why the context must stay; empty if it need not.
    """

    saves: list[ast.Call] = field(default_factory=list)
    loads: list[ast.Call] = field(default_factory=list)
    to_load: list[ast.Call] = field(default_factory=list)
    reason: str = ""

    @property
    def calls(self) -> list[ast.Call]:
        """The calls that take a type."""
        return [*self.saves, *self.loads]


def body_of(context: Context, statement: ast.With, model: ast.expr) -> Body:
    """Reads the body of a context of a model."""
    return _Reader(context, statement, model).read()


class _Reader:
    def __init__(self, context: Context, statement: ast.With, model: ast.expr) -> None:
        self.context = context
        self.file = context.file
        self.nodes = [node for part in statement.body for node in ast.walk(part)]
        self.model = ast.unparse(model)
        self.parts = set(self.model.split("."))
        self.known: set[ast.AST] = set()
        self.body = Body()

    def read(self) -> Body:
        for node in self.nodes:
            if isinstance(node, ast.Yield | ast.YieldFrom | ast.Await):
                self.stay("other code runs inside of it")
            elif isinstance(node, ast.Name | ast.Attribute) and self.is_mention(node):
                self.mention(node)
        for node in self.nodes:
            if isinstance(node, ast.Call) and node not in self.known:
                if not self.is_harmless(node):
                    self.stay(f"`{shortened(self.context.source(node.func))}` may reach the model")
        return self.body

    def stay(self, reason: str) -> None:
        self.body.reason = self.body.reason or reason

    def is_mention(self, node: ast.Name | ast.Attribute) -> bool:
        """Whether a node is the model, or an object that holds it and is not just looked into."""
        name = node.id if isinstance(node, ast.Name) else node.attr
        if name not in self.parts:
            return False
        text = ast.unparse(node)
        if text == self.model:
            return True
        looked_into = isinstance(self.file.parents[node], ast.Attribute)
        return self.model.startswith(f"{text}.") and not looked_into

    def mention(self, node: ast.Name | ast.Attribute) -> None:
        parent = self.file.parents[node]
        if not isinstance(node.ctx, ast.Load):
            self.stay(f"`{ast.unparse(node)}` is assigned inside")
        elif isinstance(parent, ast.Attribute) and ast.unparse(node) == self.model:
            self.member(parent)
        elif isinstance(parent, ast.keyword | ast.Call) and self.is_asked(parent):
            pass
        else:
            self.stay(f"`{ast.unparse(node)}` is passed on inside")

    def member(self, attribute: ast.Attribute) -> None:
        """`model.attribute`, called or not."""
        call = self.file.parents[attribute]
        if not (isinstance(call, ast.Call) and call.func is attribute):
            if attribute.attr not in _ATTRIBUTES:
                self.stay(f"`{ast.unparse(attribute)}` is used inside")
            return
        self.known.add(call)
        starred = any(isinstance(argument, ast.Starred) for argument in call.args)
        if attribute.attr == "state_dict" and not call.args and not call.keywords:
            self.body.saves.append(call)
        elif attribute.attr == "load_state_dict" and not starred and _loads(call):
            self.body.loads.append(call)
        elif attribute.attr not in _METHODS:
            self.stay(f"`{shortened(self.context.source(call))}` may depend on the type")

    def is_asked(self, parent: ast.AST) -> bool:
        """Whether a call that is given the model is one of FSDP1's, or needs no type."""
        call = self.file.parents[parent] if isinstance(parent, ast.keyword) else parent
        assert isinstance(call, ast.Call)
        self.known.add(call)
        function = call.func
        if not isinstance(function, ast.Attribute) or self.context.fsdp1(function.value) != CLASS:
            return isinstance(function, ast.Name) and function.id in _ASK
        if function.attr == "optim_state_dict_to_load":
            self.body.to_load.append(call)
        elif function.attr == "optim_state_dict":
            self.stay(f"`{self.context.source(function)}` depends on the state-dict type")
        else:
            return function.attr in _ANY_TYPE
        return True

    def is_harmless(self, call: ast.Call) -> bool:
        """Whether a call that is not given the model has no other way to it: no function of the program, which may have one."""
        function, file = call.func, self.file
        if not isinstance(function, ast.Name | ast.Attribute):
            return False
        if isinstance(function, ast.Name) and file.variable(function) is None:
            return hasattr(builtins, function.id) and function.id not in {"eval", "exec"}
        meanings = self.context.program.meanings(function, file)
        if meanings and all(isinstance(meaning, External) for meaning in meanings):
            return self.is_foreign(call)
        if meanings and all(isinstance(meaning, Definition) for meaning in meanings):
            return False
        return isinstance(function, ast.Attribute) and _is_harmless_method(function)

    def is_foreign(self, call: ast.Call) -> bool:
        """Whether a call of another package is not FSDP1's, given no model, and none that saves one."""
        paths = self.context.dotted(call.func)
        given = values_given(call)
        return not any(map(self.context.can_be_model, given)) and not any(
            f".{CLASS}." in path or (path.endswith(_SAVES) and not path.startswith("torch."))
            for path in paths
        )


def _loads(call: ast.Call) -> bool:
    """Whether `load_state_dict` is given a state dict and nothing else but `strict`."""
    names = [*("state_dict", "strict")[: len(call.args)], *(k.arg for k in call.keywords)]
    return len(call.args) <= 2 and sorted(map(str, names)) in (
        ["state_dict"],
        ["state_dict", "strict"],
    )


def _is_harmless_method(function: ast.Attribute) -> bool:
    """Whether a method, of an object that is not known, cannot come to a model's state dict."""
    if isinstance(function.value, ast.Constant | ast.JoinedStr) or function.attr in _HARMLESS:
        return True
    return function.attr in {"state_dict", "load_state_dict"} and is_no_model(function.value)


def is_no_model(receiver: ast.expr) -> bool:
    """Whether a name says that what has the state dict is an optimizer, a scheduler or the like."""
    last = ast.unparse(receiver).rpartition(".")[2].lower()
    return any(word in last for word in _OTHERS)
