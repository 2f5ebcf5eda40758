"""Names of FSDP1 that are bound, reached or kept in unusual ways; and files whose tree cannot be trusted."""

from __future__ import annotations

import pytest

from .programs import FSDP, broken, run

GUARD = f"try:\n    {FSDP}except ImportError:\n    FSDP = None\n"

LEFT_ALONE = {
    "a backslash on a line of its own": f"{FSDP}x = 1\n\\\ny = 2\nmodel = FSDP(m)\n",
    "a form feed in front of code": f"{FSDP}x = 1\n\x0cmodel = FSDP(m)\n",
}


@pytest.mark.parametrize("text", LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_tree_that_is_not_the_text_is_refused(text: str) -> None:
    outcome = run(text)
    assert not outcome.changed
    assert any("line" in message and "cannot be kept" in message for message in outcome.errors)


AMBIGUOUS = {
    "its own class": (
        f"try:\n    {FSDP}except ImportError:\n    class FSDP: pass\nmodel = FSDP(m)\n"
    ),
    "its own function": (f"if new:\n    {FSDP}else:\n    def FSDP(m): return m\nmodel = FSDP(m)\n"),
    "an exception": f"{FSDP}try:\n    pass\nexcept E as FSDP:\n    pass\nmodel = FSDP(m)\n",
    "the result of a call": f"{FSDP}FSDP = partial(FSDP, use_orig_params=True)\nmodel = FSDP(m)\n",
}


@pytest.mark.parametrize("text", AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_name_with_two_meanings_is_left_by_hand(text: str) -> None:
    outcome = run(text)
    assert not outcome.changed
    assert "FSDP018" in outcome.by_hand


FALLBACKS = {
    "one heir": (f"{GUARD}print(isinstance(m, FSDP))\n", "    FSDPModule = None\n"),
    "two heirs": (
        f"{GUARD}model = FSDP(m)\nprint(isinstance(m, FSDP))\n",
        "    fully_shard = FSDPModule = None\n",
    ),
    "asked for": (f"{GUARD}x = FSDP is not None\n", "x = FSDPModule is not None\n"),
}


@pytest.mark.parametrize(("text", "wanted"), FALLBACKS.values(), ids=FALLBACKS)
def test_fallback_goes_to_the_heirs(text: str, wanted: str) -> None:
    outcome = run(text)
    assert wanted in outcome.after
    assert broken(outcome) == []


STAYS_TORCH = {
    "a star": "from torch.distributed.fsdp.wrap import *\np = size_based_auto_wrap_policy\n",
    "a module": "import torch.distributed.fsdp as W\np = W.CPUOffload()\n",
    "a module of the package": (
        "from torch.distributed.fsdp import wrap\np = wrap.size_based_auto_wrap_policy\n"
    ),
}


@pytest.mark.parametrize("text", STAYS_TORCH.values(), ids=STAYS_TORCH)
def test_name_that_stays_torch_s_own_is_not_said_to_move(text: str) -> None:
    outcome = run(text)
    assert not outcome.changed
    assert outcome.by_hand == {"FSDP001", "FSDP017"}
    assert {finding.line for finding in outcome.report.findings} == {1, 2}


QUOTED = {
    "a name": ("def f(m: 'FSDP'): pass\n", "def f(m: 'FSDPModule'): pass\n"),
    "inside": ("def f() -> 'list[FSDP]': pass\n", "def f() -> 'list[FSDPModule]': pass\n"),
    "a literal": ("def f(m: Literal['FSDP'], n: FSDP): pass\n", "Literal['FSDP'], n: FSDPModule"),
}


@pytest.mark.parametrize(("text", "wanted"), QUOTED.values(), ids=QUOTED)
def test_quoted_annotation(text: str, wanted: str) -> None:
    outcome = run(FSDP + text)
    assert wanted in outcome.after
    assert broken(outcome) == []


def test_only_one_level_of_module_is_the_wrapper() -> None:
    outcome = run(f"{FSDP}model = FSDP(m)\ninner = model.module\nx = inner.module.x\n")
    assert outcome.after.endswith("inner = model\nx = inner.module.x\n")
