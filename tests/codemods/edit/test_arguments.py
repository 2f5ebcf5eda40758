"""The argument editor, by example: layout inherited, comments at their argument."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from textwrap import dedent

import libcst as cst
import pytest

from fsdp_migrate.codemods.edit.arguments import ArgumentEdits, EditedCall, edit_call


def edit_first_call(
    source: str, edits: ArgumentEdits, func: str | None = None
) -> tuple[str, EditedCall]:
    """Edits the outermost first call of `source`; returns the whole module's code and the result."""
    module = cst.parse_module(source)
    calls: list[cst.Call] = []

    class Finder(cst.CSTVisitor):
        def visit_Call(self, node: cst.Call) -> bool:
            calls.append(node)
            return False

    module.visit(Finder())
    result = edit_call(calls[0], edits, cst.parse_expression(func) if func else None)
    changed = module.deep_replace(calls[0], result.call)
    assert isinstance(changed, cst.Module)
    return changed.code, result


def value(source: str) -> cst.BaseExpression:
    return cst.parse_expression(source)


@dataclass(frozen=True)
class Case:
    before: str
    edits: ArgumentEdits
    after: str
    orphans: tuple[str, ...] = ()
    func: str | None = None


def drop(*positions: int) -> ArgumentEdits:
    return ArgumentEdits(drop=frozenset(positions))


def add(**values: str) -> ArgumentEdits:
    return ArgumentEdits(add=[(name, value(source)) for name, source in values.items()])


ONE_PER_LINE = """\
model = FSDP(
    model,
    # blocks of the decoder
    auto_wrap_policy=policy,  # from utils
    mixed_precision=bf16,  # half the traffic
    device_id=0,
)
"""

CASES = {
    # --- dropping ---
    "the first argument of one line goes": Case("f(a, b, c)\n", drop(0), "f(b, c)\n"),
    "the last argument of one line goes": Case("f(a, b, c)\n", drop(2), "f(a, b)\n"),
    "a trailing comma stays": Case("f(a, b,)\n", drop(1), "f(a,)\n"),
    "blanks inside the parentheses stay": Case("f( a, b )\n", drop(1), "f( a )\n"),
    "no blank behind commas is inherited": Case("f(a,b,c)\n", drop(1), "f(a,c)\n"),
    "all arguments go": Case("f(a, b)\n", drop(0, 1), "f()\n"),
    "all arguments go, comments are orphans": Case(
        "f(  # head\n    # own\n    a,  # end\n    # tail\n)\n",
        drop(0),
        "f()\n",
        ("# head", "# own", "# end", "# tail"),
    ),
    "comments of a dropped argument are orphans, the others stay": Case(
        ONE_PER_LINE,
        drop(1),
        """\
model = FSDP(
    model,
    mixed_precision=bf16,  # half the traffic
    device_id=0,
)
""",
        ("# blocks of the decoder", "# from utils"),
    ),
    "the last of several lines goes, the parenthesis stays dedented": Case(
        ONE_PER_LINE,
        drop(3),
        """\
model = FSDP(
    model,
    # blocks of the decoder
    auto_wrap_policy=policy,  # from utils
    mixed_precision=bf16,  # half the traffic
)
""",
    ),
    "without a trailing comma the new last one has none": Case(
        "f(\n    a,  # one\n    b  # two\n)\n", drop(1), "f(\n    a  # one\n)\n", ("# two",)
    ),
    "all but the first go": Case(
        ONE_PER_LINE,
        drop(1, 2, 3),
        "model = FSDP(\n    model,\n)\n",
        ("# blocks of the decoder", "# from utils", "# half the traffic"),
    ),
    "comments inside a dropped value are orphans": Case(
        "f(a, b=[\n    1,  # one\n    2,\n], c=3)\n", drop(1), "f(a, c=3)\n", ("# one",)
    ),
    "a hanging indent stays when the first goes": Case(
        "f(a,\n  b,  # two\n  c)\n", drop(0), "f(b,  # two\n  c)\n"
    ),
    "a comment line in front of the new first argument keeps its line": Case(
        "f(a,\n  # two\n  b)\n", drop(0), "f(\n  # two\n  b)\n"
    ),
    "a comment at the end of the new last line pushes the parenthesis down": Case(
        "f(\n    a,  # one\n    b)\n", drop(1), "f(\n    a  # one\n)\n"
    ),
    "groups on one line keep their lines": Case("f(a, b,\n  c, d)\n", drop(2), "f(a, b,\n  d)\n"),
    "a comment in front of the parenthesis stays there": Case(
        "f(\n    a,\n    b,\n    # no more\n)\n", drop(1), "f(\n    a,\n    # no more\n)\n"
    ),
    "commas in front": Case("f(a\n  , b  # two\n  , c)\n", drop(0), "f(b  # two\n  , c)\n"),
    "positions that do not exist are ignored": Case("f(a)\n", drop(7), "f(a)\n"),
    # --- adding ---
    "added to one line": Case("f(a)\n", add(x="1"), "f(a, x=1)\n"),
    "added to nothing": Case("f()\n", add(x="1", y="2"), "f(x=1, y=2)\n"),
    "added to one line with a trailing comma": Case("f(a,)\n", add(x="1"), "f(a, x=1,)\n"),
    "added to one per line": Case(
        "f(\n    a,\n    b,  # two\n)\n", add(x="1"), "f(\n    a,\n    b,  # two\n    x=1,\n)\n"
    ),
    "added to one per line without a trailing comma": Case(
        "f(\n    a,\n    b  # two\n)\n", add(x="1"), "f(\n    a,\n    b,  # two\n    x=1\n)\n"
    ),
    "added below a single argument on its line": Case(
        "f(\n    a,\n)\n", add(x="1"), "f(\n    a,\n    x=1,\n)\n"
    ),
    "added to a hugging line": Case("f(\n    a, b\n)\n", add(x="1"), "f(\n    a, b, x=1\n)\n"),
    "added to a hanging indent": Case("f(a,\n  b)\n", add(x="1"), "f(a,\n  b,\n  x=1)\n"),
    "added in front of **kwargs": Case("f(a, **kw)\n", add(x="1"), "f(a, x=1, **kw)\n"),
    "added behind *args": Case("f(*args)\n", add(x="1"), "f(*args, x=1)\n"),
    "added in front of **kwargs that has a comment": Case(
        "f(\n    a,  # one\n    # the rest\n    **kw,  # all\n)\n",
        add(x="1"),
        "f(\n    a,  # one\n    x=1,\n    # the rest\n    **kw,  # all\n)\n",
    ),
    "added below a comment in empty parentheses": Case(
        "f(\n    # nothing yet\n)\n", add(x="1"), "f(\n    # nothing yet\n    x=1\n)\n"
    ),
    "added to empty parentheses on two lines": Case("f(\n)\n", add(x="1"), "f(\n    x=1\n)\n"),
    "added behind a comment on the only line": Case(
        "f(a  # one\n)\n", add(x="1"), "f(a,  # one\n    x=1\n)\n"
    ),
    "an added positional argument goes in front of the keywords": Case(
        "f(a, k=1)\n", ArgumentEdits(add=[(None, value("b"))]), "f(a, b, k=1)\n"
    ),
    "an added tuple gets parentheses": Case("f(a)\n", add(x="1, 2"), "f(a, x=(1, 2))\n"),
    "dropped and added at the end": Case(
        "f(\n    a,\n    b,  # two\n)\n",
        ArgumentEdits(drop=frozenset({1}), add=[("x", value("1"))]),
        "f(\n    a,\n    x=1,\n)\n",
        ("# two",),
    ),
    "all replaced by a new one": Case(
        "f(\n    a,  # one\n)\n",
        ArgumentEdits(drop=frozenset({0}), add=[("x", value("1"))]),
        "f(\n    x=1,\n)\n",
        ("# one",),
    ),
    # --- renaming ---
    "a keyword gets another name, spaces stay": Case(
        "f(a, k = 1)\n", ArgumentEdits(rename={1: "n"}), "f(a, n = 1)\n"
    ),
    "a positional argument becomes a keyword argument": Case(
        "f(\n    a,\n    b,  # two\n)\n",
        ArgumentEdits(rename={1: "n"}),
        "f(\n    a,\n    n=b,  # two\n)\n",
    ),
    "a keyword argument becomes positional": Case(
        "f(a, k=1)\n", ArgumentEdits(rename={1: None}), "f(a, 1)\n"
    ),
    "a keyword argument that becomes positional goes in front of the keywords": Case(
        "f(a, k=1, n=2)\n", ArgumentEdits(rename={2: None}), "f(a, 2, k=1)\n"
    ),
    "a first argument that becomes a keyword goes behind the positional ones": Case(
        "f(a, b)\n", ArgumentEdits(rename={0: "k"}), "f(b, k=a)\n"
    ),
    "starred arguments are not renamed": Case(
        "f(*a, **k)\n", ArgumentEdits(rename={0: "x", 1: "y"}), "f(*a, **k)\n"
    ),
    "a walrus gets parentheses as a keyword's value": Case(
        "f(x := 1)\n", ArgumentEdits(rename={0: "k"}), "f(k=(x := 1))\n"
    ),
    "a generator gets parentheses as a keyword's value": Case(
        "f(x for x in y)\n", ArgumentEdits(rename={0: "k"}), "f(k=(x for x in y))\n"
    ),
    "a generator gets parentheses beside another argument": Case(
        "f(x for x in y)\n", add(k="1"), "f((x for x in y), k=1)\n"
    ),
    "a lambda and a conditional expression need none": Case(
        "f(lambda: 0, a if b else c)\n",
        ArgumentEdits(rename={0: "x", 1: "y"}),
        "f(x=lambda: 0, y=a if b else c)\n",
    ),
    # --- replacing ---
    "another value keeps the comments around it": Case(
        "f(\n    # own\n    k=a,  # end\n)\n",
        ArgumentEdits(replace={0: value("b")}),
        "f(\n    # own\n    k=b,  # end\n)\n",
    ),
    "comments inside a replaced value are orphans": Case(
        "f(k=[\n    1,  # one\n])\n",
        ArgumentEdits(replace={0: value("[]")}),
        "f(k=[])\n",
        ("# one",),
    ),
    "another value and another name": Case(
        "f(a, k=1)\n",
        ArgumentEdits(rename={1: "n"}, replace={1: value("2")}),
        "f(a, n=2)\n",
    ),
    # --- ordering ---
    "another order on one line": Case(
        "f(a=1, b=2, c=3)\n", ArgumentEdits(order=[2, 0, 1]), "f(c=3, a=1, b=2)\n"
    ),
    "comments move with their argument": Case(
        "f(\n    # first\n    a=1,  # one\n    # second\n    b=2,  # two\n)\n",
        ArgumentEdits(order=[1, 0]),
        "f(\n    # second\n    b=2,  # two\n    # first\n    a=1,  # one\n)\n",
    ),
    "positions that the order leaves out follow": Case(
        "f(a=1, b=2, c=3)\n", ArgumentEdits(order=[2]), "f(c=3, a=1, b=2)\n"
    ),
    # --- the function ---
    "another function": Case("FSDP(m)\n", ArgumentEdits(), "fully_shard(m)\n", (), "fully_shard"),
    "another function in the old one's parentheses": Case(
        "def g(m):\n    return(FSDP)(m)\n",
        ArgumentEdits(),
        "def g(m):\n    return(fully_shard)(m)\n",
        (),
        "fully_shard",
    ),
    "comments inside the old function are orphans": Case(
        "(torch  # the library\n .FSDP)(m, k=1)\n",
        drop(1),
        "(fully_shard)(m)\n",
        ("# the library",),
        "fully_shard",
    ),
    "arguments aligned with the parenthesis follow it": Case(
        "model = FSDP(model,\n             # own\n             k=g(1,\n                 2),\n             )\n",
        ArgumentEdits(),
        "model = fully_shard(model,\n                    # own\n"
        "                    k=g(1,\n                        2),\n                    )\n",
        (),
        "fully_shard",
    ),
    "arguments with an indentation of their own keep it": Case(
        "model = FSDP(model,\n    k=1)\n",
        ArgumentEdits(),
        "model = fully_shard(model,\n    k=1)\n",
        (),
        "fully_shard",
    ),
    # --- forms of arguments ---
    "*args and **kwargs stay": Case("f(m, *args, k=1, **kw)\n", drop(2), "f(m, *args, **kw)\n"),
    "parenthesised arguments stay": Case("f((a), (b), (c))\n", drop(1), "f((a), (c))\n"),
    "implicit string concatenation stays": Case(
        'f(\n    "a"\n    "b",  # ab\n    k=1,\n)\n', drop(1), 'f(\n    "a"\n    "b",  # ab\n)\n'
    ),
    "a nested call stays": Case("f(g(h(1), 2), k=1)\n", drop(1), "f(g(h(1), 2))\n"),
    "the outer of two wrappers changes": Case(
        "FSDP(FSDP(m, k=1), k=2)\n", drop(1), "fully_shard(FSDP(m, k=1))\n", (), "fully_shard"
    ),
    "a called result stays a call": Case("f(m, k=1)(x)\n", drop(0), "f(m, k=1)()\n"),
    "await, f-string and match stay": Case(
        'async def g():\n    match await f(m, s=f"{x!r:>{w}}", k=1):\n        case _: pass\n',
        drop(2),
        'async def g():\n    match await f(m, s=f"{x!r:>{w}}"):\n        case _: pass\n',
    ),
    "a decorator and a default value": Case(
        "@f(a, k=1)\ndef g(x=f(a, k=1)): pass\n",
        drop(1),
        "@f(a)\ndef g(x=f(a, k=1)): pass\n",
    ),
    "backslash continuation": Case(
        "x = f(a, \\\n      b, c)\n", drop(2), "x = f(a, \\\n      b)\n"
    ),
    "tabs": Case(
        "if x:\n\tf(\n\t\ta,  # one\n\t\tb,\n\t)\n",
        add(x="1"),
        "if x:\n\tf(\n\t\ta,  # one\n\t\tb,\n\t\tx=1,\n\t)\n",
    ),
    "a comment in tabs pushes the parenthesis down": Case(
        "if x:\n\tf(\n\t\ta,  # one\n\t\tb)\n",
        drop(1),
        "if x:\n\tf(\n\t\ta  # one\n\t)\n",
    ),
    "CRLF": Case(
        "f(\r\n    a,  # one\r\n    b,\r\n)\r\n",
        add(x="1"),
        "f(\r\n    a,  # one\r\n    b,\r\n    x=1,\r\n)\r\n",
    ),
    "CRLF in a file of LF": Case(
        "y = 1\nz = 2\nf(\r\n    a,\r\n    b,\r\n)\r\n",
        add(x="1"),
        "y = 1\nz = 2\nf(\r\n    a,\r\n    b,\r\n    x=1,\r\n)\r\n",
    ),
    "a block indented by two": Case(
        "if x:\n  f(\n    a,\n    b,  # two\n  )\n", drop(0), "if x:\n  f(\n    b,  # two\n  )\n"
    ),
    "comments in column 0": Case(
        "if x:\n    f(\n        a,\n# two\n        b,\n    )\n",
        drop(0),
        "if x:\n    f(\n# two\n        b,\n    )\n",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_edit(case: Case) -> None:
    code, result = edit_first_call(case.before, case.edits, case.func)
    assert code == case.after
    assert result.orphans == case.orphans
    ast.parse(code)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_no_edits_leave_every_byte(case: Case) -> None:
    code, result = edit_first_call(case.before, ArgumentEdits())
    assert code == case.before
    assert result.orphans == ()


def test_edits_of_nested_calls_compose() -> None:
    source = dedent("""\
        FSDP(
            FSDP(  # inner
                m,
                k=1,  # goes
            ),
            k=2,  # goes too
        )
        """)

    class Edit(cst.CSTTransformer):
        def __init__(self) -> None:
            super().__init__()
            self.orphans: list[str] = []

        def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
            result = edit_call(updated_node, drop(1), cst.Name("fully_shard"))
            self.orphans += result.orphans
            return result.call

    edit = Edit()
    code = cst.parse_module(source).visit(edit).code
    assert code == "fully_shard(\n    fully_shard(  # inner\n        m,\n    ),\n)\n"
    assert edit.orphans == ["# goes", "# goes too"]


def test_a_call_without_whitespace_of_its_own_is_edited() -> None:
    call = cst.Call(cst.Name("f"), [cst.Arg(cst.Name(name)) for name in "abc"])
    assert cst.Module([]).code_for_node(edit_call(call, drop(0)).call) == "f(b, c)"
