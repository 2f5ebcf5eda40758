"""What a migration made of the FSDP1 constructs of a file, read from its code before and after.

Nothing here asks the tool: calls and contexts are found in the code before, their lines are followed through the
difference, and what stands there afterwards is read from the code after.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

CLASS = "FullyShardedDataParallel"
OURS = "fsdp_migrate"
# FSDP1's options, as torch and the runtime name them: in torch's words there are none beside `fully_shard`.
OPTIONS = {"BackwardPrefetch", "CPUOffload", "MixedPrecision"}
KEYWORDS_OF_FULLY_SHARD = {
    "mesh",
    "reshard_after_forward",
    "shard_placement_fn",
    "mp_policy",
    "offload_policy",
    "ignored_params",
}
STATE_DICT_FUNCTIONS = "torch.distributed.checkpoint.state_dict."


# A step from the lines before to the lines after, as difflib has it.
Step = tuple[str, int, int, int, int]


class Form(str, Enum):
    """What a constructor call has become."""

    TORCH = "torch's words"
    """torch's `fully_shard` on modules, without `units(` and without an argument of FSDP1."""
    UNITS = "units"
    """A loop over the runtime's `units`, or `fully_shard` with an option of FSDP1."""
    BRIDGE = "bridge"
    """The runtime's class of FSDP1's name."""
    BY_HAND = "by hand"
    """torch's FSDP1 as it was, or nothing that shards."""


@dataclass(frozen=True)
class Construct:
    """A constructor call, or a state-dict context, by its lines in the code before."""

    first: int
    last: int
    text: str
    node: ast.AST | None = None


OF_WRAP = ("wrap(...)", "enable_wrap(FSDP)")


class Code:
    """The source of a file with its tree, and what its names are imported as."""

    def __init__(self, source: str) -> None:
        self.lines = source.splitlines()
        self.tree = ast.parse(source)
        self._imported: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    head = alias.name.partition(".")[0]
                    self._imported[alias.asname or head] = alias.name if alias.asname else head
            elif isinstance(node, ast.ImportFrom):
                module = "." * node.level + (node.module or "")
                for alias in node.names:
                    self._imported[alias.asname or alias.name] = f"{module}.{alias.name}"
        for node in self.tree.body:  # `Sharded = FSDP`
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                name = node.targets[0] if isinstance(node, ast.Assign) else node.target
                dotted = self.dotted(node.value)
                if isinstance(name, ast.Name) and is_fsdp1(dotted):
                    self._imported[name.id] = dotted

    def dotted(self, node: ast.AST) -> str:
        """The dotted name that an expression refers to by the imports; empty for what is no name."""
        if isinstance(node, ast.Name):
            return self._imported.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            around = self.dotted(node.value)
            return f"{around}.{node.attr}" if around else ""
        return ""

    @property
    def imports_ours(self) -> set[str]:
        """The names that the file imports from this package."""
        imported = self._imported.values()
        return {name for name in imported if name == OURS or name.startswith(f"{OURS}.")}

    @property
    def functions(self) -> dict[str, ast.FunctionDef]:
        """The functions that are defined anywhere in the file, by name."""
        return {n.name: n for n in ast.walk(self.tree) if isinstance(n, ast.FunctionDef)}


def is_fsdp1(dotted: str) -> bool:
    """Whether a name is that of FSDP1's class, of torch or of the runtime."""
    return dotted.rpartition(".")[2] == CLASS


def constructors(code: Code) -> Iterator[Construct]:
    """The constructor calls: of the class, a partial of it, a wrapper class, `wrap`; and its subclasses."""
    for node in ast.walk(code.tree):
        if isinstance(node, ast.ClassDef):
            if any(is_fsdp1(code.dotted(base)) for base in node.bases):
                yield Construct(node.lineno, node.lineno, f"class {node.name}")
        elif isinstance(node, ast.Call):
            called = code.dotted(node.func)
            given = [*node.args[:1]] if called.endswith("partial") else []
            given += [each.value for each in node.keywords if each.arg == "wrapper_cls"]
            if is_fsdp1(called) or called == "torch.distributed.fsdp.wrap.wrap":
                yield construct(node, f"{called.rpartition('.')[2]}(...)")
            elif any(is_fsdp1(code.dotted(each)) for each in given):
                yield construct(node, f"{called.rpartition('.')[2]}(FSDP)")


def contexts(code: Code) -> Iterator[Construct]:
    """The uses of `state_dict_type`: of a `with` statement all lines, of another call its own."""
    in_with: set[ast.expr] = set()
    for node in ast.walk(code.tree):  # parents before children
        if isinstance(node, ast.With | ast.AsyncWith):
            entered = [
                item.context_expr for item in node.items if opens_state_dicts(item.context_expr)
            ]
            if entered:
                in_with.update(entered)
                yield construct(node, "with state_dict_type(...)")
        elif isinstance(node, ast.expr) and opens_state_dicts(node) and node not in in_with:
            yield construct(node, "state_dict_type(...)")


def opens_state_dicts(node: ast.AST) -> bool:
    """Whether an expression is a call of `state_dict_type`."""
    if not isinstance(node, ast.Call):
        return False
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name == "state_dict_type"


def construct(node: ast.stmt | ast.expr, text: str) -> Construct:
    """The construct of a node's lines."""
    return Construct(node.lineno, node.end_lineno or node.lineno, text, node)


def needs_nothing(context: Construct) -> bool:
    """Whether a block does not depend on the type that it sets, once models hold shards anyway.

    Either it asks for state dicts of others than the model, such as an optimizer's, whatever the type is; or it sets shards
    for other code, which asks the model for its state dict itself.
    """
    if not isinstance(context.node, ast.With):
        return False
    calls = [item.context_expr for item in context.node.items]
    opened = [call for call in calls if isinstance(call, ast.Call) and opens_state_dicts(call)]
    if len(opened) != 1:
        return False
    given = [*opened[0].args[:1], *(k.value for k in opened[0].keywords if k.arg == "module")]
    models = {ast.unparse(model) for model in given}
    asked = []
    for part in context.node.body:
        for node in ast.walk(part):
            if isinstance(node, ast.Attribute) and "optim_state_dict" in node.attr:
                return False
            if isinstance(node, ast.Attribute) and node.attr.endswith("state_dict"):
                asked.append(ast.unparse(node.value))
    if asked:
        return all(owner.split(".module")[0] not in models for owner in asked)
    source = ast.unparse(opened[0])
    return "SHARDED_STATE_DICT" in source or "LOCAL_STATE_DICT" in source


class Written:
    """A file before and after a migration."""

    def __init__(self, before: str, after: str) -> None:
        self.before, self.after = Code(before), Code(after)
        old, new = self.before.lines, self.after.lines
        self._steps = [("equal", 0, len(old), 0, len(new))]
        if old != new:
            matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
            self._steps = list(matcher.get_opcodes())
        self._regions = _joined(self._steps, old)

    @property
    def added(self) -> int:
        """How many lines there are that were not there."""
        return sum(j2 - j1 for tag, _, _, j1, j2 in self._steps if tag != "equal")

    @property
    def removed(self) -> int:
        """How many lines are gone."""
        return sum(i2 - i1 for tag, i1, i2, _, _ in self._steps if tag != "equal")

    def form_of(self, call: Construct) -> Form:
        """What a constructor call has become."""
        nodes = list(self._in_its_place(call))
        if call.text in OF_WRAP:  # one may be gone, with the other in its place
            for other in constructors(self.before):
                if other.text in OF_WRAP and other != call:
                    nodes += self._in_its_place(other)
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        named = {self.after.dotted(node) for node in nodes}
        ours = {name.rpartition(".")[2] for name in named if name.startswith(f"{OURS}.")}
        sharding = [call for call in calls if self._shards(call)]
        if ours & {"units", *OPTIONS}:
            return Form.UNITS
        if any(is_fsdp1(name) for name in named):
            return Form.BRIDGE if CLASS in ours else Form.BY_HAND
        if not sharding:
            return Form.BY_HAND
        keywords = {each.arg for call in sharding for each in call.keywords if each.arg}
        return Form.TORCH if keywords <= KEYWORDS_OF_FULLY_SHARD else Form.UNITS

    def uses_functions(self, context: Construct) -> bool:
        """Whether functions that get and set state dicts stand in the place of a context."""
        if self._stays(context):
            return False
        names = {self.after.dotted(node) for node in self._in_its_place(context, self._regions)}
        return any(name.startswith(STATE_DICT_FUNCTIONS) for name in names)

    def is_taken_out(self, context: Construct) -> bool:
        """Whether a context is gone where none was needed, and each statement of its block is as it was.

        Or with a method that is inherited then: a call of that was all of its block.
        """
        if self._stays(context) or not needs_nothing(context):
            return False
        assert isinstance(context.node, ast.With)
        kept = {ast.dump(node) for node in self._in_its_place(context, self._regions)}
        return all(
            ast.dump(part) in kept
            or _inherited(part) in self.before.functions.keys() - self.after.functions
            for part in context.node.body
        )

    def _stays(self, context: Construct) -> bool:
        return any(opens_state_dicts(node) for node in self._in_its_place(context))

    def _shards(self, call: ast.Call) -> bool:
        name = self.after.dotted(call.func)
        return name.startswith("torch.distributed.") and name.endswith(".fully_shard")

    def _in_its_place(
        self, construct: Construct, steps: list[Step] | None = None
    ) -> Iterator[ast.AST]:
        """The nodes on the lines that took a construct's place, and those of the functions written for them."""
        lines = self._lines_of(construct, self._steps if steps is None else steps)
        old, new = self.before.functions, self.after.functions
        for node in ast.walk(self.after.tree):
            if isinstance(node, ast.expr | ast.stmt) and node.lineno in lines:
                yield node
                if isinstance(node, ast.Name) and node.id in new and node.id not in old:
                    yield from ast.walk(new[node.id])

    def _lines_of(self, construct: Construct, steps: list[Step]) -> set[int]:
        """The lines after the migration that stand where a construct's lines stood."""
        start, stop = construct.first - 1, construct.last
        lines: set[int] = set()
        for tag, i1, i2, j1, j2 in steps:
            if tag == "insert" and start <= i1 <= stop:
                lines.update(range(j1 + 1, j2 + 1))
            elif i1 < stop and start < i2:
                if tag == "equal":
                    j1, j2 = j1 + max(start - i1, 0), j1 + min(stop, i2) - i1
                lines.update(range(j1 + 1, j2 + 1))
        return lines


def _inherited(statement: ast.stmt) -> str:
    """The method of `return super().method(...)`; "" for any other statement."""
    match statement:
        case ast.Return(ast.Call(ast.Attribute(ast.Call(ast.Name("super"), [], []), name))):
            return name
    return ""


def _joined(steps: list[Step], lines: list[str]) -> list[Step]:
    """Steps without those that keep nothing but brackets and empty lines, which say nothing of what stands where."""
    joined: list[Step] = []
    for tag, i1, i2, j1, j2 in steps:
        says_nothing = not any(c.isalnum() for line in lines[i1:i2] for c in line)
        changes = tag != "equal" or (says_nothing and i1 > 0 and i2 < len(lines))
        if changes and joined and joined[-1][0] == "replace":
            _, before, _, written, _ = joined.pop()
            joined.append(("replace", before, i2, written, j2))
        else:
            joined.append(("replace" if changes else tag, i1, i2, j1, j2))
    return joined
