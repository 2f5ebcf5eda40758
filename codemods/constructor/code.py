"""What the arguments of one constructor become, as source, and the statements that it adds up to."""

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from textwrap import indent

from fsdp_migrate.codemods.constructor.conditions import Condition
from fsdp_migrate.codemods.constructor.construction import AtRunTime, Construction
from fsdp_migrate.codemods.constructor.once import inlined
from fsdp_migrate.codemods.constructor.options import Rewritten
from fsdp_migrate.codemods.rule import Import
from fsdp_migrate.facts.names import TORCH

_NAME = re.compile(r"(?<![\w.])[^\W\d]\w*")  # no attribute
# What stands above `with like_fsdp1(model):`.
KEEPS = "# Keeps FSDP1's behaviour; fsdp-migrate verify says when it can go"


@dataclass(eq=False)
class Code:
    """What the arguments of one constructor become, as source, statement by statement.

    Attributes:
        model: the model.
        said: what is said of each argument, by its name.
        above: statements in front of all, which make what the others read.
        before: statements that read or change the whole model before it is sharded.
        shared: keyword arguments of every `fully_shard` call.
        child, root: those of the units below the root, and of the root.
        loop: the head of the loop over the units below the root; empty where the root alone is one.
        unit: the loop's variable.
        casts: whether the policy may have a type for parameters, to which inputs are cast.
        exempt: a class whose modules are units in full precision.
        ignored: the name of the set of modules that are no units.
        whole: the condition that every rank of a group keeps whole parameters.
        hybrid: the condition that there is a pair of groups.
        offloaded: the condition that parameters are offloaded.
        cast: the type that buffers are cast to, perhaps behind `x and `; "" where they keep their own.
        cast_can_be_none: whether that may be None.
        device: where buffers are moved to that got their values after the sharding; "" where none can be elsewhere.
        note: a comment at the root.
        fill: statements that fill what is on the meta device.
        drawn: what is said of first values that they draw; "" where the finding of an argument says it, or none are drawn.
        last: statements that load values into the sharded model.
        like_fsdp1: keyword arguments of `like_fsdp1`.
        below: statements behind the sharding that do without it what those ask for.
        imports: the names that all this uses.
        rewritten: the option objects that are rewritten where they are made.
        once: names above that stand for an expression, which may be written where they are read.
    """

    model: str
    rewritten: Rewritten
    said: dict[str, str] = field(default_factory=dict)
    above: list[str] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    shared: dict[str, str] = field(default_factory=dict)
    child: dict[str, str] = field(default_factory=dict)
    root: dict[str, str] = field(default_factory=dict)
    loop: list[str] = field(default_factory=list)
    unit: str = "module"
    casts: bool = False
    exempt: str = ""
    ignored: str = ""
    whole: Condition = False
    hybrid: Condition = False
    offloaded: Condition = False
    cast: str = ""
    cast_can_be_none: bool = False
    device: str = ""
    note: str = ""
    fill: list[str] = field(default_factory=list)
    drawn: str = ""
    last: list[str] = field(default_factory=list)
    like_fsdp1: list[str] = field(default_factory=list)
    below: list[str] = field(default_factory=list)
    imports: list[Import] = field(default_factory=list)
    once: list[str] = field(default_factory=list)

    def use(self, construction: Construction, name: str, module: str = TORCH) -> None:
        """Lets the file import a name that the code uses."""
        self.imports.append(Import(module, name, construction.call.func))

    @property
    def blocks(self) -> tuple[list[str], ...]:
        """The statements around the sharding, in their order."""
        return self.above, self.before, self.fill, self.last, self.below

    @property
    def text(self) -> str:
        """All that the code reads, as source."""
        given = [*self.shared.values(), *self.child.values(), *self.root.values()]
        lines = [line for block in (*self.blocks, self.loop) for line in block]
        return " ".join([*given, *lines, *self.like_fsdp1])

    @property
    def names(self) -> frozenset[str]:
        """The names that the code reads."""
        return frozenset(_NAME.findall(self.text))

    @property
    def call(self) -> str:
        """The arguments of `fully_shard` behind the model, as source.

        Raises:
            AtRunTime: if there is more than that one call.
        """
        if any(self.blocks) or self.loop or self.note:
            raise AtRunTime
        return _arguments(self.root) + _arguments(self.shared)

    def lines(self, construction: Construction) -> list[str]:
        """The statements that shard the model, and what is around them."""
        context = construction.context
        call = construction.call
        lines = [*self.above, *self.before]
        given = dict(self.shared)
        mesh = given.get("mesh", "")
        if self.loop and "(" in mesh:  # one for all units
            given["mesh"] = context.local("mesh", call)
            lines.insert(len(self.above), f"{given['mesh']} = {mesh}")
        policy = given.get("offload_policy", "")
        if self.loop and " if " in policy:
            given["offload_policy"] = context.local("offload_policy", call)
            lines.append(f"{given['offload_policy']} = {policy}")
            self.once.append(given["offload_policy"])
        shared = _arguments(given)
        if len(given) > 1 and self.loop:
            name = context.local("fsdp_kwargs", call)
            if name != "fsdp_kwargs":
                name = "fsdp_options"
            entries = ", ".join(f'"{key}": {value}' for key, value in given.items())
            lines.append(f"{name} = {{{entries}}}")
            shared = f", **{name}"
        sharding = self._loop(shared)
        if self.note:
            sharding.append(self.note)
        sharding.append(f"fully_shard({self.model}{_arguments(self.root)}{shared})")
        room = context.line_length - context.file.statement(call).col_offset
        if construction.like_fsdp1:
            room -= 4
        count = len(sharding)
        is_read_here = shared.startswith(", **") or not (self.loop or construction.like_fsdp1)
        every = inlined([*lines, *sharding], self._read_once(given, is_read_here), room)
        lines = every[: len(every) - count]
        sharding = every[len(every) - count :]
        lines = [each for line in lines for each in _in_room(line, room)]
        lines += under(construction, self.model, sharding, self.like_fsdp1)
        return [*lines, *self.fill, *self.last, *self.below]

    def _read_once(self, given: dict[str, str], is_read_here: bool) -> list[str]:
        """The names that may be replaced by what they stand for.

        Args:
            is_read_here: whether shared arguments are read in front of the sharding, once for all units.
        """
        names = list(dict.fromkeys(self.once))
        ignored = given.get("ignored_params", "")
        if ignored.isidentifier() and is_read_here:
            names.append(ignored)
        return names

    def _loop(self, shared: str) -> list[str]:
        """The loop over the units below the root."""
        if not self.loop:
            return []
        depth = len(self.loop[-1]) - len(self.loop[-1].lstrip()) + 4
        lines = [*self.loop]
        policy = self.root.get("mp_policy", "")
        if self.exempt and policy and lines[-1].lstrip().startswith("if "):
            inside = " " * (depth - 4)
            arguments = {**self.child}
            del arguments["mp_policy"]
            if self.casts:
                given = f"param_dtype=torch.float32, output_dtype={policy}.param_dtype"
                arguments["mp_policy"] = f"MixedPrecisionPolicy({given})"
            lines[-1:] = [
                f"{inside}if isinstance({self.unit}, {self.exempt}):",
                f"{inside}    # As under FSDP1, in float32",
                f"{inside}    fully_shard({self.unit}{_arguments(arguments)}{shared})",
                f"{inside}el{lines[-1].lstrip()}",
            ]
        if "cast_forward_inputs=False" in self.child.get("mp_policy", ""):
            lines.append(" " * depth + "# As under FSDP1, only the root casts its inputs")
        lines.append(f"{' ' * depth}fully_shard({self.unit}{_arguments(self.child)}{shared})")
        return lines


_ASSIGNS = re.compile(r"\w+ = .* if ", re.DOTALL)


def _in_room(line: str, room: int) -> list[str]:
    """`name = value if test else default` as an `if` statement, where it is too long for its line."""
    if len(line) <= room or not _ASSIGNS.match(line):
        return [line]
    match ast.parse(line).body:
        case [ast.Assign(targets=[ast.Name(id=name)], value=ast.IfExp() as chosen)]:
            if not _only_gives(chosen.orelse):
                return [line]
            parts = (chosen.orelse, chosen.test, chosen.body)
            default, test, value = [ast.get_source_segment(line, part) for part in parts]
            return [f"{name} = {default}", f"if {test}:", f"    {name} = {value}"]
    return [line]


def _only_gives(default: ast.expr) -> bool:
    """Whether an expression can be evaluated for nothing: None, an empty dictionary, a policy that does nothing."""
    match default:
        case ast.Constant() | ast.Dict(keys=[]):
            return True
        case ast.Call(func=ast.Name(id="OffloadPolicy" | "MixedPrecisionPolicy"), args=[]):
            return not default.keywords
    return False


def under(
    construction: Construction, model: str, lines: list[str], options: Iterable[str] = ()
) -> list[str]:
    """Statements that shard, under the line that keeps FSDP1's behaviour in the form that has it."""
    if not construction.like_fsdp1:
        return lines
    given = ", ".join([model, *options])
    return [KEEPS, f"with like_fsdp1({given}):", *[indent(line, "    ") for line in lines]]


def _arguments(given: dict[str, str]) -> str:
    return "".join(f", {name}={value}" for name, value in given.items())
