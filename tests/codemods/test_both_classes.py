"""A program with code for FSDP1 and for FSDP2, in the torch form: what its tests do with models of `fully_shard`."""

from pathlib import Path

import pytest

from fsdp_migrate.findings import Action, Severity

from .programs import analysed

VERSIONS = """\
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def version(model):
    if isinstance(model, FSDP):
        return 1
    elif isinstance(model, FSDPModule):
        return 2
    else:
        return 0


def is_first(model):
    return isinstance(model, FSDP)
"""
TRAIN = """\
from torch.distributed.fsdp import FSDPModule as Second
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from versions import is_first, version


def use(model, log):
    BODY


model = FSDP(Net())
use(model, print)
"""
RUNS = "model._lazy_init()"  # FSDP366: raises under FSDP2
# By the test around a call of FSDP1's: whether models of `fully_shard` get there.
GUARDS = {
    "if version(model) == 1:": False,
    "if log and version(model) == 1:": False,
    "if version(model) != 2:": False,
    "if is_first(model):": False,
    "if isinstance(model, FSDP):": False,
    "if not isinstance(model, Second):": False,
    "if version(model) == 2:\n        return\n    if True:": False,
    "if isinstance(model, Second):\n        log()\n    else:": False,
    "if log or version(model) == 1:": True,
    "if version(model) == 2:": True,
    "if version(model) == 2:\n        log()\n    if True:": True,
    "if log(model) == 1:": True,
    "if isinstance(model, FSDP | Second):": True,
}


@pytest.mark.parametrize(("guard", "is_reached"), GUARDS.items())
def test_code_for_fsdp1_alone_needs_nobody(guard: str, is_reached: bool, tmp_path: Path) -> None:
    body = f"{guard}\n        {RUNS}"
    files = {"versions.py": VERSIONS, "train.py": TRAIN.replace("BODY", body)}
    found = [
        f for f in analysed(tmp_path, files, "torch").findings if f.construct.endswith("_lazy_init")
    ]
    assert found
    assert {f.action is Action.MANUAL for f in found} == {is_reached}


# By the body of a function that tests for FSDP1's class: the action, the severity and a part of the message.
TESTS = {
    "if isinstance(model, FSDP | Second): log()": (
        Action.RUNTIME,
        None,
        "this test also names `FSDPModule`",
    ),
    "if isinstance(model, (FSDP, Second)): log()": (
        Action.RUNTIME,
        None,
        "this test also names `FSDPModule`",
    ),
    "if isinstance(model, FSDP): log(1)\n    elif isinstance(model, Second): log(2)": (
        Action.RUNTIME,
        None,
        "line 9",
    ),
    "if isinstance(model, FSDP): return 1\n    if isinstance(model, Second): return 2": (
        Action.RUNTIME,
        None,
        "line 9",
    ),
    "if isinstance(model, FSDP): model = model.module\n    log(model)": (
        Action.RUNTIME,
        None,
        "no wrapper",
    ),
    "assert isinstance(model, FSDP)": (Action.MANUAL, Severity.RAISES, "This check fails"),
    "if isinstance(model, FSDP): log()": (Action.MANUAL, Severity.SILENT, "other branch"),
}


@pytest.mark.parametrize(("body", "expected"), TESTS.items())
def test_a_test_for_fsdp1s_class_says_what_comes_of_it(
    body: str, expected: tuple[Action, Severity | None, str], tmp_path: Path
) -> None:
    files = {"versions.py": VERSIONS, "train.py": TRAIN.replace("BODY", body)}
    every = analysed(tmp_path, files, "torch").findings
    on_line = [f for f in every if f.path.endswith("train.py") and f.line == 8]
    found = [f for f in on_line if f.code != "FSDP009"]  # `model.module`
    action, severity, words = expected
    assert {(f.code, f.action, f.severity) for f in found} == {("FSDP007", action, severity)}
    assert words in found[0].message


FSDP1 = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"
# By an expression that uses FSDP1's class and is no `isinstance`: what is said of it, and whether it needs the user.
OTHER_USES = {
    "model.kind is not FSDP": ("has this class", True),
    'f"a model is no {FSDP}"': ("only a text", False),
    "find(model, FSDP)": ("FSDP1's class is used as", True),
}


@pytest.mark.parametrize(("use", "expected"), OTHER_USES.items())
def test_other_uses_of_fsdp1s_class(use: str, expected: tuple[str, bool], tmp_path: Path) -> None:
    files = {"versions.py": VERSIONS, "train.py": TRAIN.replace("BODY", f"log({use})")}
    every = analysed(tmp_path, files, "torch").findings
    (found,) = [f for f in every if f.code == "FSDP018"]
    words, needs_user = expected
    assert words in found.message
    assert (found.action is Action.MANUAL) == needs_user


def test_a_method_of_another_librarys_class_is_no_models(tmp_path: Path) -> None:
    patched = "from accelerate import Accelerator\n\nold = Accelerator.clip_grad_norm_\n"
    files = {
        "train.py": TRAIN.replace("BODY", "log()"),
        "versions.py": VERSIONS,
        "patch.py": patched,
    }
    findings = analysed(tmp_path, files, "torch").findings
    assert "FSDP301" not in {f.code for f in findings}
