"""What must hold for every program: the result parses, is stable, keeps comments and defines what it uses."""

import pytest

from fsdp_migrate.settings import Options

from ..fuzz.checks import FORMS, FSDP, POLICY, broken, run

CTX = f"{FSDP}from torch.distributed.fsdp import FullStateDictConfig, StateDictType\n"

PROGRAMS = {
    # the H-list
    "*args between arguments": f"{FSDP}model = FSDP(model, *rest, sharding_strategy=s)\n",
    "comment inside empty parentheses": f"{FSDP}model = FSDP(model)\nwith model.no_sync(  # none\n):\n    pass\n",
    "call with nothing but a comment": f"{FSDP}model = FSDP(\n    # nothing\n)\n",
    "a comment at every argument": f"""{POLICY}
model = FSDP(  # open
    # before model
    model,  # model
    # before policy
    auto_wrap_policy=ModuleWrapPolicy({{  # set
        Block,  # block
    }}),  # policy
    # before orig
    use_orig_params=True,  # orig
    # end
)  # close
# below
""",
    "only statement in a block": f"{POLICY}if x:\n    model = FSDP(a, auto_wrap_policy=ModuleWrapPolicy({{Block}}))\n",
    "only import in a function": "def f():\n    from torch.distributed.fsdp import CPUOffload\n",
    "one-line suite": f"{POLICY}if x: model = FSDP(a, auto_wrap_policy=ModuleWrapPolicy({{Block}}))\nelse: model = FSDP(a)\n",
    "aliased import beside the new name": f"{FSDP}from torch.distributed.fsdp import fully_shard\nmodel = FSDP(a)\nfully_shard(b)\n",
    "new name imported under another name": f"{FSDP}from torch.distributed.fsdp import fully_shard as shard\nmodel = FSDP(a)\nshard(b)\n",
    "new name from its private home": (
        f"{FSDP}from torch.distributed._composable.fsdp import fully_shard\nmodel = FSDP(a)\nfully_shard(b)\n"
    ),
    "import in try with a flag": f"try:\n    {FSDP}    HAS = True\nexcept ImportError:\n    HAS = False\nif HAS:\n    model = FSDP(a)\n",
    "import behind a version": f"if V >= 2:\n    {FSDP}else:\n    FSDP = None\nmodel = FSDP(a)\n",
    "import in two functions": f"def f(m):\n    {FSDP}    return FSDP(m)\ndef g(m):\n    {FSDP}    return FSDP(m, sharding_strategy=s)\n",
    "import for type checkers": (
        f"from __future__ import annotations\nfrom typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    {FSDP}\n"
        "def f(m: FSDP) -> FSDP:\n    return m\n"
    ),
    "decorator": f"{FSDP}@wraps(FSDP)\ndef f(): pass\nmodel = FSDP(a)\n",
    "shadowed by an import in a function": f"{FSDP}def f():\n    from other import FSDP\n    return FSDP(1)\nmodel = FSDP(a)\n",
    "two constructors in a call": f"{FSDP}f(FSDP(a), FSDP(b, sharding_strategy=s))\n",
    "nested constructors": f"{POLICY}m = FSDP(Net(FSDP(inner)), auto_wrap_policy=ModuleWrapPolicy({{Block}}))\n",
    "match": f"{FSDP}match model:\n    case FSDP():\n        pass\n",
    "f-string": f"{FSDP}model = FSDP(m)\nprint(f'{{model.clip_grad_norm_(1.0):.3f}} {{isinstance(model, FSDP)}} FSDP(m)')\n",
    # constructors in odd places
    "return of a parenthesised call": f"{POLICY}def f():\n    return (  # a\n        FSDP(Net(), auto_wrap_policy=ModuleWrapPolicy({{Block}}))  # b\n    )\n",
    "line continuation": f"{FSDP}model = \\\n    FSDP(model, \\\n    use_orig_params=True)\n",
    "policy only read once, in a function": f"{POLICY}def f(m):\n    p = ModuleWrapPolicy({{Block}})  # p\n    return FSDP(m, auto_wrap_policy=p)  # r\n",
    # methods
    "clipping with comments": f"{FSDP}model = FSDP(m)\nmodel.clip_grad_norm_(  # a\n    # b\n    1.0,  # c\n    # d\n)  # e\n",
    "state dict with comments": f"{FSDP}model = FSDP(m)\nsd = (\n    model  # a\n    .state_dict()  # b\n)\nmodel.load_state_dict(  # c\n    sd  # d\n)\n",
    "context with comments": (
        f"{CTX}model = FSDP(m)\n# a\nwith FSDP.state_dict_type(  # b\n    model,  # c\n    StateDictType.FULL_STATE_DICT,  # d\n"
        "):  # e\n    # f\n    sd = model.state_dict()  # g\n    # h\n# i\n"
    ),
    "contexts of one statement with comments": (
        f"{CTX}model = FSDP(m)\nwith FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT), torch.no_grad():  # a\n"
        "    sd = model.state_dict()  # b\n"
    ),
    "context in a context": (
        f"{CTX}model = FSDP(m)\nema = FSDP(n)\nwith FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):  # a\n"
        "    # b\n    with FSDP.state_dict_type(ema, StateDictType.FULL_STATE_DICT):  # c\n        sd = ema.state_dict()  # d\n"
        "    sd = model.state_dict()  # e\n"
    ),
    "context of the run with comments": (
        f"{CTX}model = FSDP(m)\nwith FSDP.state_dict_type(  # a\n    model,  # b\n    kind,  # c\n) as x:  # d\n"
        "    sd = model.state_dict()  # e\n"
    ),
    "type that goes with comments": (
        f"{CTX}model = FSDP(m)\ndef f():\n    # a\n    FSDP.set_state_dict_type(  # b\n        model,  # c\n"
        "        StateDictType.SHARDED_STATE_DICT,\n    )  # d\n    # e\n    return model.state_dict()  # f\n"
    ),
    "optimizer states with comments": (
        f"{CTX}model = FSDP(m)\ns = FSDP.full_optim_state_dict(  # a\n    model,  # b\n    o,  # c\n    rank0_only=True,  # d\n"
        "    # e\n)  # f\n"
    ),
    "states that are loaded with comments": (
        f"{CTX}model = FSDP(m)\n# a\nr = FSDP.optim_state_dict_to_load(  # b\n    s,  # c\n    model,  # d\n    o,  # e\n"
        ")  # f\n# g\no.load_state_dict(  # h\n    r  # i\n)  # j\n"
    ),
    "states that are loaded at once with comments": (
        f"{CTX}model = FSDP(m)\no.load_state_dict(  # a\n    FSDP.scatter_full_optim_state_dict(  # b\n        s,  # c\n"
        "        model,  # d\n    )  # e\n)  # f\n"
    ),
    "shards of an optimizer with comments": (
        f"{CTX}from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict  # a\nmodel = FSDP(m)\n"
        "r = load_sharded_optimizer_state_dict(  # b\n    model.state_dict(),  # c\n    'o',  # d\n    reader,  # e\n)  # f\n"
        "o.load_state_dict(FSDP.optim_state_dict_to_load(model, o, r['o']))\n"
    ),
    "former checkpoint functions with comments": (
        f"{CTX}from torch.distributed.checkpoint import (  # a\n    save_state_dict,  # b\n)\nmodel = FSDP(m)\n"
        "save_state_dict(  # c\n    s,  # d\n    w,  # e\n    None,  # f\n    0,  # g\n)  # h\n"
    ),
    "own dcp": (
        f"{CTX}from torch.distributed.checkpoint import load_state_dict\ndcp = 1\nmodel = FSDP(m)\nload_state_dict(s, r)\n"
    ),
    # names of ours that the program has already
    "own build_mesh": f"{FSDP}def build_mesh(m, c):\n    return FSDP(m, sharding_strategy=c)\n",
    "parameter fully_shard": f"{FSDP}def f(m, fully_shard=True):\n    if fully_shard:\n        m = FSDP(m)\n    return m\n",
    "own no_sync": f"{FSDP}def no_sync(m):\n    return m.no_sync()\nmodel = FSDP(m)\nwith no_sync(model):\n    pass\n",
    "local no_sync": f"{FSDP}def f(m):\n    m = FSDP(m)\n    no_sync = m.no_sync if x else other\n    with no_sync():\n        pass\n",
    "torch's clip_grad_norm_": f"{FSDP}from torch.nn.utils import clip_grad_norm_\nmodel = FSDP(m)\nn = model.clip_grad_norm_(1.0)\nclip_grad_norm_(p, 1.0)\n",
    "own get_model_state_dict": f"{FSDP}def get_model_state_dict(m):\n    return m.state_dict()\nmodel = FSDP(m)\nget_model_state_dict(model)\n",
    "own module": f"{POLICY}def f(module, fsdp_kwargs):\n    module = FSDP(module, auto_wrap_policy=ModuleWrapPolicy({{Block}}))\n    return module\n",
    # aliases and values
    "class in a tuple of types": f"{FSDP}TYPES = (DDP, FSDP)\nmodel = FSDP(m)\nisinstance(model, TYPES)\n",
    "class as an attribute": f"{FSDP}class T:\n    wrapper = FSDP\n    def go(self, m):\n        return self.wrapper(m)\n",
    "None check": f"try:\n    {FSDP}except ImportError:\n    FSDP = None\nif FSDP is not None and isinstance(m, FSDP):\n    pass\nm = FSDP(m)\n",
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in PROGRAMS.items()])
def test_result_is_whole(text: str, form: str) -> None:
    outcome = run(text, Options(form))
    assert not outcome.report.errors
    assert broken(outcome, form) == []


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in PROGRAMS.items()])
def test_bridge_changes_lines_that_name_a_module_only(text: str) -> None:
    before, after = text.splitlines(), run(text, Options("bridge")).after.splitlines()
    assert all("torch.distributed" in line for line in before if line not in after)
    assert all("fsdp_migrate" in line for line in after if line not in before)


def test_deep_expression_is_named_and_nothing_fails() -> None:
    outcome = run(FSDP + "x = " + "+".join(["1"] * 3000) + "\nmodel = FSDP(model)\n")
    assert outcome.report.errors or broken(outcome) == []
