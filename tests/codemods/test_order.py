"""Findings do not depend on the order of functions and classes in a file."""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from fsdp_migrate.engine import analyse_source
from fsdp_migrate.facts.answers import Answers
from fsdp_migrate.settings import Options
from fsdp_migrate.source import Source

TESTS = Path(__file__).parents[1]
FOLDERS = (TESTS.parent / "fixtures", TESTS / "cases/programs", TESTS / "recall/shapes")
# Functions that lead back to each other.
CYCLES = (
    """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def first(model, depth):
    if depth:
        return second(model, depth - 1)
    return model


def second(model, depth):
    print(sum(p.numel() for p in model.parameters()))
    return first(model, depth)


def build(net):
    return FSDP(net)


def third(model):
    model = first(model, 2)
    model.apply(print)
    return second(model, 1)


def main(net):
    model = build(net)
    third(model)
    save(second(net, 3))


def save(model):
    model.state_dict()
    for p in model.parameters():
        if p.ndim > 1:
            print(p.norm())
""",
    """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Trainer:
    def __init__(self, net):
        self.model = net

    def wrapped(self):
        return self.again()

    def again(self):
        return self.wrapped() or self.model


class Other(Trainer):
    def setup(self, cfg):
        self.model = FSDP(self.model)
        self.groups = groups(self.model)


def groups(model):
    return split(list(model.parameters()))


def split(params):
    big = [p for p in params if p.ndim > 1]
    return merge(big, params)


def merge(big, params):
    if not big:
        return split(params)
    return [p.norm() for p in big]


def run(net):
    trainer = Other(net)
    trainer.setup(None)
    trainer.wrapped().apply(print)
    trainer.again().apply(print)
""",
)


@cache
def programs() -> list[str]:
    """Files of the repository's programs that have several definitions."""
    texts = (p.read_text("utf-8") for folder in FOLDERS for p in sorted(folder.rglob("*.py")))
    return [*CYCLES, *(text for text in texts if "FSDP" in text and len(definitions(text)) > 2)]


def definitions(text: str) -> list[tuple[int, int]]:
    """The first and last lines, from 0, of the functions and classes of a file, decorators included."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    found = [node for node in ast.parse(text).body if isinstance(node, kinds)]
    starts = [min([n.lineno, *(d.lineno for d in n.decorator_list)]) - 1 for n in found]
    return [(start, node.end_lineno or 0) for start, node in zip(starts, found, strict=True)]


def reordered(text: str, order: list[int]) -> str:
    """The file with its definitions in another order, each where another one was."""
    lines, places = text.splitlines(keepends=True), definitions(text)
    result, end = list[str](), 0
    for place, other in zip(places, order, strict=True):
        result += [*lines[end : place[0]], *lines[slice(*places[other])]]
        end = place[1]
    return "".join([*result, *lines[end:]])


def findings(text: str, form: str) -> Counter[tuple[str, ...]]:
    """What is said of each line, going by its text."""
    source = Source(Path("/nowhere/train.py"), "train.py", text.encode())
    report = analyse_source(source, Options(form=form, only_checks=True))
    assert not report.errors
    lines = text.splitlines()
    return Counter(
        (lines[f.line - 1], f.code, str(f.action), f.construct, re.sub(r"\d+", "N", f.message))
        for f in report.findings
    )


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_definitions_in_another_order(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(programs()))
    order = data.draw(st.permutations(range(len(definitions(text)))))
    form = data.draw(st.sampled_from(["auto", "torch"]))
    assert findings(reordered(text, order), form) == findings(text, form)


def test_an_answer_that_used_a_provisional_one_is_not_kept() -> None:
    """a: b or True; b: a. Asked first, a is True; b, which is a, must be True as well, whichever is asked first."""
    for first, second in (("a", "b"), ("b", "a")):
        answers = Answers[bool](False)
        ways = {
            "a": lambda: answers.of("b", ways["b"]) or True,  # noqa: B023
            "b": lambda: answers.of("a", ways["a"]),  # noqa: B023
        }
        assert answers.of(first, ways[first])
        assert answers.of(second, ways[second])


def test_an_answer_is_looked_for_once() -> None:
    asked: Counter[int] = Counter()
    answers = Answers[bool](False)

    def find(number: int) -> bool:
        asked[number] += 1
        for each in range(max(number - 2, 0), number):
            answers.of(each, lambda each=each: find(each))  # type: ignore[misc]
        return False

    assert not answers.of(30, lambda: find(30))
    assert set(asked.values()) == {1}
