"""`model.no_sync()` in torch's form, where a branch decides, and beside DistributedDataParallel."""

from pathlib import Path

import pytest

from .programs import analysed

TWICE = """\
from contextlib import nullcontext

import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


def step(model, batches, last, args):
    if args.one:
        model(batches).sum().backward()
    else:
        for number, batch in enumerate(batches):
            context = nullcontext
            # Not but for the last
            if isinstance(model, FSDP) and number != last - 1:
                context = model.no_sync
            with context():
                model(batch).sum().backward()


model = FSDP(torch.nn.Linear(8, 8))
other = DDP(torch.nn.Linear(8, 8))
"""
SET = """\
            # Not but for the last
            if isinstance(model, FSDPModule):
                model.set_requires_gradient_sync(number == last - 1)
            model(batch).sum().backward()
"""
ALWAYS = """\
            # Not but for the last
            model.set_requires_gradient_sync(number == last - 1)
            model(batch).sum().backward()
"""
SLOW = SET.replace("(number", "(not args.slow or number")
BY_TWO = SET.replace("isinstance(model, FSDPModule)", "args.fsdp and isinstance(model, FSDPModule)")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([], SET),
        ([("FSDP) and", "FSDP) and args.slow and")], SLOW),
        ([("if isinstance", "if args.fsdp and isinstance")], BY_TWO),
        ([("isinstance(model, FSDP) and ", ""), ("DDP(torch", "str(torch")], ALWAYS),
        ([("isinstance(model, FSDP) and ", "")], None),
        ([(" and number != last - 1", "")], None),
        ([("with context():", "print(context)\n            with context():")], None),
        (
            [
                (
                    "            context = null",
                    "            context = other\n            context = null",
                )
            ],
            None,
        ),
        ([("model.no_sync\n", "model.no_sync\n                print()\n")], None),
        (
            [("model.no_sync\n", "model.no_sync\n            else:\n                print()\n")],
            None,
        ),
        ([("context():", "context() as nothing:")], None),
        ([("context = nullcontext", "context = torch.no_grad")], None),
        ([("if args.one", "if args.one()")], None),
        ([("if args.one", "args = load()\n    if args.one")], None),
        ([("    else:\n        for", "    if True:\n        for")], None),
        ([("isinstance(model, FSDP) and", "isinstance(other, FSDP) and")], None),
    ],
)
def test_a_branch_that_gives_the_context(
    changes: list[tuple[str, str]], expected: str | None, tmp_path: Path
) -> None:
    text = TWICE
    for old, new in changes:
        text = text.replace(old, new)
    after = analysed(tmp_path, text, "torch").after["train.py"]
    if expected is None:
        assert "def no_sync(model)" in after
        assert "partial(no_sync, model)" in after
    else:
        assert expected in after
        for word in ("nullcontext", "def no_sync", "context ="):
            assert word not in after


USE = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


def step(model, batch, args):
    with model.no_sync():
        return model(batch).sum().backward()


model = FSDP(torch.nn.Linear(8, 8))
"""


@pytest.mark.parametrize(
    ("old", "new", "may_be_ddp"),
    [
        ("", "", False),
        ("as DDP\n", "as DDP\n\nother = DDP(torch.nn.Linear(8, 8))\n", True),
        ("    with", "    assert isinstance(model, (FSDP, DDP))\n    with", True),
        (
            "    with",
            "    assert isinstance(model, torch.nn.parallel.DistributedDataParallel)\n    with",
            True,
        ),
    ],
)
def test_the_function_takes_models_of_ddp_where_these_may_come(
    old: str, new: str, may_be_ddp: bool, tmp_path: Path
) -> None:
    after = analysed(tmp_path, USE.replace(old, new, 1), "torch").after["train.py"]
    assert ("if not isinstance(model, FSDPModule):" in after) is may_be_ddp


@pytest.mark.parametrize(
    ("test", "may_be_ddp"),
    [
        ("isinstance(model, FSDP)", False),
        ("args.fsdp and batch is not None", False),
        ("not (args.ddp or not args.use_fsdp)", False),
        ("args.fsdp or args.ddp", True),
        ("args.fsdp_cpu_offload", True),
        ("not args.fsdp", True),
        ("isinstance(batch, FSDP)", True),
    ],
)
def test_a_test_around_says_whether_a_model_is_sharded(
    test: str, may_be_ddp: bool, tmp_path: Path
) -> None:
    text = USE.replace("as DDP\n", "as DDP\n\nother = DDP(torch.nn.Linear(8, 8))\n")
    text = text.replace("    with", f"    if {test}:\n      with").replace(
        "        return", "          return"
    )
    after = analysed(tmp_path, text, "torch").after["train.py"]
    assert ("if not isinstance(model, FSDPModule):" in after) is may_be_ddp


def test_the_module_of_another_branch_stays(tmp_path: Path) -> None:
    text = USE.replace("as DDP\n", "as DDP\n\nother = DDP(torch.nn.Linear(8, 8))\n").replace(
        "    with model",
        "    if args.fsdp:\n        print(model.module)\n    elif args.ddp:\n        model.module.train()\n"
        "    print(model.module.bias)\n    with model",
    )
    text += "step(model, batch, args)\n"
    after = analysed(tmp_path, text, "torch").after["train.py"]
    assert "        print(model)\n" in after
    assert "        model.module.train()\n" in after
    assert '    print(getattr(model, "module", model).bias)\n' in after


OLD = {
    "train.py": """\
        import torch
        from accelerate import Accelerator
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        from torch.nn.parallel import DistributedDataParallel as DDP

        model, optimizer = Accelerator().prepare(model, optimizer)
        assert isinstance(model, (FSDP, DDP))
        with model.no_sync():
            model(batch).backward()
        with FSDP.summon_full_params(model):
            model.generate(batch)
        """,
    "configs/fsdp.yaml": """\
        distributed_type: FSDP
        fsdp_config:
          fsdp_sharding_strategy: FULL_SHARD
        """,
    "setup.py": """\
        from setuptools import setup
        setup(install_requires=["accelerate==0.26.1"])
        """,
}


@pytest.mark.parametrize("is_old", [True, False])
def test_models_of_a_library_that_stays_with_fsdp1(is_old: bool, tmp_path: Path) -> None:
    files = OLD if is_old else OLD | {"setup.py": OLD["setup.py"].replace("0.26.1", "1.10.0")}
    program = analysed(tmp_path, files, "torch")
    assert program.is_kept("isinstance") is is_old
    assert program.is_kept("no_sync") is is_old
    assert program.is_kept("summon_full_params") is is_old
    assert "FSDP321" in program.codes("summon_full_params")
    assert ("FSDP007" in program.codes("isinstance")) is True
