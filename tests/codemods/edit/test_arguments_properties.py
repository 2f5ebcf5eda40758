"""The argument editor on random calls, layouts, comments and edits."""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from dataclasses import dataclass, field

import libcst as cst
from hypothesis import given
from hypothesis import strategies as st

from fsdp_migrate.codemods.edit.arguments import ArgumentEdits, edit_call
from fsdp_migrate.codemods.edit.comments import comments_in

HEAD, TAIL = -1, -2

VALUES = [
    "{v}",
    "({v})",
    "g({v}, 1)",
    "[{v}\n , 2]",
    "g({v},  # {c}\n  1)",
    "(  # {c}\n {v})",
    "'{v}' 'b'",
    "lambda: {v}",
    "{v} if b else c",
    "({v} := 1)",
    "{v} := 1",
    "{{**{v}}}",
    "{v} or (\n  # {c}\n  b)",
    'f"{{{v}!r}}"',
]
INDENTS = ["    ", "  ", "\t", "", "            "]


@dataclass
class Source:
    """A call as text, with what the editor has to find out: whose comment is whose."""

    text: str = ""
    owners: dict[str, int] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    comment_count: int = 0

    def comment(self, owner: int) -> str:
        self.comment_count += 1
        comment = f"# c{self.comment_count}"
        self.owners[comment] = owner
        return comment


def _whitespace(draw: st.DrawFn, source: Source, ends: int, starts: int, indent: str) -> str:
    """Whitespace between items: a comment at the line's end is of `ends`, lines are of `starts`."""
    if not draw(st.booleans()):
        return draw(st.sampled_from(["", " ", " \\\n  "]))
    text = "  " + source.comment(ends) if draw(st.booleans()) else ""
    text += "\n"
    for _ in range(draw(st.integers(0, 2))):
        blank = draw(st.booleans())
        text += "\n" if blank else f"{indent}{source.comment(starts)}\n"
    return text + draw(st.sampled_from([indent, indent, ""]))


@st.composite
def calls(draw: st.DrawFn) -> Source:
    source = Source()
    indent = draw(st.sampled_from(INDENTS))
    positional = draw(st.lists(st.sampled_from(["", "", "*"]), max_size=3))
    keywords = draw(st.lists(st.sampled_from(["k", "k", "*", "**"]), max_size=3))
    if "**" in keywords:
        first = keywords.index("**")
        keywords = [kind for i, kind in enumerate(keywords) if kind != "*" or i < first]
    source.kinds = kinds = [*positional, *keywords]
    source.text = "f("
    source.text += _whitespace(draw, source, HEAD, 0 if kinds else HEAD, indent)
    leading_commas = draw(st.booleans())
    for position, kind in enumerate(kinds):
        name = f"v{position}"
        source.names.append(name)
        template = draw(st.sampled_from(VALUES))
        if ":=" in template and kind:
            template = "({v} := 1)"
        comment = source.comment(position).lstrip("# ") if "{c}" in template else ""
        value = template.format(v=name, c=comment)
        prefix = f"k{position}=" if kind == "k" else kind
        source.text += prefix + value
        last = position == len(kinds) - 1
        following = TAIL if last else position + 1
        if leading_commas:
            source.text += _whitespace(draw, source, position, following, indent)
        if not last or draw(st.booleans()):
            source.text += ","
            if last or source.text.endswith(","):
                source.text += _whitespace(draw, source, position, following, indent)
        elif not leading_commas:
            source.text += _whitespace(draw, source, position, following, indent)
    source.text += ")"
    return source


@st.composite
def edits_of(draw: st.DrawFn, source: Source) -> ArgumentEdits:
    positions = list(range(len(source.kinds)))
    rename: dict[int, str | None] = {
        position: draw(st.sampled_from([f"n{position}", None]))
        for position in positions
        if draw(st.integers(0, 3)) == 0
    }
    order = draw(st.one_of(st.none(), st.permutations(positions)))
    names = draw(st.lists(st.sampled_from(["x", "y", None]), max_size=3, unique=True))
    values = ["1", "a, b", "(c for c in d)", "lambda: 0"]
    return ArgumentEdits(
        drop=frozenset(position for position in positions if draw(st.booleans())),
        rename=rename,
        add=[(name, cst.parse_expression(draw(st.sampled_from(values)))) for name in names],
        order=order,
    )


def parse(source: str) -> tuple[cst.Module, cst.Call]:
    module = cst.parse_module(source + "\n")
    statement = cst.ensure_type(module.body[0], cst.SimpleStatementLine)
    expression = cst.ensure_type(statement.body[0], cst.Expr)
    return module, cst.ensure_type(expression.value, cst.Call)


def code_of(module: cst.Module, old: cst.Call, new: cst.Call) -> str:
    changed = module.deep_replace(old, new)
    assert isinstance(changed, cst.Module)
    return changed.code


def comments_of(code: str) -> list[str]:
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    return [token.string for token in tokens if token.type == tokenize.COMMENT]


def owner_on_page(code: str, comment: str) -> str | None:
    """The argument a reader takes a comment to belong to, by the variable at its place."""
    lines = code.split("\n")
    index = next(i for i, line in enumerate(lines) if line.rstrip().endswith(comment))
    before = lines[index][: -len(comment)]
    if before.strip(" \t,"):
        names = _variables(before)
        return names[-1] if names else None
    for line in lines[index + 1 :]:
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            names = _variables(stripped)
            return names[0] if names else None
    return None


def _variables(text: str) -> list[str]:
    words = "".join(c if c.isalnum() else " " for c in text).split()
    return [word for word in words if word[0] == "v" and word[1:].isdigit()]


@given(st.data())
def test_no_comment_is_lost_or_changes_hands(data: st.DataObject) -> None:
    source = data.draw(calls())
    edits = data.draw(edits_of(source))
    module, call = parse(source.text)
    result = edit_call(call, edits)
    code = code_of(module, call, result.call)

    ast.parse(code)
    assert Counter(comments_of(code)) + Counter(result.orphans) == Counter([*source.owners])
    kept = set(range(len(source.kinds))) - edits.drop
    emptied = source.kinds and not kept and not edits.add
    expected = [
        comment
        for comment, owner in source.owners.items()
        if owner in edits.drop or (emptied and owner in (HEAD, TAIL))
    ]
    assert sorted(result.orphans) == sorted(expected)
    assert [*result.orphans] == [c for c in comments_of(source.text) if c in result.orphans]


@given(st.data())
def test_kept_arguments_keep_their_text(data: st.DataObject) -> None:
    source = data.draw(calls())
    edits = data.draw(edits_of(source))
    module, call = parse(source.text)
    result = edit_call(call, edits)

    def values(args: object) -> Counter[str]:
        assert isinstance(args, list | tuple)
        return Counter(module.code_for_node(arg.value).strip("()") for arg in args)

    kept = [arg for i, arg in enumerate(call.args) if i not in edits.drop]
    added = [cst.Arg(value) for _, value in edits.add]
    assert values(result.call.args) == values(kept) + values(added)


@given(st.data())
def test_comments_stand_where_a_reader_looks_for_their_argument(data: st.DataObject) -> None:
    source = data.draw(calls())
    edits = data.draw(edits_of(source))
    module, call = parse(source.text)
    code = code_of(module, call, edit_call(call, edits).call)
    in_values = {c for arg in call.args for c in comments_in(arg.value)}
    for comment, owner in source.owners.items():
        if comment in in_values or owner in edits.drop or owner in (HEAD, TAIL):
            continue
        if owner_on_page(source.text, comment) == source.names[owner]:
            assert owner_on_page(code, comment) == source.names[owner]


@given(calls())
def test_empty_edits_leave_every_byte(source: Source) -> None:
    module, call = parse(source.text)
    result = edit_call(call, ArgumentEdits())
    assert code_of(module, call, result.call) == module.code
    assert result.orphans == ()


@given(st.data())
def test_a_second_edit_that_changes_nothing_changes_nothing(data: st.DataObject) -> None:
    source = data.draw(calls())
    edits = data.draw(edits_of(source))
    module, call = parse(source.text)
    once = edit_call(call, edits).call
    twice = edit_call(once, ArgumentEdits()).call
    assert module.code_for_node(once) == module.code_for_node(twice)
