"""Which type is in force at a state-dict call, and what becomes of the call."""

from __future__ import annotations

import ast

import pytest

from .test_examples import analyse

HEAD = """\
import contextlib
import torch
from dataclasses import dataclass
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import (
    FullStateDictConfig, FullOptimStateDictConfig, ShardedStateDictConfig, StateDictType
)
"""
MODEL = "model = FSDP(model)\n"
SHARDED = "with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):\n"
CPU = "StateDictOptions(full_state_dict=True, cpu_offload=True)"
ON_RANK_0 = "FullStateDictConfig(offload_to_cpu=True, rank0_only=True)"
FULL = "StateDictOptions(full_state_dict=True)"

# Programs, and calls that must be in what becomes of them; no context and no type is left.
PLAIN = {
    "a constant": (
        f"{MODEL}POLICY = {ON_RANK_0}\nKIND = StateDictType.FULL_STATE_DICT\n"
        "def save():\n    with FSDP.state_dict_type(model, KIND, POLICY):\n        return model.state_dict()\n",
        [f"get_model_state_dict(model, options={CPU})"],
    ),
    "flags behind names": (
        f"{MODEL}ON = True\nwith FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(ON, ON)):\n"
        "    s = model.state_dict()\n",
        [f"get_model_state_dict(model, options={CPU})"],
    ),
    "an attribute of the class": (
        f"class T:\n    POLICY = {ON_RANK_0}\n    def __init__(self):\n        self.model = FSDP(m)\n    def save(self):\n"
        "        with FSDP.state_dict_type(self.model, StateDictType.FULL_STATE_DICT, self.POLICY):\n"
        "            return self.model.state_dict()\n",
        [f"get_model_state_dict(self.model, options={CPU})"],
    ),
    "an attribute of self": (
        f"class T:\n    def __init__(self):\n        self.model = FSDP(m)\n        self.policy = {ON_RANK_0}\n"
        "    def save(self):\n"
        "        with FSDP.state_dict_type(self.model, StateDictType.FULL_STATE_DICT, self.policy):\n"
        "            return self.model.state_dict()\n",
        [f"get_model_state_dict(self.model, options={CPU})"],
    ),
    "keywords, through the model": (
        f"{MODEL}with model.state_dict_type(module=model, state_dict_type=StateDictType.SHARDED_STATE_DICT, "
        "state_dict_config=ShardedStateDictConfig(offload_to_cpu=True)):\n    s = model.state_dict()\n",
        ["get_model_state_dict(model, options=StateDictOptions(cpu_offload=True))"],
    ),
    "another model in the body": (
        f"{MODEL}ema = FSDP(other)\n{SHARDED}    a = model.state_dict()\n    b = ema.state_dict()\n",
        ["get_model_state_dict(model)", f"get_model_state_dict(ema, options={FULL})"],
    ),
    "a context in a context": (
        f"{MODEL}ema = FSDP(other)\n{SHARDED}    a = model.state_dict()\n"
        f"    with FSDP.state_dict_type(ema, StateDictType.FULL_STATE_DICT, {ON_RANK_0}):\n        b = ema.state_dict()\n",
        ["get_model_state_dict(model)", f"get_model_state_dict(ema, options={CPU})"],
    ),
    "another type for the same model": (
        f"{MODEL}{SHARDED}    a = model.state_dict()\n"
        "    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):\n        b = model.state_dict()\n",
        ["a = get_model_state_dict(model)", f"b = get_model_state_dict(model, options={FULL})"],
    ),
    "two contexts of one statement": (
        f"{MODEL}ema = FSDP(other)\nwith FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT), "
        "FSDP.state_dict_type(ema, StateDictType.FULL_STATE_DICT):\n    a, b = model.state_dict(), ema.state_dict()\n",
        ["get_model_state_dict(model)", f"get_model_state_dict(ema, options={FULL})"],
    ),
    "schedulers and optimizers": (
        f"{MODEL}{SHARDED}    s = [model.state_dict(), scheduler.state_dict(), optimizer.state_dict()]\n",
        ["get_model_state_dict(model)", "scheduler.state_dict()", "optimizer.state_dict()"],
    ),
    "another name of the model": (
        f"{MODEL}m = model\n{SHARDED}    s = m.state_dict()\n",
        ["get_model_state_dict(m)"],
    ),
    "the inner module": (
        f"{MODEL}{SHARDED}    s = model.module.state_dict()\n",
        ["get_model_state_dict(model)"],
    ),
    "a part": (
        f"{MODEL}{SHARDED}    s = model.encoder.state_dict()\n",
        ["get_model_state_dict(model.encoder)"],
    ),
    "a function of the body": (
        f"{MODEL}{SHARDED}    def save():\n        return model.state_dict()\n    s = save()\n",
        ["get_model_state_dict(model)"],
    ),
    "a function of the project that writes": (
        f"{MODEL}def write(s):\n    torch.save(s, 'x')\n{SHARDED}    write(model.state_dict())\n",
        ["get_model_state_dict(model)"],
    ),
    "strict": (
        f"{MODEL}{SHARDED}    model.load_state_dict(s, strict=False)\n",
        ["set_model_state_dict(model, s, options=StateDictOptions(strict=False))"],
    ),
    "strict by position": (
        f"{MODEL}model.load_state_dict(s, False)\n",
        [
            "set_model_state_dict(model, s, options=StateDictOptions(full_state_dict=True, strict=False))"
        ],
    ),
    "types that are set one after the other": (
        f"{MODEL}a = model.state_dict()\nFSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)\n"
        "b = model.state_dict()\nFSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)\nmodel.load_state_dict(a)\n",
        [
            f"a = get_model_state_dict(model, options={FULL})",
            "b = get_model_state_dict(model)",
            f"set_model_state_dict(model, a, options={FULL})",
        ],
    ),
    "a type that a class sets": (
        "class T:\n    def __init__(self):\n        self.model = FSDP(m)\n"
        "        FSDP.set_state_dict_type(self.model, StateDictType.SHARDED_STATE_DICT)\n"
        "    def save(self):\n        return self.model.state_dict()\n"
        "    def load(self, s):\n        self.model.load_state_dict(s)\n",
        ["get_model_state_dict(self.model)", "set_model_state_dict(self.model, s)"],
    ),
    "the type that there is anyway": (
        f"{MODEL}def save():\n    FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)\n"
        "    return model.state_dict()\ndef load(s):\n    model.load_state_dict(s)\n",
        [
            f"get_model_state_dict(model, options={FULL})",
            f"set_model_state_dict(model, s, options={FULL})",
        ],
    ),
    "a set type and a context": (
        f"{MODEL}FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)\na = model.state_dict()\n"
        "with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):\n    b = model.state_dict()\n",
        ["a = get_model_state_dict(model)", f"b = get_model_state_dict(model, options={FULL})"],
    ),
    "a set type and an optimizer": (
        f"{MODEL}FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT, {ON_RANK_0}, "
        "FullOptimStateDictConfig(rank0_only=True))\na = model.state_dict()\nb = FSDP.optim_state_dict(model, optimizer)\n",
        [
            f"get_model_state_dict(model, options={CPU})",
            f"get_optimizer_state_dict(model, optimizer, options={CPU})",
        ],
    ),
}


def calls(text: str) -> set[str]:
    """The statements and calls of a program, each on one line."""
    return {
        ast.unparse(node)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call | ast.Assign)
    }


@pytest.mark.parametrize(("text", "wanted"), PLAIN.values(), ids=PLAIN)
def test_a_type_in_sight_becomes_an_option(text: str, wanted: list[str]) -> None:
    report, after = analyse(HEAD + text)
    assert "state_dict_type(" not in after
    assert not [f for f in report.findings if f.action.value == "manual"]
    assert set(wanted) <= calls(after), after


# Programs in which the type, the configuration or the body is out of sight: nothing of the model's own calls changes.
OF_THE_RUN = {
    "a type from outside": "with FSDP.state_dict_type(model, kind):\n    s = model.state_dict()\n",
    "one of two types": (
        "with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT if x else StateDictType.FULL_STATE_DICT):\n"
        "    s = model.state_dict()\n"
    ),
    "a configuration from outside": (
        "def save(policy):\n    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, policy):\n"
        "        s = model.state_dict()\n"
    ),
    "a configuration by flags": (
        "with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(x, x)):\n"
        "    s = model.state_dict()\n"
    ),
    "a field of a dataclass": (
        "@dataclass\nclass C:\n    kind: StateDictType = StateDictType.FULL_STATE_DICT\n    def save(self):\n"
        "        with FSDP.state_dict_type(model, self.kind):\n            s = model.state_dict()\n"
    ),
    "an attribute with two values": (
        "class C:\n    kind = StateDictType.FULL_STATE_DICT\n    def save(self):\n"
        "        with FSDP.state_dict_type(model, self.kind):\n            s = model.state_dict()\n"
        "class D(C):\n    kind = StateDictType.SHARDED_STATE_DICT\n"
    ),
    "on the CPU of every rank": (
        "with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(offload_to_cpu=True)):\n"
        "    s = model.state_dict()\n"
    ),
    "the context's value": (
        "with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT) as settings:\n    s = model.state_dict()\n"
    ),
    "a function that is given the model": f"{SHARDED}    s = model.state_dict()\n    other(model)\n",
    "a function that reaches the model": (
        f"def save():\n    return model.state_dict()\n{SHARDED}    s = save()\n"
    ),
    "by two calls": (
        f"def inner():\n    return model.state_dict()\ndef save():\n    return inner()\n{SHARDED}    s = save()\n"
    ),
    "a method of another library": f"{SHARDED}    s = model.state_dict()\n    trainer.save_checkpoint()\n",
    "other code inside": (
        "@contextlib.contextmanager\ndef full():\n    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):\n"
        "        s = model.state_dict()\n        yield\n"
    ),
    "an object that may be the model": f"{SHARDED}    for k, o in things:\n        s = [model.state_dict(), o.state_dict()]\n",
    "options of the model's own method": f"{SHARDED}    s = model.state_dict()\n    t = model.state_dict(prefix='x')\n",
    "a type that changes inside": (
        f"{SHARDED}    FSDP.set_state_dict_type(model, kind)\n    s = model.state_dict()\n"
    ),
}


@pytest.mark.parametrize("text", OF_THE_RUN.values(), ids=OF_THE_RUN)
def test_a_type_of_the_run_is_the_runtimes(text: str) -> None:
    _, after = analyse(HEAD + MODEL + text)
    assert "with state_dict_type(model" in after
    assert "model.state_dict()" in after
    assert "get_model_state_dict(model" not in after


OUTSIDE_OF_WITH = {
    "assigned": "context = FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT)\n",
    "returned": "def full(m: FSDP):\n    return FSDP.state_dict_type(m, StateDictType.FULL_STATE_DICT)\n",
    "chosen": "with FSDP.state_dict_type(model, kind) if x else contextlib.nullcontext():\n    trainer.save()\n",
    "a stack": (
        "with contextlib.ExitStack() as stack:\n    stack.enter_context(FSDP.state_dict_type(model, kind))\n"
        "    trainer.save()\n"
    ),
    "not called": "from functools import partial\ncontext = partial(FSDP.state_dict_type, model)\n",
}


@pytest.mark.parametrize("text", OUTSIDE_OF_WITH.values(), ids=OUTSIDE_OF_WITH)
def test_a_context_that_is_no_with_statement(text: str) -> None:
    _, after = analyse(HEAD + MODEL + text)
    assert "FSDP.state_dict_type" not in after
    assert "state_dict_type" in after
    assert "fsdp_migrate.runtime" in after


# A type may be in force, or FSDP1's default: the program is held, or every call stays as it is.
UNSURE = {
    "set under a condition": (
        "if x:\n    FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)\ns = model.state_dict()\n"
    ),
    "set in a loop behind": (
        "for i in x:\n    s = model.state_dict()\n    FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)\n"
    ),
    "set by another function": (
        "def setup():\n    FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)\n"
        "def save():\n    return model.state_dict()\n"
    ),
    "inside of a context and outside": (
        f"def save():\n    return model.state_dict()\n{SHARDED}    s = save()\nt = save()\n"
    ),
}


@pytest.mark.parametrize("text", UNSURE.values(), ids=UNSURE)
def test_a_call_under_one_type_or_another_is_not_rewritten(text: str) -> None:
    report, after = analyse(HEAD + MODEL + text)
    assert after == HEAD + MODEL + text
    assert any(
        f.code == "FSDP333" and "unless a type is in force" in f.message for f in report.findings
    )


SURE = {
    "set behind the constructor": (
        "FSDP.set_state_dict_type(model, kind)\ndef save():\n    return model.state_dict()\n"
    ),
    "in every branch": (
        "if x:\n    FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)\nelse:\n"
        "    FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)\ns = model.state_dict()\n"
    ),
    "asked for": (
        "FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)\nk = FSDP.get_state_dict_type(model)\n"
        "s = model.state_dict()\n"
    ),
    "kept": (
        "old = FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)\ns = model.state_dict()\n"
        "FSDP.set_state_dict_type(model, old.state_dict_type)\n"
    ),
    "given to another library": (
        "trainer = Trainer(model)\nFSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)\ns = model.state_dict()\n"
    ),
}


CONTEXT = "FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT)"
FROM_AFAR = {
    "returned": f"def shards():\n    return {CONTEXT}\nwith shards():\n    s = model.state_dict()\n",
    "returned by a method, or nothing": (
        f"class T:\n    def shards(self, model):\n        if x:\n            return {CONTEXT}\n"
        "        return contextlib.nullcontext()\n    def save(self):\n        with self.shards(model):\n"
        "            return model.state_dict()\n"
    ),
    "assigned": f"shards = {CONTEXT}\nwith shards:\n    s = model.state_dict()\n",
    "assigned from a function": (
        f"def make():\n    return {CONTEXT}\nshards = make() if x else make()\nwith shards:\n    s = model.state_dict()\n"
    ),
    "chosen": f"with {CONTEXT} if x else contextlib.nullcontext():\n    s = model.state_dict()\n",
    "on a stack": (
        f"with contextlib.ExitStack() as stack:\n    stack.enter_context({CONTEXT})\n    s = model.state_dict()\n"
    ),
    "around a generator's yield": (
        f"@contextlib.contextmanager\ndef shards():\n    with {CONTEXT}:\n        yield\n"
        "with shards():\n    s = model.state_dict()\n"
    ),
    "around a call": (
        f"def shards():\n    return {CONTEXT}\ndef save():\n    return model.state_dict()\nwith shards():\n    save()\n"
    ),
}


@pytest.mark.parametrize("text", FROM_AFAR.values(), ids=FROM_AFAR)
def test_a_call_under_a_context_that_is_made_elsewhere_stays(text: str) -> None:
    _, after = analyse(HEAD + MODEL + text)
    assert "FSDP." not in after
    assert "model.state_dict()" in after
    assert "get_model_state_dict(" not in after


@pytest.mark.parametrize(
    "text",
    [
        "from functools import partial\ncontext = partial(FSDP.state_dict_type, model)\n",
        f"run({CONTEXT})\n",
        f"self.shards = {CONTEXT}\n",
    ],
)
def test_a_context_that_anybody_may_enter_holds_the_calls(text: str) -> None:
    report, after = analyse(f"{HEAD}{MODEL}{text}s = model.state_dict()\n")
    assert after == f"{HEAD}{MODEL}{text}s = model.state_dict()\n"
    assert any("unless a type is in force" in finding.message for finding in report.findings)


@pytest.mark.parametrize("text", SURE.values(), ids=SURE)
def test_a_call_under_the_runtimes_type_stays(text: str) -> None:
    _, after = analyse(HEAD + MODEL + text)
    assert "FSDP." not in after
    assert "set_state_dict_type(model" in after
    assert "model.state_dict()" in after
    assert "get_model_state_dict" not in after


def test_a_local_type_that_is_set_holds_the_program() -> None:
    text = f"{HEAD}{MODEL}FSDP.set_state_dict_type(model, StateDictType.LOCAL_STATE_DICT)\n"
    report, after = analyse(text)
    assert after == text
    assert any(f.code == "FSDP334" for f in report.findings)


MESHES = {
    "device_mesh=init_device_mesh('cuda', (2, 4))": True,
    "device_mesh=mesh_of(2)": True,
    "device_mesh=mesh_of(2) if x else None": True,
    "device_mesh=other(2)": False,
    "device_mesh=init_device_mesh('cuda', (2, 4))['dp']": False,
    "device_mesh=part_of(2)": False,
    "process_group=None": True,
    "process_group=dist.group.WORLD": True,
    "process_group=group": False,
}


@pytest.mark.parametrize(("argument", "plain"), MESHES.items(), ids=MESHES)
def test_rank_0_of_a_model_is_rank_0_of_all_where_its_mesh_is_of_all(
    argument: str, plain: bool
) -> None:
    text = (
        f"{HEAD}import torch.distributed as dist\nfrom torch.distributed.device_mesh import init_device_mesh\n"
        "def mesh_of(n):\n    mesh = init_device_mesh('cuda', (n, 4))\n    return mesh\n"
        "def part_of(n):\n    return init_device_mesh('cuda', (n, 4))['dp']\n"
        f"model = FSDP(model, {argument})\nwith FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, {ON_RANK_0}):\n"
        "    s = model.state_dict()\n"
    )
    _, after = analyse(text)
    assert ("get_model_state_dict(" in after) is plain
    assert ("with state_dict_type(" in after) is not plain


@pytest.mark.parametrize(
    "line",
    [
        "states = FSDP.optim_state_dict(model, opt, None, group)",
        "later = FSDP.optim_state_dict_to_load(model, opt, saved)",
        "later = FSDP.optim_state_dict_to_load(model, opt, saved, True)",
    ],
)
def test_a_function_that_goes_by_the_type_keeps_its_context(line: str) -> None:
    """As the runtime's function it would go by FULL_STATE_DICT without the context."""
    _, after = analyse(f"{HEAD}{MODEL}{SHARDED}    state = model.state_dict()\n    {line}\n")
    assert (
        "with state_dict_type(model, StateDictType.SHARDED_STATE_DICT):\n    state = mod" in after
    )
    _, after = analyse(f"{HEAD}{MODEL}{SHARDED}    states = FSDP.optim_state_dict(model, opt)\n")
    assert "state_dict_type" not in after
