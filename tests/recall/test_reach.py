"""Tests of how benchmarks/reach.py and benchmarks/written.py count, on code and changes that are made up here."""

import importlib.util
import sys
import textwrap
from pathlib import Path

import pytest

from fsdp_migrate.findings import Action, Finding
from fsdp_migrate.report import Change, Report

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"
FSDP1 = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision"
FSDP2 = "from torch.distributed.fsdp import fully_shard"
STATE_DICTS = "from torch.distributed.checkpoint.state_dict import get_model_state_dict"
CALL = "model = FSDP(\n    model,\n    mixed_precision=mp,\n)\nmodel.train()"
CONTEXT = (
    "with FSDP.state_dict_type(model, FULL):\n    state = model.state_dict()\n    print(state)"
)


@pytest.fixture
def module(monkeypatch):
    """Loads a module of benchmarks/ under its own name."""
    monkeypatch.syspath_prepend(BENCHMARKS)

    def load(name):
        spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
        loaded = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, loaded)
        spec.loader.exec_module(loaded)
        return loaded

    return load


def program(*parts):
    return "\n".join(parts) + "\n"


LIKE = "from fsdp_migrate.runtime import like_fsdp1"
UNITS = "from fsdp_migrate.runtime import units"
BRIDGE = "from fsdp_migrate.runtime import FullyShardedDataParallel as FSDP, MixedPrecision"
LOOP = "for block in model.blocks:\n    fully_shard(block, mp_policy=mp)\nfully_shard(model, mp_policy=mp)"
OVER_UNITS = "for m, kw in units(model, mixed_precision=mp):\n    fully_shard(m, **kw)"
HELPER = "def shard(model):\n    for block in model:\n        fully_shard(block)\n    return fully_shard(model)"


@pytest.mark.parametrize(
    ("after", "form"),
    [
        (program(FSDP2, LOOP, "model.train()"), "torch's words"),
        (
            program(FSDP2, LIKE, "with like_fsdp1(model):", textwrap.indent(LOOP, "    ")),
            "torch's words",
        ),
        (program(FSDP2, HELPER, "model = shard(model)", "model.train()"), "torch's words"),
        (program(FSDP2, UNITS, OVER_UNITS, "model.train()"), "units"),
        (program(FSDP2, BRIDGE, "fully_shard(model, mp_policy=MixedPrecision())"), "units"),
        (program(FSDP2, "fully_shard(model, mixed_precision=mp)", "model.train()"), "units"),
        (program(BRIDGE, CALL), "bridge"),
        (program(FSDP1, CALL), "by hand"),
        (program(FSDP1, "# FSDP1 was here", "model.train()"), "by hand"),
    ],
)
def test_a_constructor_call_is_read_from_what_was_written(module, after, form):
    written = module("written").Written(program(FSDP1, CALL), after)
    (call,) = module("written").constructors(written.before)
    assert written.form_of(call).value == form


def test_two_calls_of_one_file_have_their_own_forms(module):
    second = "other = FSDP(\n    other,\n    mixed_precision=mp,\n)"
    between = "a = 1\nb = 2\nc = 3"
    before = program(FSDP1, CALL, between, second)
    after = program(FSDP2, UNITS, LOOP, "model.train()", between, OVER_UNITS)
    written = module("written").Written(before, after)
    forms = [written.form_of(call).value for call in module("written").constructors(written.before)]
    assert forms == ["torch's words", "units"]


def test_a_block_of_enable_wrap_that_is_gone(module):
    """The calls in the place of `wrap` say what has become of both."""
    wraps = "from torch.distributed.fsdp.wrap import enable_wrap, wrap"
    block = "with enable_wrap(wrapper_cls=FSDP):\n    for a in b:\n        a.c = wrap(a.c)"
    without = "for a in b:\n    a.c = shard(a.c)"
    before = program(FSDP1, wraps, "x = 1", "y = 2", block)
    for after, form in (
        (program(FSDP2, HELPER, "x = 1", "y = 2", without), "torch's words"),
        (program(FSDP2, "x = 1", "y = 2", without), "by hand"),
    ):
        written = module("written").Written(before, after)
        calls = module("written").constructors(written.before)
        assert [written.form_of(call).value for call in calls] == [form, form]


@pytest.mark.parametrize(
    ("source", "texts"),
    [
        ("import functools\nf = functools.partial(FSDP, device_id=0)", ["partial(FSDP)"]),
        ("class Mine(FSDP):\n    pass", ["class Mine"]),
        ("Sharded: type = FSDP\nm = Sharded(m)", ["FullyShardedDataParallel(...)"]),
        (
            "import torch\nm = torch.distributed.fsdp.FullyShardedDataParallel(m)",
            ["FullyShardedDataParallel(...)"],
        ),
        (
            "from torch.distributed.fsdp.wrap import enable_wrap, wrap\n"
            "with enable_wrap(wrapper_cls=FSDP):\n    m = wrap(m)",
            ["enable_wrap(FSDP)", "wrap(...)"],
        ),
        ("from torch_xla.distributed.fsdp import SpmdFullyShardedDataParallel as X\nX(m)", []),
        ("isinstance(m, FSDP)\nFSDP.summon_full_params(m)", []),
    ],
)
def test_constructor_calls_are_found(module, source, texts):
    written = module("written")
    found = list(written.constructors(written.Code(program(FSDP1, source))))
    assert sorted(each.text for each in found) == sorted(texts)


@pytest.mark.parametrize(
    ("after", "functions"),
    [
        (
            program(STATE_DICTS, "state = get_model_state_dict(model, options=o)", "print(state)"),
            True,
        ),
        (program(BRIDGE, CONTEXT), False),
        (
            program(
                STATE_DICTS,
                "with FSDP.state_dict_type(model, FULL):",
                "    get_model_state_dict(model)",
            ),
            False,
        ),
        (program("state = model.state_dict()", "print(state)"), False),
    ],
)
def test_a_context_is_a_function_where_one_stands_there(module, after, functions):
    written = module("written").Written(program(FSDP1, CONTEXT), after)
    (context,) = module("written").contexts(written.before)
    assert written.uses_functions(context) is functions


def test_lines_of_brackets_alone_do_not_say_what_stands_where(module):
    before = program(
        "from torch.distributed.fsdp import (\n    FullyShardedDataParallel as FSDP,\n)\n",
        "with FSDP.state_dict_type(\n    model, FULL\n):\n    state = model.state_dict()",
    )
    after = program(
        "from torch.distributed.checkpoint.state_dict import (\n    get_model_state_dict,\n)\n",
        "state = get_model_state_dict(\n    model, options=o\n)",
    )
    written = module("written").Written(before, after)
    (context,) = module("written").contexts(written.before)
    assert written.uses_functions(context)


SAVE = "torch.save(optimizer.state_dict(), path)"


@pytest.mark.parametrize(
    ("kind", "body", "after", "taken_out"),
    [
        ("FULL_STATE_DICT", SAVE, SAVE, True),
        ("SHARDED_STATE_DICT", "trainer.save()", "trainer.save()", True),
        ("LOCAL_STATE_DICT", "trainer.save()", "trainer.save()", True),
        ("FULL_STATE_DICT", "trainer.save()", "trainer.save()", False),
        ("FULL_STATE_DICT", SAVE, "pass", False),
        ("SHARDED_STATE_DICT", "s = model.state_dict()", "s = model.state_dict()", False),
        ("SHARDED_STATE_DICT", "s = model.module.state_dict()", "s = model.state_dict()", False),
        (
            "SHARDED_STATE_DICT",
            "s = FSDP.optim_state_dict(model, o)",
            "s = FSDP.optim_state_dict(model, o)",
            False,
        ),
    ],
)
def test_a_context_is_needed_by_what_asks_for_its_type(module, kind, body, after, taken_out):
    context = f"with FSDP.state_dict_type(model, StateDictType.{kind}):\n    {body}"
    written = module("written").Written(program(FSDP1, context), program(FSDP2, after))
    (found,) = module("written").contexts(written.before)
    assert written.is_taken_out(found) is taken_out
    stays = module("written").Written(program(FSDP1, context), program(BRIDGE, context))
    assert not stays.is_taken_out(found)


@pytest.mark.parametrize(("after", "taken_out"), [("pass", True), ("def load(self): pass", False)])
def test_a_context_may_be_gone_with_its_method(module, after, taken_out):
    context = (
        "class S(C):\n    def load(self):\n"
        "        with FSDP.state_dict_type(self.m, StateDictType.LOCAL_STATE_DICT):\n"
        "            return super().load()"
    )
    written = module("written").Written(
        program(FSDP1, context), program(FSDP2, f"class S(C):\n    {after}")
    )
    (found,) = module("written").contexts(written.before)
    assert written.is_taken_out(found) is taken_out


def finding(path, line, action, message):
    return Finding(path, line, 1, line, 2, "FSDP002", "constructor", action, message, "FSDP(...)")


@pytest.fixture
def corpus(tmp_path):
    """Two repositories: one with a call that is rewritten and a context, one with a call that stays."""
    one, two = tmp_path / "corpus" / "one", tmp_path / "corpus" / "two"
    one.mkdir(parents=True)
    two.mkdir()
    (one / "train.py").write_text(program(FSDP1, STATE_DICTS, CALL, CONTEXT), "utf-8")
    (one / "requirements.txt").write_text("torch==2.3.0\n", "utf-8")
    (two / "train.py").write_text(program(FSDP1, CALL), "utf-8")
    return tmp_path / "corpus"


@pytest.fixture
def run(module, corpus, monkeypatch, capsys):
    """Prints the page of the corpus, where the tool makes the changes that are named here."""
    reach = module("reach")
    done = program(
        FSDP2,
        STATE_DICTS,
        LOOP,
        "model.train()",
        "state = get_model_state_dict(model)",
        "print(state)",
    )

    def page(*arguments, ours=""):
        def analyse(found, options):
            if found == "one":
                one = corpus / "one" / "train.py"
                pins = corpus / "one" / "requirements.txt"
                changes = [
                    Change(one, one.read_bytes(), (done + ours).encode()),
                    Change(pins, pins.read_bytes(), b"torch>=2.6\n"),
                ]
                return Report(
                    [finding("one/train.py", 3, Action.REWRITE, "is done")], changes=changes
                )
            return Report([finding("two/train.py", 2, Action.MANUAL, f"{corpus}/two | stays")])

        monkeypatch.setattr(reach, "discover", lambda folders, root: root.name)
        monkeypatch.setattr(reach, "analyse", analyse)
        monkeypatch.setattr(sys, "argv", ["reach", str(corpus), *arguments])
        status = reach.main()
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return page


def test_the_page_counts_what_was_written_and_says_what_is_left(run):
    status, out, _ = run("--form", "torch")
    assert status == 0
    rows = {line.split("|")[1].strip(): line for line in out.splitlines() if line.startswith("|")}
    #                       torch units bridge hand fun none left ours + - rewrite runtime manual % changed errors alarms
    assert (
        rows["one"]
        == "| one | 1 | 0 | 0 | 0 | 1 | 0 | 0 | 0 | 7 | 9 | 1 | 0 | 0 | 0.0 | 2 | 0 | 0 |"
    )
    assert (
        rows["two"]
        == "| two | 0 | 0 | 0 | 1 | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 1 | 100.0 | 0 | 0 | 0 |"
    )
    assert "- two/train.py:2, `FullyShardedDataParallel(...)`, by hand: two \\| stays" in out
    assert "Files that import this package" not in out


def test_a_file_that_imports_the_package_is_listed_and_makes_the_page_worse(run, tmp_path):
    before = tmp_path / "reach.md"
    before.write_text(run("--form", "torch")[1], "utf-8")
    assert run("--form", "torch", "--check", str(before))[0] == 0
    status, out, err = run("--form", "torch", "--check", str(before), ours=UNITS)
    assert status == 1
    assert "- one/train.py: units" in out
    assert "worse: torch: import us: 0 before, 1 now" in err
