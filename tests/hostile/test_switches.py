"""What can be switched off stays, with all that hangs on it; and what need not be refused."""

from __future__ import annotations

import pytest

from fsdp_migrate.settings import Options

from .known import params
from .programs import FSDP, POLICY, broken, run

TWO = f"{FSDP}model = FSDP(model)\nstate = model.state_dict()\n"


@pytest.mark.parametrize(
    ("text", "options"),
    [
        pytest.param(
            f"{FSDP}model = FSDP(model)  # fsdp-migrate: ignore[FSDP002]\n",
            Options(),
            id="comment at the constructor",
        ),
        pytest.param(
            f"{FSDP}model = FSDP(model)  # noqa # fsdp-migrate: ignore[fsdp002, FSDP001]\n",
            Options(),
            id="several codes",
        ),
        pytest.param(
            f"{FSDP}model = FSDP(model)  # fsdp-migrate: ignore\n",
            Options(),
            id="comment for every code",
        ),
        pytest.param(
            f"{TWO.rstrip()}  # fsdp-migrate: ignore[FSDP333]\n", Options(), id="comment at a use"
        ),
        pytest.param(TWO, Options(ignore=frozenset({"FSDP333"})), id="option for a use"),
        pytest.param(TWO, Options(select=frozenset({"FSDP333"})), id="selection of a use alone"),
        pytest.param(
            TWO,
            Options(ignore=frozenset({"FSDP333"}), partial=True),
            id="option for a use, --partial",
        ),
        pytest.param(
            f"{FSDP}model = FSDP(model)\nFSDP.fsdp_modules(model)  # fsdp-migrate: ignore\n",
            Options(),
            id="comment at what is silent",
        ),
        pytest.param(
            f"{FSDP}model = FSDP(model)\nx = FSDP is type(model) is kind\n",
            Options(ignore=frozenset({"FSDP008"})),
            id="option for what is silent",
        ),
    ],
)
def test_what_is_switched_off_holds_its_model(text: str, options: Options) -> None:
    outcome = run(text, options)
    assert "fully_shard" not in outcome.after
    assert "get_model_state_dict" not in outcome.after
    assert "FullyShardedDataParallel" in outcome.after


def test_an_ignored_argument_keeps_its_call() -> None:
    text = f"{FSDP}model = FSDP(\n    model,\n    use_orig_params=True,  # fsdp-migrate: ignore[FSDP206]\n)\n"
    outcome = run(text)
    assert "FSDP206" not in outcome.codes
    assert outcome.after == text
    assert broken(outcome) == []


def test_partial_migrates_and_marks() -> None:
    text = f"{FSDP}model = FSDP(model)\nx = FSDP is type(model) is kind\n"
    outcome = run(text, Options(partial=True))
    assert "fully_shard(model)" in outcome.after
    assert "# fsdp-migrate: FSDP008" in outcome.after
    assert run(outcome.after, Options(partial=True)).after == outcome.after


HEARD = {
    "an ignore comment below a form feed": f"{FSDP}x = 1\n\x0c\ny = 2\nmodel = FSDP(model)  # fsdp-migrate: ignore[FSDP002]\n",
    "an ignore comment below a vertical tab in a string": f"{FSDP}x = 'a\x0bb\x1cc'\nmodel = FSDP(model)  # fsdp-migrate: ignore[FSDP002]\n",
}


@pytest.mark.parametrize("text", params(HEARD))
def test_ignore_comment_is_heard(text: str) -> None:
    assert not run(text).changed


NEEDLESS = {
    "braces in the model's expression": f"{POLICY}model = FSDP(Net({{'a': 1}}), auto_wrap_policy=ModuleWrapPolicy({{Block}}))\n",
    "braces in the policy": f"{POLICY}import m\nmodel = FSDP(Net(), auto_wrap_policy=ModuleWrapPolicy({{getattr(m, f'{{kind}}Block')}}))\n",
    "dotted model over several lines": f"{POLICY}model = FSDP(\n    self\n    .model, auto_wrap_policy=ModuleWrapPolicy({{Block}}))\n",
    "walrus as the model": f"{POLICY}model = FSDP((net := Net()), auto_wrap_policy=ModuleWrapPolicy({{Block}}))\nprint(net)\n",
    "policy on a shared line": f"{POLICY}p = ModuleWrapPolicy({{Block}}); y = 1\nmodel = FSDP(m, auto_wrap_policy=p)\n",
    "form feed at the line's start": f"{FSDP}x = 1\n\x0cmodel = FSDP(m)\n",
    "comment inside a chain of attributes": f"{FSDP}model = FSDP(m)\ny = (\n    model  # p\n    .module  # q\n    .config\n)\n",
    "comment inside a method that is not called": f"{FSDP}import functools\nmodel = FSDP(m)\nctx = (\n    model  # a\n    .no_sync  # b\n)\n",
    "context in parentheses with comments": (
        f"{FSDP}from torch.distributed.fsdp import StateDictType\nmodel = FSDP(m)\nwith (\n    # a\n"
        "    FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT)  # b\n    # c\n):  # d\n    sd = model.state_dict()  # f\n"
    ),
    "a comment under lone CR": (
        "from torch.distributed.fsdp import (\n    BackwardPrefetch,  # a\n    FullyShardedDataParallel as FSDP,\n)\nmodel = FSDP(m)\n".replace(
            "\n", "\r"
        )
    ),
}


@pytest.mark.parametrize("text", params(NEEDLESS))
def test_need_not_be_refused(text: str) -> None:
    outcome = run(text)
    assert not outcome.errors
    assert outcome.changed
    assert broken(outcome) == []


ONCE = {
    "FSDP(FSDP(model))": (f"{FSDP}model = FSDP(FSDP(model))\n", "fully_shard(fully_shard("),
    "a module called module": (
        f"{FSDP}model = FSDP(model)\nw = model.module.module.weight\n",
        "= model.weight",
    ),
    "annotations in quotes": (
        f"{FSDP}def f(m: 'FSDP') -> 'FSDP':\n    return m\nmodel = FSDP(m)\n",
        "'FSDP'",
    ),
}


@pytest.mark.parametrize(
    ("text", "wrong"), [pytest.param(*p.values[0], id=p.id, marks=p.marks) for p in params(ONCE)]
)
def test_is_not_written(text: str, wrong: str) -> None:
    outcome = run(text)
    assert wrong not in outcome.after or "import FullyShardedDataParallel as FSDP" in outcome.after
