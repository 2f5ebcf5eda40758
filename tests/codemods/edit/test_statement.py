"""Changes of one statement on LibCST's nodes: what changes, and that every other byte stays."""

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdp_migrate.codemods.edit.statement import Statement
from fsdp_migrate.codemods.edit.text import Refused, apply
from fsdp_migrate.facts.file import File


def file_of(code: str) -> File:
    return File(Path("train.py"), "train.py", code)


def call(file: File, name: str = "f") -> ast.Call:
    return file.calls[name][0]


def argument(file: File, name: str) -> ast.keyword:
    return next(each for each in file.of(ast.keyword) if each.arg == name)


def after(code: str, change: Callable[[Statement, File], object], kind: type[ast.stmt]) -> str:
    """The code after a change of its first statement of a kind."""
    file = file_of(code)
    statement = Statement(file, file.of(kind)[0])
    change(statement, file)
    return apply(code, statement.edits())


DROPPED = {
    "on one line": ("x = f(a, b=1, c=2)", ["b"], "x = f(a, c=2)"),
    "first": ("x = f(b=1, c=2)", ["b"], "x = f(c=2)"),
    "last": ("x = f(a, c=2)", ["c"], "x = f(a)"),
    "last with a comma": ("x = f(a, c=2, )", ["c"], "x = f(a, )"),
    "only one": ("x = f(b=1)", ["b"], "x = f()"),
    "only one, on lines": ("x = f(\n    b=1,\n)", ["b"], "x = f()"),
    "neighbours": ("x = f(a, b=1, c=2, d=3)", ["b", "c"], "x = f(a, d=3)"),
    "each on a line": (
        "x = f(\n    a,\n    b=1,\n    c=2,\n)",
        ["b"],
        "x = f(\n    a,\n    c=2,\n)",
    ),
    "last of lines": ("x = f(\n    a,\n    c=2\n)", ["c"], "x = f(\n    a\n)"),
    "last of lines with a comma": ("x = f(\n    a,\n    c=2,\n)", ["c"], "x = f(\n    a,\n)"),
    "a comment below it": (
        "x = f(\n    a,  # the model\n    b=1,  # of b\n    # of c\n    c=2,\n)",
        ["b"],
        "x = f(\n    a,  # the model\n    # of c\n    c=2,\n)",
    ),
    "shares its line": (
        "x = f(\n    a, b=1,  # both\n    c=2,\n)",
        ["b"],
        "x = f(\n    a,  # both\n    c=2,\n)",
    ),
    "tail of a line": ("x = f(a,\n      b=1,\n      c=2)", ["c"], "x = f(a,\n      b=1)"),
    "all but the model": ("x = f(a,\n      b=1,\n      c=2)", ["b", "c"], "x = f(a)"),
}


@pytest.mark.parametrize("case", DROPPED)
def test_an_argument_is_dropped_with_its_comma_and_its_layout(case: str) -> None:
    code, names, expected = DROPPED[case]
    indented = f"def g():\n    {code.replace(chr(10), chr(10) + '    ')}\n"
    for before, wanted in (
        (f"{code}\n", f"{expected}\n"),
        (indented, f"def g():\n    {expected.replace(chr(10), chr(10) + '    ')}\n"),
    ):

        def drop(statement: Statement, file: File) -> None:
            for name in names:
                statement.lose(statement.drop(argument(file, name)))

        assert after(before, drop, ast.Assign) == wanted


def test_the_comments_of_a_dropped_argument_are_told() -> None:
    file = file_of("x = f(\n    a,  # the model\n    # above b\n    b=1,  # of b\n    c=2,\n)\n")
    statement = Statement(file, call(file))
    assert statement.drop(argument(file, "b")) == ["# above b", "# of b"]
    with pytest.raises(Refused, match="above b"):
        apply(file.text, statement.edits())
    statement.above("# above b")
    statement.lose(["# of b"])
    expected = "# above b\nx = f(\n    a,  # the model\n    c=2,\n)\n"
    assert apply(file.text, statement.edits()) == expected


def test_a_positional_argument_an_entry_and_a_manager_are_dropped() -> None:
    file = file_of("x = f(a, (b), c)\n")
    statement = Statement(file, call(file))
    statement.drop(call(file).args[1])
    assert apply(file.text, statement.edits()) == "x = f(a, c)\n"

    file = file_of('x = {"a": 1,  # one\n     "b": 2, **more}\n')
    statement = Statement(file, file.of(ast.Dict)[0])
    statement.lose(statement.drop(file.of(ast.Constant)[0]))
    assert apply(file.text, statement.edits()) == 'x = {"b": 2, **more}\n'

    for code, expected in (
        ("with a(), b() as c:\n    pass\n", "with a():\n    pass\n"),
        ("with (a(), b() as c):\n    pass\n", "with (a()):\n    pass\n"),
    ):
        file = file_of(code)
        statement = Statement(file, file.of(ast.With)[0])
        statement.drop(call(file, "b"))
        assert apply(file.text, statement.edits()) == expected


def test_an_expression_is_replaced_and_parts_of_it_stay_as_they_are() -> None:
    code = "y = (model.clip(  # c\n    1.0,\n    norm_type=p or 2,\n))\n"
    file = file_of(code)
    statement = Statement(file, call(file, "clip"))
    clip = call(file, "clip")
    statement.replace(clip.func, "nn.clip_")
    assert apply(code, statement.edits()) == code.replace("model.clip", "nn.clip_")

    file = file_of("y = f(a if c else b)\n")
    statement = Statement(file, call(file))
    given = call(file).args[0]
    statement.replace(call(file), "g(part, part.x, part=part)", part=given)
    expected = "y = g(a if c else b, (a if c else b).x, part=a if c else b)\n"
    assert apply(file.text, statement.edits()) == expected


def test_changes_inside_of_a_part_are_kept() -> None:
    file = file_of("y = f(g(model.module), 1)\n")
    statement = Statement(file, call(file))
    statement.replace(file.attributes["module"][0], "model")
    statement.replace(call(file), "h(part)", part=call(file, "g"))
    statement.replace(call(file), "whole + 1", whole=call(file))
    assert apply(file.text, statement.edits()) == "y = h(g(model)) + 1\n"


BLOCK = '''\
def save(model):
    # the state
    with context(model):  # whole
        # of the model
        state = model.state_dict()

        text = """
    as it is
        """
        if rank == 0:
            torch.save(state,
                       path)
        # done
    return state
'''
OUT = '''\
def save(model):
    # the state
    # whole
    # of the model
    state = model.state_dict()

    text = """
    as it is
        """
    if rank == 0:
        torch.save(state,
                   path)
    # done
    return state
'''


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("step", ["    ", "\t"])
def test_a_block_is_taken_one_step_out(step: str, end: str) -> None:
    code, expected = (text.replace("    ", step).replace("\n", end) for text in (BLOCK, OUT))
    if step == "\t":
        pytest.importorskip("libcst")
    assert after(code, lambda statement, file: statement.step_out(), ast.With) == expected


def test_a_block_at_the_top_is_taken_out() -> None:
    code = "with a():\n    x = 1\n    # last\n\ny = 2\n"
    expected = "x = 1\n# last\n\ny = 2\n"
    assert after(code, lambda statement, file: statement.step_out(), ast.With) == expected


def test_blocks_inside_of_one_another_are_taken_out_together() -> None:
    code = "def f():\n  with a():\n    with b():\n      x = 1\n      y = 2\n    z = 3\n"
    file = file_of(code)
    edits = []
    for block in file.of(ast.With):
        statement = Statement(file, block)
        statement.step_out()
        edits += statement.edits()
    assert apply(code, edits) == "def f():\n  x = 1\n  y = 2\n  z = 3\n"


def test_blocks_inside_of_one_another_are_taken_out_together_with_changes_in_them() -> None:
    code = "def f():\n  with a():\n    with b():\n      x = m.s()\n      y = n.s()\n"
    file = file_of(code)
    edits = []
    for block, name in zip(file.of(ast.With), ("m", "n"), strict=True):
        statement = Statement(file, block)
        statement.step_out()
        used = file.parents[file.loads[name][0]]
        statement.replace(file.parents[used], "s(part)", part=file.loads[name][0])
        edits += statement.edits()
    assert apply(code, edits) == "def f():\n  x = s(m)\n  y = s(n)\n"


def test_edits_of_several_rules_in_one_statement_are_made_together() -> None:
    file = file_of("with a():\n    state = model.module.state_dict(x=1)  # all\n")
    block = Statement(file, file.of(ast.With)[0])
    block.step_out()
    inner = Statement(file, file.of(ast.Assign)[0])
    inner.replace(file.attributes["module"][0], "model")
    other = Statement(file, file.of(ast.Assign)[0])
    other.drop(argument(file, "x"))
    edits = [*block.edits(), *inner.edits(), *other.edits()]
    assert apply(file.text, edits) == "state = model.state_dict()  # all\n"


def test_lines_stand_above_and_statements_take_a_statements_place() -> None:
    code = "def f():\n\tif x:\n\t\tm = f(m, b=g)  # sharded\n"
    file = file_of(code)
    statement = Statement(file, call(file))
    statement.above("# first\nif y:\n    pass")
    statement.instead("for u in m:\n    h(u, part)\nm = m", part=call(file).keywords[0].value)
    expected = (
        "def f():\n\tif x:\n\t\t# first\n\t\tif y:\n\t\t\tpass\n"
        "\t\tfor u in m:\n\t\t\th(u, g)\n\t\tm = m  # sharded\n"
    )
    assert apply(code, statement.edits()) == expected


def test_names_beyond_ascii_and_an_elif_are_found() -> None:
    code = "if a:\n    pass\nelif f('ä', b=1):\n    pass\n"
    change = lambda statement, file: statement.drop(argument(file, "b"))  # noqa: E731
    assert after(code, change, ast.If) == "if a:\n    pass\nelif f('ä'):\n    pass\n"
    file = file_of(code)
    statement = Statement(file, call(file))
    statement.drop(argument(file, "b"))
    assert apply(code, statement.edits()) == "if a:\n    pass\nelif f('ä'):\n    pass\n"


def test_what_has_no_room_or_no_node_is_refused() -> None:
    file = file_of("if a: x = f(b=1); y = 2\nwith c: pass\n")
    statement = Statement(file, call(file))
    statement.drop(argument(file, "b"))
    assert apply(file.text, statement.edits()) == "if a: x = f(); y = 2\nwith c: pass\n"
    for change in (lambda: statement.above("z"), lambda: statement.instead("z")):
        with pytest.raises(Refused, match="shares its line"):
            change()
    with pytest.raises(Refused, match="no node"):
        statement[file.of(ast.Assign)[1]]
    with pytest.raises(Refused, match="on its line"):
        Statement(file, file.of(ast.With)[0]).step_out()
