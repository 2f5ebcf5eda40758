"""Runs the whole engine on a program, and checks what must hold for every program whatever it says."""

import ast
import builtins
import contextlib
import re
import signal
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from fsdp_migrate.codemods.constructor.code import KEEPS
from fsdp_migrate.codemods.edit.text import comments
from fsdp_migrate.engine import analyse_source
from fsdp_migrate.facts.file import NEWLINE, File
from fsdp_migrate.facts.names import NAMES, RUNTIME, TORCH, fsdp1_name
from fsdp_migrate.facts.program import is_fallback
from fsdp_migrate.facts.scopes import Assigned, Binding
from fsdp_migrate.report import Report
from fsdp_migrate.settings import Options
from fsdp_migrate.source import Source

FSDP = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
POLICY = (
    f"{FSDP}from torch.distributed.fsdp.wrap import ModuleWrapPolicy\nfrom m import Block, Net\n"
)
FORMS = ("auto", "torch", "bridge")
# The further runs after which nothing may change in torch's form.
_RUNS = 2


@dataclass(frozen=True)
class Outcome:
    """What a run made of one program."""

    before: str
    after: str
    data: bytes
    report: Report

    @property
    def changed(self) -> bool:
        return bool(self.report.changes)

    @property
    def codes(self) -> set[str]:
        return {finding.code for finding in self.report.findings}


def run(text: str | bytes, options: Options | None = None) -> Outcome:
    """One program, given as text or as the bytes of its file."""
    data = text if isinstance(text, bytes) else text.encode()
    source = Source(Path("/nowhere/example.py"), "example.py", data)
    report = analyse_source(source, options)
    after = report.changes[0].after if report.changes else data
    return Outcome(source.text, after.decode(source.encoding), after, report)


def broken(outcome: Outcome, form: str = "auto") -> list[str]:
    """What is wrong with a result, whatever the program was; nothing if all is well."""
    found: list[str] = []
    try:
        compile(outcome.after, "<after>", "exec", dont_inherit=True)
    except SyntaxError as error:
        return [f"does not parse: {error}"]
    lost = Counter(comments(outcome.before)) - Counter(comments(outcome.after))
    lost -= Counter(behind_imports(outcome.before)) + Counter(beside_removed(outcome.before))
    found += [f"lost comment {comment}" for comment in lost if not may_go(comment)]
    # In torch's form contexts within contexts, and constructors with comments in one statement, may take runs of their own.
    last = outcome
    for _ in range(_RUNS if form == "torch" else 0):
        last = run(last.data, Options(form))
    if run(last.data, Options(form)).data != last.data:
        found.append("a later run changes it again")
    undefined = unbound(outcome.after) - unbound(outcome.before)
    undefined -= assigned(
        outcome.before
    )  # `model = FSDP(model)` binds a name that `fully_shard(model)` only reads
    found += [f"{name} is not defined" for name in sorted(undefined)]
    early = used_before_bound(outcome.after) - used_before_bound(outcome.before)
    early -= assigned(outcome.before)
    found += [f"{name} is used above its definition" for name in sorted(early)]
    twice = shadowing_imports(outcome.after) - shadowing_imports(outcome.before)
    found += [f"the import of {name} means another thing than before" for name in sorted(twice)]
    if form != "torch":  # which leaves what it cannot write, with a finding
        found += [f"{name} still comes from torch" for name in sorted(of_torch(outcome.after))]
    found += [f"line {line} has no finding" for line in sorted(unaccounted(outcome))]
    found += [f"line {line} changed without a finding" for line in sorted(touched(outcome))]
    return found


class TooSlow(BaseException):
    """A program took longer than one of its size may; no `except Exception` of the tool's may take it."""


@contextlib.contextmanager
def limited(size: int) -> Iterator[None]:
    """A block may take five seconds of its own, and one more for each 10 kB of the file."""

    def stop(*_: object) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, 5 + size / 10_000)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def wrong(data: bytes, form: str, counts: Counter[str] | None = None) -> list[str]:
    """What is wrong with what the tool makes of a file in one form, an exception and an endless loop among it.

    Adds to `counts` what it made of the file.
    """
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")  # what the tool says of `"\d"` in a program
        started = time.process_time()
        try:
            with limited(len(data)):
                outcome = run(data, Options(form))
                if counts is not None:
                    counts.update(f"{form}: {f.action.value}" for f in outcome.report.findings)
                    counts[f"{form}: files changed"] += outcome.changed
                errors = [f"error: {error.message}" for error in outcome.report.errors]
                errors += [f"warns: {each.message}" for each in said]
                warnings.simplefilter("ignore")
                return errors or broken(outcome, form)
        except TooSlow:
            return [f"{time.process_time() - started:.0f} s for {len(data)} bytes"]
        except Exception as error:
            return [f"raised {error!r}"]


def touched(outcome: Outcome) -> set[int]:
    """The lines that the result no longer has as they were, and that no finding speaks of."""
    before, after = (_lines(text) for text in (outcome.before, outcome.after))
    spoken = {line for f in outcome.report.findings for line in range(f.line, f.end_line + 1)}
    for node in ast.walk(
        ast.parse(outcome.before)
    ):  # a statement may begin above what a finding is about
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            lines = range(node.lineno, body[0].lineno if body else (node.end_lineno or 0) + 1)
            spoken.update(lines if not spoken.isdisjoint(lines) else ())
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    changes = [each for each in matcher.get_opcodes() if each[0] != "equal"]
    # An import may change places with the one above it.
    made = {after[line] for _, _, _, first, last in changes for line in range(first, last)}
    return {
        line + 1
        for _, start, end, _, _ in changes
        for line in range(start, end)
        # A comment at the end of a block moves with it.
        if before[line].strip("\\ \t\f\r\n")
        and before[line] not in made
        and not before[line].lstrip().startswith("#")
    } - spoken


def _lines(text: str) -> list[str]:
    """The lines of a text, each with its own end, without form feeds in front: one may outlive its line."""
    ends = [0, *(match.end() for match in NEWLINE.finditer(text)), len(text)]
    return [text[start:end].lstrip("\f") for start, end in pairwise(ends)]


# Of what goes without a trace: arguments that have no effect, or None.
_GOING = re.compile(
    r"type:|noqa|orig|limit|gather|prefetch|backward|forward|offload|precision|policy|sync|device|init|ignored"
    r"|shard|zero"
)


def behind_imports(text: str) -> list[str]:
    """The comments on lines of import statements: one behind a name that goes, goes with it."""
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    numbers = {alias.end_lineno for node in imports for alias in node.names}
    lines = enumerate(NEWLINE.split(text), 1)
    return ["#" + line.partition("#")[2] for number, line in lines if number in numbers]


def beside_removed(text: str) -> list[str]:
    """The comments at the end of the line of an argument that has no effect, and on the lines directly above it."""
    lines = NEWLINE.split(text)
    found = []
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.keyword(arg="backward_prefetch" | "limit_all_gathers" | "use_orig_params"):
                pass
            case ast.keyword(value=ast.Constant(None | False)):
                pass
            case _:
                continue
        found.append("#" + lines[(node.end_lineno or node.lineno) - 1].partition("#")[2])
        for line in reversed(lines[: node.lineno - 1]):
            if not line.lstrip().startswith("#"):
                break
            found.append(line.strip())
    return found


def may_go(comment: str) -> bool:
    """Whether a comment can speak of an argument that goes, or is the tool's own."""
    return bool(_GOING.search(comment.lower())) or comment == KEEPS


def of_torch(text: str) -> set[str]:
    """The FSDP1 names that a program takes from torch's own modules."""
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and not node.level:
            names |= {path for a in node.names if fsdp1_name(path := f"{node.module}.{a.name}")}
        elif isinstance(node, ast.Attribute) and fsdp1_name(ast.unparse(node)):
            names.add(ast.unparse(node))
    # Policies are the same objects in either package: they stay.
    return {n for n in names if n.startswith(TORCH) and not n.startswith(f"{TORCH}.wrap.")}


def unaccounted(outcome: Outcome) -> set[int]:
    """The lines that an edit changed, or that use a name imported from FSDP1, and that no finding speaks of."""
    tree = ast.parse(outcome.before)
    names = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(TORCH)
        for alias in node.names
        if alias.name in NAMES
    }
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        and not (getattr(node, "module", "") or "").startswith(TORCH)
        for alias in node.names
    }
    module = _file(outcome.before)
    used = {
        load.lineno
        for name in names - imported
        for load in module.loads.get(name, ())
        if (found := module.scope_of(load).lookup(name)) is not None
        and all(hasattr(binding, "alias") for binding in found[1])
    }
    spoken = {line for f in outcome.report.findings for line in range(f.line, f.end_line + 1)}
    return used - spoken


def unbound(text: str) -> set[str]:
    """Names that a program reads (or deletes) and nothing in it binds."""
    module = _file(text)
    names = {
        name
        for name, loads in module.loads.items()
        for load in loads
        if module.scope_of(load).lookup(name) is None
    }
    bound = {
        alias.asname or alias.name.split(".")[0]
        for node in (*module.of(ast.Import), *module.of(ast.ImportFrom))
        for alias in node.names
    }
    stored = {node.id for node in module.of(ast.Name) if isinstance(node.ctx, ast.Store)}
    deleted = {node.id for node in module.of(ast.Name) if isinstance(node.ctx, ast.Del)}
    return (names | (deleted - bound - stored)) - set(dir(builtins))


def assigned(text: str) -> set[str]:
    """Names that a program assigns itself."""
    return {
        node.id
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def used_before_bound(text: str) -> set[str]:
    """Names that the top level reads above the first line that binds them."""
    module = _file(text)
    first: dict[str, int] = {}
    of_comprehensions = _names_of_comprehensions(module.tree)
    for node in ast.walk(module.tree):
        if module.scope_of(node) is not module.scope or node in of_comprehensions:
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                name = alias.asname or alias.name.split(".")[0]
                first[name] = min(first.get(name, node.lineno), node.lineno)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            first[node.id] = min(first.get(node.id, node.lineno), node.lineno)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first[node.name] = min(first.get(node.name, node.lineno), node.lineno)
    return {
        name
        for name, loads in module.loads.items()
        for load in loads
        if module.scope_of(load) is module.scope and load.lineno < first.get(name, 0)
        if load not in of_comprehensions
    }


def _names_of_comprehensions(tree: ast.AST) -> set[ast.AST]:
    """The variables of comprehensions, where they are bound and where they are read."""
    found: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            targets = [part for each in node.generators for part in ast.walk(each.target)]
            bound = {part.id for part in targets if isinstance(part, ast.Name)}
            inside = [part for part in ast.walk(node) if isinstance(part, ast.Name)]
            found |= {part for part in inside if part.id in bound}
    return found


def shadowing_imports(text: str) -> set[str]:
    """Names that one scope imports from two places, or imports and defines; a fallback (`NAME = None`) aside."""
    module = _file(text)
    return {
        name
        for scope in module.scopes
        for name, bindings in scope.bindings.items()
        if len({_origin(b) for b in bindings if not _is_fallback(b)}) > 1
        and any(hasattr(b, "alias") for b in bindings)
    }


def _origin(binding: Binding) -> str | int:
    module = getattr(binding, "module", None)
    if module is None:
        return id(binding)
    home = RUNTIME if str(module).startswith(RUNTIME) else module  # one object, by any path
    return f"{home}.{getattr(binding, 'member', '')}"


def _is_fallback(binding: Binding) -> bool:
    return isinstance(binding, Assigned) and is_fallback(binding.value)


@lru_cache(maxsize=2)  # the program before and after
def _file(text: str) -> File:
    return File(Path("/nowhere/example.py"), "example.py", text)
