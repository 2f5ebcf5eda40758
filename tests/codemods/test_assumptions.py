"""`--form torch`: what it assumes of a program, at its lines where the files show them, else at each constructor."""

import re
from itertools import chain
from pathlib import Path

import pytest

from fsdp_migrate.codemods.assumptions.table import ASSUMPTIONS
from fsdp_migrate.engine import analyse_source
from fsdp_migrate.findings import Severity
from fsdp_migrate.source import Source

from .programs import analysed

TRAIN = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from model import Block, Net


def main():
    model = Net()
    model = FSDP(model, use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters())
"""
ALWAYS = (
    "Assumes every forward pass uses every trained parameter",
    "Assumes the optimizer is created after this line",
    "Assumes nothing depends on the names of classes",
)
# A line that makes an assumption matter.
MATTERS = {
    "p.no_weight_decay = True": "Assumes no code sets attributes on parameters",
    "setattr(p, 'expert', 1)": "Assumes no code sets attributes on parameters",
    "x.data = p.data * 0.9": "Assumes no code assigns `p.data = x` to a parameter",
    "optimizer.load_state_dict(x)": "Assumes `model.state_dict()` is saved only with",
    "with torch.autocast('cuda'): model(1)": "Assumes one forward pass per `torch.autocast` block",
    "from transformers import AutoModel": "Assumes no code compares or saves the class names",
    "@dataclass\n    class Output:\n        loss: torch.Tensor": "Assumes no forward returns a dataclass",
    '@dataclass\n    class Loss(O):\n        """Of it."""\n\n        x: FloatTensor': "Assumes no forward returns a dataclass",
    "with torch.no_grad(): model(1)": "Assumes no code reads or changes parameters, or creates",
    "def forward(self, x, seen):\n        seen.append(x)": "Assumes no unit fills a list",
    "net.apply(print)": "Assumes functions passed to `model.apply` do not read parameters",
    "print(block.module)": "Assumes no other code uses FSDP1's methods",
    "print(getattr(model, name))": "Assumes no other code uses FSDP1's methods",
}
# A line that breaks one, of a model or its parameters, and how the finding there begins.
BREAKS = {
    "model.save_pretrained('x')": "With transformers before 4.57, this saves the name of the sharded class",
    "print(model.rank)": "This raises `AttributeError`: an FSDP2 model has no `rank`",
    "print(hasattr(model, 'no_sync'))": "This finds nothing: an FSDP2 model has no `no_sync`",
    "model._orig_mod.load_state_dict({})": "This accepts only shards, and raises for whole tensors",
    "model.load_state_dict({})": "This accepts only shards, and raises for whole tensors",
    "best = model.state_dict()": "This returns only this rank's shards, which later steps change",
    "model.head.weight.data = x": "This assignment has no effect",
    "print([m for m in model.modules() if type(m).__name__ == 'Block'])": "The class of a sharded module has another name",
}


def _assumed(folder: Path, text: str, form: str = "torch", **files: str) -> dict[int, list[str]]:
    """What is assumed, by line, in the order of the findings."""
    more = {f"{name}.py": text for name, text in files.items()}
    program = analysed(folder, {"train.py": text, "model.py": "class Net: ...\n", **more}, form)
    found: dict[int, list[str]] = {}
    for each in program.findings:
        if each.code == "FSDP003":
            found.setdefault(each.line, []).append(each.message)
            at_constructor = each.construct == "fully_shard"
            assert each.action.value == ("rewrite" if at_constructor else "manual")
            assert each.assumption == at_constructor
    return found


def _said(folder: Path, text: str, form: str = "torch", **files: str) -> list[str]:
    """What is assumed at the constructor, and nowhere else."""
    found = _assumed(folder, text, form, **files)
    line = 1 + text[: text.index("FSDP(model")].count("\n")
    assert found.keys() <= {line}
    return found.get(line, [])


def _without_place(message: str) -> str:
    return re.sub(r" Check (?:for example )?`.*?`\.(?= |$)", "", message)


def _place_in(said: list[str], start: str) -> str:
    """The only place that the message with a beginning names, without its folder."""
    (message,) = (message for message in said if message.startswith(start))
    (place,) = re.findall(r"(?<= Check `)[^`]*(?=`\. |`\.$)", message)
    return place.rpartition("/")[2]


def test_what_is_assumed_of_every_program(tmp_path: Path) -> None:
    said = _said(tmp_path, TRAIN)
    assert len(said) == len(ALWAYS)
    assert all(any(message.startswith(start) for message in said) for start in ALWAYS)


@pytest.mark.parametrize("form", ["auto", "bridge"])
def test_the_other_forms_assume_nothing(form: str, tmp_path: Path) -> None:
    assert _said(tmp_path, TRAIN, form) == []


@pytest.mark.parametrize("line", MATTERS)
def test_what_is_assumed_where_it_matters(line: str, tmp_path: Path) -> None:
    start = MATTERS[line]
    assert not any(message.startswith(start) for message in _said(tmp_path, TRAIN))
    said = _said(tmp_path, f"{TRAIN}    {line}\n")
    assert len(said) == len(ALWAYS) + 1
    assert sum(message.startswith(start) for message in said) == 1
    # A file that the model may come to need not mention FSDP.
    text = f"def use(model, p):\n    {line}\n"
    elsewhere = _said(tmp_path, f"import used\n{TRAIN}", used=text)
    assert list(map(_without_place, elsewhere)) == list(map(_without_place, said))
    # Both name the line that the words end on.
    assert _place_in(said, start) == f"train.py:{len(TRAIN.splitlines()) + len(line.splitlines())}"
    assert _place_in(elsewhere, start) == f"used.py:{len(text.splitlines())}"


# What looks like that, and has nothing to do with the model after it is sharded.
OTHERS = {
    "a dataclass without tensors": "@dataclass\nclass Params:\n    width: int\n\n    def use(self, x: Tensor): ...\n",
    "an attribute of itself": "class State:\n    def __getitem__(self, key):\n        return getattr(self, key)\n",
    "first values": "class Net:\n    def __init__(self):\n        self.apply(self._init)\n",
    "first values in a method": (
        "class Net:\n    def __init__(self):\n        self.start()\n\n    def start(self):\n        self.apply(print)\n"
    ),
    "names that begin alike": "def make(name):\n    return Endpoint(inference_model_name=name)\n",
    "rules": "def check(rule, text, config):\n    return rule.apply(text, config)\n",
    "a docstring": (
        '@dataclass\nclass Params:\n    size: int = 1\n    """Tensor parallel size, as in `model.state_dict()`."""\n'
    ),
    "an error": "def fail(error):\n    raise ValueError(f'is no {type(error).__name__}, but model.rank')\n",
    "settings": "def use(args, params):\n    params.folder = args.rank\n    return args.mixed_precision\n",
    "a tokenizer": "from transformers import AutoTokenizer\n\n\ndef use(tokenizer):\n    tokenizer.save_pretrained('x')\n",
    "a schedule": "def save(scheduler):\n    return scheduler.state_dict()\n",
    "a batch": "def fill(batch, x):\n    batch.data = x\n",
    "a class of a module": "def load(module, name):\n    return getattr(module, name)\n",
    "another engine": "from megatron.core import mpu\n\n\ndef move(p):\n    p.data = p.data.cpu()\n    return p.no_sync\n",
}


@pytest.mark.parametrize("text", OTHERS.values(), ids=OTHERS)
def test_what_does_not_matter_is_not_assumed(text: str, tmp_path: Path) -> None:
    assert len(_said(tmp_path, f"import used\n{TRAIN}", used=text)) == len(ALWAYS)
    assert len(_said(tmp_path, f"{TRAIN}\n\n{text}")) == len(ALWAYS)


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_a_method_that_may_run_after_the_sharding_matters(
    is_elsewhere: bool, tmp_path: Path
) -> None:
    used = OTHERS["first values in a method"]
    train = TRAIN
    if is_elsewhere:
        train += "    model.start()\n"
    else:
        used += "\n\ndef again(net):\n    net.start()\n"
    said = _said(tmp_path, f"import used\n{train}", used=used)
    assert any(message.startswith("Assumes functions passed to `model.apply`") for message in said)


@pytest.mark.parametrize("given", ["", "use_orig_params=False", "use_orig_params=flag", "**more"])
def test_flat_parameters_lacked_attributes_under_fsdp1_too(given: str, tmp_path: Path) -> None:
    setting = "for p in model.parameters():\n        p.expert = True\n    model = FSDP("
    text = TRAIN.replace("use_orig_params=True", given).replace("model = FSDP(", setting)
    said = str(_assumed(tmp_path, text))
    assert ("attribute is lost" in said) == (given in ("use_orig_params=flag", "**more"))


@pytest.mark.parametrize("write", ["p.data.copy_(average)", "p.copy_(average)", "p.data.mul_(0.9)"])
def test_parameters_that_a_function_writes_around_a_forward_without_gradients(
    write: str, tmp_path: Path
) -> None:
    swap = f"\n\ndef swap(model, average):\n    for p in model.parameters():\n        {write}\n"
    run = "    swap(model, 1)\n    with torch.no_grad(): model(1)\n"
    found = _assumed(tmp_path, TRAIN + run + swap)
    said = [text for texts in found.values() for text in texts]
    assert sum("leaves the root's parameters gathered" in text for text in said) == 1
    found = _assumed(tmp_path, TRAIN + "    swap(model, 1)\n" + swap)
    assert "leaves the root's parameters gathered" not in str(found)


def test_data_that_is_swapped_with_other_data_has_no_effect(tmp_path: Path) -> None:
    found = _assumed(
        tmp_path, f"{TRAIN}    for p in model.parameters(): p.data, kept = kept, p.data\n"
    )
    assert "This assignment has no effect" in str(found)


def test_attributes_before_enable_wrap_are_lost_unless_its_parameters_are_flat(
    tmp_path: Path,
) -> None:
    wrapped = (
        "with enable_wrap(wrapper_cls=FSDP, use_orig_params=True):\n        model = wrap(model)"
    )
    text = TRAIN.replace("ModuleWrapPolicy", "enable_wrap, wrap")
    text = text.replace("model = FSDP(model, use_orig_params=True)", wrapped)
    text = text.replace(
        "    with", "    for p in model.parameters():\n        p.kept = True\n    with"
    )
    found = {
        line: said
        for line, said in _assumed(tmp_path, text).items()
        if "This attribute is lost" in str(said)
    }
    assert len(found) == 1
    assert "p.kept" in text.splitlines()[next(iter(found)) - 1]


@pytest.mark.parametrize("line", BREAKS)
def test_what_breaks_one_is_found_at_its_line(line: str, tmp_path: Path) -> None:
    text = f"{TRAIN}    {line}\n"
    found = _assumed(tmp_path, text)
    at_constructor, (at_line,) = found.values()
    assert [*found][1] == text.count("\n")
    assert at_line.startswith(BREAKS[line])
    assert len(at_constructor) == len(ALWAYS)  # it is not said twice
    others = text.replace(f"    {line}", f"    if not use_fsdp:\n        {line}")
    assert len(_said(tmp_path, others)) == len(ALWAYS) + 1
    second = f"{TRAIN}    fully_shard(model)\n    {line}\n"  # is FSDP2's already
    assert len(_said(tmp_path, second)) == len(ALWAYS) + 1


def test_an_apply_that_has_a_finding_is_no_assumption(tmp_path: Path) -> None:
    assert len(_said(tmp_path, f"{TRAIN}    model.apply(print)\n")) == len(ALWAYS)
    assert len(_said(tmp_path, f"{TRAIN}    x = model.apply(print)\n")) == len(ALWAYS)


@pytest.mark.parametrize(
    "layer", ["nn.BatchNorm2d(8)", "build(dict(type='BN'))", "import timm", "nn.LayerNorm(8)"]
)
def test_a_batch_norm_in_low_precision_is_assumed_away(layer: str, tmp_path: Path) -> None:
    options = (
        "auto_wrap_policy=ModuleWrapPolicy({Block}), mixed_precision=MixedPrecision(torch.bfloat16)"
    )
    start = "Assumes no unit in low precision contains a BatchNorm"
    text = TRAIN.replace("FSDP(model, ", f"FSDP(model, {options}, ")
    said = _said(tmp_path, f"import used\n{text}", used=f"layer = 1\n{layer}\n")
    assert any(each.startswith(start) for each in said) is ("LayerNorm" not in layer)
    if "LayerNorm" not in layer:
        assert _place_in(said, start) == "used.py:2"
    assert not any(each.startswith(start) for each in _said(tmp_path, TRAIN))


# Of a model that only a test for its class shows.
TESTED = {
    "isinstance(m, FSDP) and m.mixed_precision": True,
    "isinstance(m, (FSDP, DDP)) and m.mixed_precision": False,
    "not isinstance(m, FSDP) or m.mixed_precision": True,
    "isinstance(m, FSDP) or m.mixed_precision": False,
    "m.mixed_precision if isinstance(m, FSDP) else None": True,
    "isinstance(m, FSDP) and n.mixed_precision": False,
    "m.mixed_precision and isinstance(m, FSDP)": False,
}


@pytest.mark.parametrize("test", TESTED)
def test_an_attribute_behind_a_test_for_the_class_raises(test: str, tmp_path: Path) -> None:
    """The rewritten test holds under FSDP2, too, so the attribute is asked for."""
    text = f"{TRAIN}\n\ndef look(m, n):\n    return {test}\n"
    found = _assumed(tmp_path, text)
    line = len(text.splitlines())
    if TESTED[test]:
        assert found[line][0].startswith(
            "This raises `AttributeError`: an FSDP2 model has no `mixed_precision`"
        )
    else:
        assert line not in found


EVALUATED = f"""{TRAIN}    for epoch in range(3):
        LINE
        train(model, optimizer)
        with torch.no_grad():
            model(1)
"""
# What changes `requires_grad` of a sharded model once training has begun.
FREEZING = {
    "model.unfreeze_all()": True,
    "model.module.freeze()": True,
    "model.requires_grad_(False)": True,
    "model.head.weight.requires_grad = True": True,
    "tokenizer.freeze()": False,
    "print(model.frozen)": False,
    "print(model.head.weight.requires_grad)": False,
}


@pytest.mark.parametrize("line", FREEZING)
def test_what_is_frozen_after_an_evaluation_is_lost(line: str, tmp_path: Path) -> None:
    """Run on two ranks: units that a forward without gradients left gathered train as before."""
    number = EVALUATED[: EVALUATED.index("LINE")].count("\n") + 1
    found = _assumed(tmp_path, EVALUATED.replace("LINE", line)).get(number, [])
    lost = [each for each in found if each.startswith("This change of `requires_grad` is lost")]
    assert bool(lost) is FREEZING[line]
    # Before training, or where nothing is evaluated.
    above = _assumed(tmp_path, f"{TRAIN}    {line}\n    with torch.no_grad(): model(1)\n")
    no_evaluation = _assumed(tmp_path, EVALUATED.replace("LINE", line).replace("no_grad", "grad"))
    for others in (above, no_evaluation):
        assert "`requires_grad` is lost" not in str(others)


def test_an_assumption_of_every_program_names_what_speaks_against_it(tmp_path: Path) -> None:
    text = TRAIN.replace("import torch\n", "import torch\nfrom ddp import wrap\n", 1)
    ddp = "def wrap(model):\n    return DDP(model, find_unused_parameters=True)\n"
    said = _said(tmp_path, text, ddp=ddp)
    assert _place_in(said, ALWAYS[0]) == "ddp.py:2"


def test_the_places_of_an_assumption(tmp_path: Path) -> None:
    """Of the first files, those that mention FSDP first; comments are none."""
    start = "Assumes no code assigns `p.data = x`"
    text = f"import a, b, c, d\n{TRAIN}    x.data = p.data * 0.9\n    y.data = 1\n"
    line = len(text.splitlines()) - 1
    write = "def use(p, x):\n    # p.data = x\n    p.data = x\n"
    [message] = [
        each
        for each in _said(tmp_path, text, a=write, b=write, c=write, d="# p.data = x\n")
        if each.startswith(start)
    ]
    assert f"/train.py:{line}`, `" in message
    assert "/a.py:3`. If this does not hold, use `--form auto`" in message


def test_the_rows_begin_with_the_silent_ones(tmp_path: Path) -> None:
    said = _said(tmp_path, f"{TRAIN}    {'; '.join([*MATTERS][:4])}; print(block.module)\n")
    severity = {assumption.message(): assumption.severity for assumption in ASSUMPTIONS}
    said = list(map(_without_place, said))
    assert {severity[message] for message in said} == {*Severity}
    order = [*Severity].index
    assert [*severity.values()] == sorted(severity.values(), key=order)


def test_a_constructor_that_stays_assumes_nothing(tmp_path: Path) -> None:
    text = TRAIN.replace("FSDP(model, ", "FSDP(model, mesh=mesh, ")
    assert _said(tmp_path, text) == []


def test_other_forms_of_the_call_assume_the_same(tmp_path: Path) -> None:
    text = TRAIN.replace("model = FSDP(model, use_orig_params=True)", "models = [FSDP(model)]")
    assert _said(tmp_path, text) == _said(tmp_path, TRAIN)


@pytest.mark.parametrize(
    ("types", "matters"),
    [
        ("param_dtype=torch.bfloat16, reduce_dtype=torch.float32", True),
        ("reduce_dtype=torch.bfloat16", True),
        ("param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16", False),
        ("param_dtype=torch.bfloat16", False),
    ],
)
def test_the_type_in_which_gradients_add_up(types: str, matters: bool, tmp_path: Path) -> None:
    """Also where an earlier run has written the constructor under `like_fsdp1`."""
    text = (
        "import torch\n"
        "from model import Net\n"
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision\n\n"
        f"model = FSDP(Net(), mixed_precision=MixedPrecision({types}))\n"
        "with model.no_sync():\n"
        "    model(batch).mean().backward()\n"
        "model(batch).mean().backward()\n"
    )
    source = Source(Path("/nowhere/train.py"), "train.py", text.encode())
    in_auto = analyse_source(source).changes[0].after.decode()
    for each in (text, in_auto):
        said = [*chain.from_iterable(_assumed(tmp_path, each).values())]
        assert (
            any(
                "it does not matter that gradients under `no_sync` add up in `reduce_dtype`"
                in message
                for message in said
            )
            is matters
        )


_LOW = "use_orig_params=True, mixed_precision=MixedPrecision(torch.bfloat16)"
_NUMBER = "print(loss_of(model).item())"


@pytest.mark.parametrize(
    ("given", "line", "matters"),
    [
        (_LOW, _NUMBER, True),
        (_LOW, "print(model(x).loss.detach().item())", True),
        ("use_orig_params=True, mixed_precision=policy", _NUMBER, True),
        (_LOW, f"with torch.no_grad(): {_NUMBER}", False),
        (_LOW, "print(norm_of(model).item())", False),
        (_LOW, "print(model.device.item())", False),
        ("use_orig_params=True", _NUMBER, False),
        ("use_orig_params=True, mixed_precision=MixedPrecision(None, torch.half)", _NUMBER, False),
        ("mixed_precision=MixedPrecision(torch.bfloat16)", _NUMBER, False),
    ],
)
def test_evaluations_that_record_gradients(
    given: str, line: str, matters: bool, tmp_path: Path
) -> None:
    """After one FSDP1 lost gradients, but raised where parameters were flat."""
    functions = "\n\ndef loss_of(net):\n    return net(1).mean()\n\n\ndef norm_of(net):\n    return net.weight.norm()\n"
    text = TRAIN.replace("use_orig_params=True", given)
    found = _assumed(tmp_path, f"{text}    {line}\n{functions}")
    at = 1 + text.count("\n")
    said = [
        message
        for message in found.get(at, ())
        if message.startswith("This forward records gradients")
    ]
    assert bool(said) is matters


EVALUATIONS = {
    "a number later": ("loss = model(1)\n    print(loss.item())", True),
    "a list of numbers": (
        "losses = []\n    for x in range(2):\n        losses.append(model(x).mean().item())", True,
    ),
    "a sum that is told": (
        "total = 0\n    for x in range(2):\n        total += model(x).mean().detach()\n    print(f'{total}')", True,
    ),
    "dropped": ("model(1)", True),
    "counted": ("right = (model(1).argmax(-1) == 2).sum()\n    return right", True),
    "returned": ("return model(1).mean()", False),
    "kept elsewhere": ("state['loss'] = model(1)", False),
    "given away": ("out = model(1)\n    meter.update(out)", False),
    "gathered and returned": ("outs = []\n    outs.append(model(1))\n    return outs", False),
    "with a backward": ("print(1, model(1).mean().backward())", False),
    "without gradients": ("with torch.inference_mode():\n        model(1)", False),
}  # fmt: skip


@pytest.mark.parametrize("name", EVALUATIONS)
def test_evaluations_in_a_function(name: str, tmp_path: Path) -> None:
    lines, matters = EVALUATIONS[name]
    text = TRAIN.replace("use_orig_params=True", _LOW)
    rest = "\n\ndef train(model):\n    model(2).mean().backward()\n"
    text = f"{text}    evaluate(model)\n    train(model)\n\n\ndef evaluate(model):\n    {lines}\n{rest}"
    found = _assumed(tmp_path, text)
    said = [line for line, told in found.items() if told[0].startswith("This forward records")]
    assert bool(said) is matters


@pytest.mark.parametrize(
    ("function", "call", "matters"),
    [
        ("evaluate", "evaluate(model)", True),
        ("features", "features(model)", False),
        ("validation_step", "validation_step(model)", False),
        ("evaluate", "with torch.no_grad(): evaluate(model)", False),
    ],
)
def test_an_evaluation_in_the_mode_of_evaluation(
    function: str, call: str, matters: bool, tmp_path: Path
) -> None:
    text = TRAIN.replace("use_orig_params=True", _LOW)
    made = f"def {function}(model):\n    model.eval()\n    return model(1).mean()\n"
    text = f"{text}    model(2).mean().backward()\n    {call}\n\n\n{made}"
    found = _assumed(tmp_path, text)
    said = [line for line, told in found.items() if told[0].startswith("This forward records")]
    assert bool(said) is matters


@pytest.mark.parametrize("strategy", ["FULL_SHARD", "SHARD_GRAD_OP"])
def test_units_that_free_their_parameters_after_forward(strategy: str, tmp_path: Path) -> None:
    """Where all do, a forward without gradients changes nothing; also where an earlier run has written them."""
    given = f"auto_wrap_policy=ModuleWrapPolicy({{Block}}), sharding_strategy=ShardingStrategy.{strategy}"
    text = TRAIN.replace("use_orig_params=True", given)
    text = text.replace("MixedPrecision\n", "ShardingStrategy\n")
    text = text.replace("    optimizer", "    with torch.no_grad(): model(1)\n    optimizer")
    source = Source(Path("/nowhere/train.py"), "train.py", text.encode())
    in_auto = analyse_source(source).changes[0].after.decode()
    assert "with like_fsdp1(model):" in in_auto
    for each in (text, in_auto):
        program = analysed(tmp_path, {"train.py": each, "model.py": "class Net: ...\n"}, "torch")
        said = " ".join(finding.message for finding in program.findings)
        assert "The root gets `reshard_after_forward=True`" in said
        keeps = strategy == "SHARD_GRAD_OP"
        assert ("Assumes no code reads or changes parameters, or creates" in said) is keeps
        assert ("and an optimizer created in that time would not train them" in said) is keeps


@pytest.mark.parametrize(
    ("above", "is_named"),
    [
        ("model, optimizer = build()", True),
        ("optim_g = build(model)", True),
        ("optimizer_name = 'adamw'", True),
        ("loader = build()", False),
        ("optimizer = torch.optim.AdamW(model.parameters())", False),
    ],
)
def test_an_optimizer_that_a_function_gets_above_is_named(
    above: str, is_named: bool, tmp_path: Path
) -> None:
    """One whose creation is there has a finding at its own line."""
    text = TRAIN.replace("    model = FSDP(", f"    {above}\n    model = FSDP(")
    found = [
        each
        for each in chain.from_iterable(_assumed(tmp_path, text).values())
        if "optimizer is" in each
    ]
    line = text[: text.index(above)].count("\n") + 1
    assert any(f"train.py:{line}`. " in each for each in found) is is_named
