"""FSDP1 programs at random: every form of import, every use, any syntax that this Python parses, any layout of the file.

A program is made from one random generator, so that a seed names it. Programs need not run; they are what an editor of
source code has to get right.
"""

import io
import re
import sys
import tokenize
import warnings
from collections.abc import Mapping, Sequence
from random import Random

from .statements import (
    ARGUMENTS,
    CALM,
    CALM_USES,
    EXPRESSIONS,
    NAMES,
    NEWER,
    PLAIN_ARGUMENTS,
    SHELLS,
    STATEMENTS,
)

ROOT = "torch.distributed.fsdp"
_LOCAL = {"FullyShardedDataParallel": ("FSDP", "F", "FullyShardedDataParallel", "fsdp1")}
_COMMENTS = ("# why", "# type: ignore", "# noqa: F401", "# FSDP(model)", "#", "#: é", "# 'quote")
_PLACE = re.compile(r"\$(\w+)")
_ABBREVIATED = {
    "FSDP": "FullyShardedDataParallel",
    "m": "model",
    "n": "new_name",
    "c": "comment",
    "e": "expression",
}
_MODELS = ("model", "self.model", "net", "models[0]", "m")
_CODECS = {"utf-8": "é日😀", "latin-1": "éß", "cp1252": "é€", "utf-8-sig": "é日"}


class Grammar:
    """Draws the parts of one program."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.spellings: dict[str, list[str]] = {}
        self.imports: list[tuple[str, str, str]] = []  # module, name, local
        self.modules: set[str] = set()
        self.count = 0
        self.calm = rng.random() < 0.4

    def chance(self, part: float) -> bool:
        return self.rng.random() < part

    def program(self) -> str:
        """A module's text, with line ends of Unix."""
        count = self.rng.randint(1, 7)
        if self.calm:
            templates = [self.rng.choice(CALM), *self.rng.choices(CALM_USES, k=count // 2)]
            body = "\n".join(map(self.fill, templates)).split("\n")
            self.modules |= {"import torch", "import functools", "from m import Block, Net"}
        else:
            body = [line for _ in range(count) for line in self.statement(0)]
            for name in self.rng.sample(
                sorted(NAMES), self.rng.randint(0, 2)
            ):  # imported, not used
                self.spell(name)
        top = self.rng.choice(
            (["'''Doc, FSDP.'''"], ["from __future__ import annotations"], [], [])
        )
        head = self.import_lines()
        if self.chance(0.1) and not top:
            head.insert(0, "first = 1")  # imports need not be first
        return "\n".join([*top, *head, *body]) + "\n"

    # Names and imports

    def spell(self, name: str) -> str:
        """How the program writes an FSDP1 name; it sees to the import."""
        known = self.spellings.setdefault(name, [])
        if known and not self.chance(0.1):
            return self.rng.choice(known)
        module = self.rng.choice(NAMES[name])
        form = self.rng.choice(("from", "from", "from", "as", "as", "star", "module", "dotted"))
        if form == "star" and module == ROOT:
            self.modules.add(f"from {module} import *")
            spelling = name
        elif form == "module":
            alias = self.rng.choice(("fsdp", "F_", "_fsdp")) + str(len(self.modules))
            parent, _, last = module.rpartition(".")
            self.modules.add(
                self.rng.choice(
                    (f"import {module} as {alias}", f"from {parent} import {last} as {alias}")
                )
            )
            spelling = f"{alias}.{name}"
        elif form == "dotted":
            self.modules.add(
                self.rng.choice((f"import {module}", "import torch", "import torch.distributed"))
            )
            spelling = f"{module}.{name}"
        else:
            spelling = (
                self.rng.choice(_LOCAL.get(name, (name, f"_{name}"))) if form == "as" else name
            )
            self.imports.append((module, name, spelling))
        known.append(spelling)
        return spelling

    def import_lines(self) -> list[str]:
        """The imports that the program needs, in statements of any form."""
        lines = sorted(self.modules)
        by_module: dict[str, list[str]] = {}
        for module, name, local in dict.fromkeys(self.imports):
            alias = name if name == local else f"{name} as {local}"
            by_module.setdefault(module, []).append(alias)
            if self.chance(0.05):
                by_module[module].append(f"{name} as {local}")
        for module, aliases in by_module.items():
            while aliases:
                size = self.rng.randint(1, len(aliases))
                lines += self.import_statement(module, aliases[:size])
                aliases = aliases[size:]
        return lines

    def import_statement(self, module: str, aliases: list[str]) -> list[str]:
        extra = self.rng.choice(([], [], ["fully_shard"], ["register_fsdp_forward_method as r"]))
        names = aliases + extra * (module == ROOT)
        self.rng.shuffle(names)
        joined = ", ".join(names)
        flat = f"from {module} import {joined}"
        form = self.rng.randrange(10)
        if form < 3:
            return [flat]
        if form == 3:
            return [
                f"from {module} import (",
                *(f"    {name},{self.comment()}" for name in names),
                ")",
            ]
        if form == 4:
            return [f"from {module} import \\", "    " + ", \\\n    ".join(names)]
        if form == 5:
            return [f"import os; {flat}; x = 1{self.comment()}"]
        if form == 6:
            handler = self.rng.choice(("    FSDP = None", "    pass  # old", "    raise"))
            return ["try:", f"    {flat}{self.comment()}", "except ImportError:", handler]
        if form == 7:
            guard = self.rng.choice(
                ("if TYPE_CHECKING:", "if torch.__version__ >= '2.1':", "if True:")
            )
            return [guard, *(f"    from {module} import {name}{self.comment()}" for name in names)]
        if form == 8:
            spaced = module.replace(".", self.rng.choice((" . ", ".", ". ")))
            return [f"from  {spaced}  import({joined},)"]
        return [f"if True: {flat}", "\\", flat] if self.chance(0.2) else [flat, "\f"]

    # Statements

    def fill(self, template: str) -> str:
        """A template with its names, models, calls and expressions filled in."""
        return _PLACE.sub(self._part, template)

    def _part(self, place: re.Match[str]) -> str:
        name = _ABBREVIATED.get(place[1], place[1])
        return self.spell(name) if name in NAMES else str(getattr(self, name)())

    def model(self) -> str:
        return "model" if self.calm else self.rng.choice(_MODELS)

    def new_name(self) -> str:
        """A new name."""
        self.count += 1
        return self.rng.choice(("x", "größe", "_", "fully_shard", "FSDPModule", "y")) + str(
            self.count
        )

    def expression(self) -> str:
        return self.fill(self.rng.choice(EXPRESSIONS))

    def plain(self) -> str:
        """A call of the constructor that can become plain."""
        return self.constructor(["model"], self.arguments(PLAIN_ARGUMENTS))

    def call(self) -> str:
        """A call of the constructor."""
        given = self.arguments(ARGUMENTS)
        model = self.rng.choice(("Net()", "Net(1)", self.model(), self.model()))
        positional = self.rng.choice((model, model, f"({model})", "*everything"))
        given.insert(0, f"module={model}" if given and self.chance(0.2) else positional)
        if self.chance(0.1):
            given.append("**options")
        return self.constructor(given[:1], given[1:])

    def arguments(self, values: Mapping[str, Sequence[str]]) -> list[str]:
        names = self.rng.sample(sorted(values), self.rng.randint(0, 4))
        return [f"{name}={self.fill(self.rng.choice(values[name]))}" for name in names]

    def constructor(self, first: list[str], others: list[str]) -> str:
        given = first + others
        cls = self.spell("FullyShardedDataParallel")
        layout = self.rng.randrange(4)
        if layout < 2:
            return f"{cls}({', '.join(given)}{',' * (layout and not given[-1].startswith('*'))})"
        return (
            f"{cls}(\n" + "".join(f"        {each},{self.comment()}\n" for each in given) + "    )"
        )

    def statement(self, depth: int) -> list[str]:
        """One statement; a compound one holds others."""
        if depth < 3 and self.chance(0.35):
            shells = SHELLS + [shell for since, shell in NEWER if sys.version_info >= since]
            shell = self.fill(self.rng.choice(shells))
            lines: list[str] = []
            for line in shell.split("\n"):
                indent = line[: len(line) - len(line.lstrip())]
                lines += self.block(depth, indent) if line.strip() == "BLOCK" else [line]
            return lines
        return self.fill(self.rng.choice(STATEMENTS)).split("\n")

    def block(self, depth: int, indent: str) -> list[str]:
        lines = [line for _ in range(self.rng.randint(1, 3)) for line in self.statement(depth + 1)]
        return [indent + line if line.strip() else line for line in lines]

    def comment(self) -> str:
        return f"  {self.rng.choice(_COMMENTS)}" if self.chance(0.3) else ""


def program(rng: Random) -> bytes:
    """The bytes of a file with an FSDP1 program."""
    while True:
        text = Grammar(rng).program()
        if not parses(text):
            continue
        rough = _roughened(text, rng)
        data = _encoded(rough if parses(rough) else text, rng)
        if parses(data):
            return data


def parses(text: str | bytes) -> bool:
    """Whether this Python compiles a program."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `"\d"`, `assert (x, 1)`
        try:
            compile(text, "<generated>", "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            return False
    return True


def _roughened(text: str, rng: Random) -> str:
    """The same program, laid out as no formatter would: comments, breaks and backslashes wherever a token ends."""
    rate = rng.choice((0.0, 0.0, 0.01, 0.05, 0.2))
    if not rate:
        return text
    out: list[str] = []
    depth, row, column, lines = 0, 1, 0, text.split("\n")
    strings = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        (start_row, start_column), (end_row, end_column) = token.start, token.end
        if start_row > row:
            out.append(
                "".join(
                    line + "\n" for line in (lines[row - 1][column:], *lines[row : start_row - 1])
                )
            )
            column = 0
        space = lines[start_row - 1][column:start_column] if start_row <= len(lines) else ""
        between = column > 0 and rng.random() < rate and not strings
        if (
            between
            and depth
            and token.type not in (tokenize.NEWLINE, tokenize.COMMENT, tokenize.NL)
        ):
            space = rng.choice((" ", "\t", "\n", "  # in\n  ", "\n\f\n", " \\\n ", "\n    # own\n"))
        elif between and token.type in (tokenize.NAME, tokenize.OP) and space:
            space = rng.choice(("  ", "\t", " \\\n", "\\\n    ", " \f "))
        elif token.type == tokenize.NEWLINE and rng.random() < rate:
            space = rng.choice((" ", "\t", ";", " ;", "  # end", "; # end", " \f"))
        out += [space, token.string if token.type not in (tokenize.INDENT, tokenize.DEDENT) else ""]
        if token.type in (tokenize.INDENT, tokenize.DEDENT):
            out[-1] = token.string
        if token.type in (tokenize.NEWLINE, tokenize.NL) and rng.random() < rate and not depth:
            out.append(
                rng.choice(
                    (
                        "\n",
                        "\f\n",
                        "    \n",
                        "# line\n",
                        "\f",
                        "\\\n",
                        "\f# ff\n",
                        "\t\n",
                        "  # off\n",
                        "    \\\n",
                    )
                )
            )
        depth += (
            (token.string in "([{") - (token.string in ")]}") if token.type == tokenize.OP else 0
        )
        name = tokenize.tok_name[token.type]
        strings += (name == "FSTRING_START" or name == "TSTRING_START") - name.endswith(
            "STRING_END"
        )
        row, column = end_row, end_column
    return "".join(out)


def _encoded(text: str, rng: Random) -> bytes:
    """A text as a file has it: line ends, tabs, a byte-order mark, an encoding, with or without a newline at the end."""
    if rng.random() < 0.1:
        text = "\n".join(
            "\t" * ((len(line) - len(line.lstrip(" "))) // 4) + line.lstrip(" ")
            for line in text.split("\n")
        )
    if rng.random() < 0.2:
        text = text.rstrip("\n") + rng.choice(
            ("", "\n\n\n", "\n\f", "\n# end", "\n    # end", "\n  ")
        )
    codec = rng.choice(("utf-8", "utf-8", "utf-8", *_CODECS))
    if rng.random() < 0.2:
        text += f"\nGREETING = '{_CODECS[codec]}'  # {_CODECS[codec]}\n"
    ends = rng.choice(("unix", "unix", "unix", "dos", "mac", "mixed"))
    if ends != "unix":
        choices = {"dos": ("\r\n",), "mac": ("\r",), "mixed": ("\n", "\r\n", "\r")}[ends]
        text = "".join(rng.choice(choices) if c == "\n" else c for c in text)
    if codec in ("utf-8", "utf-8-sig"):
        return text.encode(codec)
    end = "\r" if ends == "mac" else "\n"
    return f"# -*- coding: {codec} -*-{end}{text}".encode(codec, "replace")
