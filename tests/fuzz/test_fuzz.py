"""Programs at random: what must hold for every program holds for them. `make fuzz` draws many more."""

from pathlib import Path
from random import Random

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from fsdp_migrate.settings import Options

from .announced import by_hand, refused, said_of_the_same
from .checks import FORMS, FSDP, POLICY, run, wrong
from .grammar import program
from .switches import migrated, named, under_switches


# A seed is not made smaller. The same programs in each run: `make fuzz` has others.
@settings(phases=(Phase.explicit, Phase.reuse, Phase.generate), derandomize=True)
@given(st.integers(0, 2**32), st.sampled_from(FORMS))
def test_random_programs_are_whole(seed: int, form: str) -> None:
    assert wrong(program(Random(seed)), form) == []


_PLAIN = (
    f"{POLICY}model = Net()\nmodel = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({{Block}}))\n"
)
_GONE = "from torch.distributed.fsdp import CPUOffload\n"

# What random programs broke, made small.
FOUND = {
    # an import goes away above or below what is no statement of its own: once an endless loop
    **{
        f"{name} {where}": text
        for name, lines in {
            "a form feed": "\f\n",
            "a form feed in front of code": "\f",
            "form feeds": "\f\n\f\n\f",
            "a backslash": "\\\n",
            "backslashes": "\\\n\\\n",
            "a backslash and an empty line": "x = 1\n\\\n\ny = 2\n",
        }.items()
        for where, text in {
            "below the import": _PLAIN.replace("FSDP\n", f"FSDP\n{lines}", 1),
            "above the import": lines + _PLAIN,
            "above the call": _PLAIN.replace("model = Net", f"{lines}model = Net"),
            "between imports": _PLAIN.replace(FSDP, FSDP + lines + _GONE + lines),
            "in a function": f"def f(m):\n    {FSDP}{lines if lines.isspace() else ''}    return FSDP(m)\n",
        }.items()
    },
    **{
        f"an FSDP1 name inside of {argument}": (
            f"{POLICY}from torch.distributed.fsdp import CPUOffload, MixedPrecision, ShardingStrategy\nmodel = FSDP(Net(), {argument})\n"
        )
        for argument in (
            "cpu_offload=CPUOffload(f(FSDP))",
            "mixed_precision=MixedPrecision(param_dtype=types[FSDP])",
            "sharding_strategy=ShardingStrategy.FULL_SHARD if f(FSDP) else None",
            "auto_wrap_policy=ModuleWrapPolicy({Block, FSDP})",
        )
    },
    "a new import among mixed line ends": (
        "from __future__ import annotations\r\nimport os\rimport torch.distributed.fsdp as fsdp\n"
        "with fsdp.FullyShardedDataParallel.state_dict_type(m, fsdp.StateDictType.FULL_STATE_DICT):\r"
        "    sd = m.state_dict()\n"
    ),
    "an import that others join keeps its own line ends": (
        "\nfrom m import Block,\\\r    Net\n\nimport torch\n"
        "if a:\n    from torch.distributed.fsdp.wrap import ModuleWrapPolicy\nmodel = Net()\n"
        "model = torch.distributed.fsdp.FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy({Block}))\n"
    ),
    "a new import below a form feed in a comment": (
        "# a\f# b\x0b\x1c\n# c\n\nimport torch.distributed.fsdp as fsdp\n"
        "with fsdp.FullyShardedDataParallel.state_dict_type(m, fsdp.StateDictType.FULL_STATE_DICT):\n"
        "    sd = m.state_dict()\n"
    ),
    "a lone carriage return in an argument": (
        f"{FSDP}def build():\n    return FSDP(Net(\n))\n  # off\n"
    ).replace("\n", "\r"),
    "a model over lines that end in a lone CR": (
        f"{POLICY}def f():\n    return FSDP(Net  # in\n  (), sync_module_states=True)\n".replace(
            "\n", "\r"
        )
    ),
}
# Those that are plain text, each below a line with its name.
_SECTIONS = (Path(__file__).parent / "found.txt").read_text("utf-8").split("=== ")[1:]
FOUND |= dict(section.split("\n", 1) for section in _SECTIONS)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in FOUND.items()])
def test_what_random_programs_found(text: str, form: str) -> None:
    compile(text, "<before>", "exec")
    assert wrong(text.encode(), form) == []


def test_a_use_among_the_arguments_of_a_constructor_takes_one_run() -> None:
    text = FOUND["a norm that is clipped among the arguments of a constructor"]
    once = run(text, Options("torch"))
    assert "if torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0).full_tensor():" in once.after
    assert not once.report.manual
    assert run(once.data, Options("torch")).data == once.data


@pytest.mark.parametrize("space", ["\r", "\f", "\t", "  \\\r\r"])
def test_comments_in_a_call_with_lone_carriage_returns(space: str) -> None:
    """A C tokenizer raises there since Python 3.12."""
    text = "model = Net()\nmodel = FSDP(  # a\n    model,  # b\n    auto_wrap_policy=ModuleWrapPolicy(\n{Block}),\n)\n"
    text = f"{POLICY}{text}".replace("\n", "\r").replace("(\r{", f"(\r{space}{{")
    assert wrong(text.encode(), "auto") == []
    assert "fully_shard" in run(text).after


def test_a_coding_cookie_in_a_file_with_lone_carriage_returns() -> None:
    data = f"# -*- coding: latin-1 -*-\n{FSDP}model = FSDP(model)  # é\n".replace(
        "\n", "\r"
    ).encode("latin-1")
    assert wrong(data, "auto") == []
    assert "fsdp_migrate.runtime" in run(data, Options("bridge")).after


@pytest.mark.parametrize(
    "text", ["", "\n", "# fsdp\n", "# FullyShardedDataParallel", "\f", "\\\n\n# fsdp"]
)
def test_nearly_empty_files_stay(text: str) -> None:
    assert not run(text).changed


def test_switches_are_read_from_the_findings() -> None:
    """`make fuzz` and `fuzz.training` explain a difference in torch's form by the switches that findings name."""
    found = named(f"{_PLAIN}print(model.rank)\ntorch.save(model.state_dict(), 'model.pt')\n")
    assert {
        "zero_gradients": "at the constructor",
        "interface": "at its line",
    }.items() <= found.items()


def test_switches_are_around_a_constructor_that_is_a_value() -> None:
    source = (
        "import functools\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    )
    source += "shard = functools.partial(FSDP, use_orig_params=True)\nmodel = shard(Net())\n"
    assert "with like_fsdp1(model, " in under_switches(source)["zero_gradients"]


def test_what_raises_is_announced_by_a_finding_at_its_line() -> None:
    """A finding elsewhere that needs the user says nothing of it, but for a constructor that keeps FSDP1's model."""
    source = f"import torch\n{_PLAIN}model.clip_grad_norm_(1.0, float('inf'))\nprint(model)\n"
    after = migrated(source, "torch").splitlines()
    at = {line.partition("(")[0]: number for number, line in enumerate(after, 1)}
    clip, show = (
        f'File "<program>", line {at[n]}' for n in ("torch.nn.utils.clip_grad_norm_", "print")
    )
    assert by_hand(source, "torch", [clip]) == ["FSDP301"]
    assert by_hand(source, "torch", [show]) == []
    kept = source.replace("model, auto_wrap_policy=", "model, **options, auto_wrap_policy=")
    assert by_hand(kept, "torch", ['File "<program>", line 1']) == ["FSDP002"]


def test_what_changes_numbers_is_announced_by_what_changes_some() -> None:
    source = f"{_PLAIN}model.clip_grad_norm_(1.0, float('inf'))\n"
    assert by_hand(source, "torch", []) == []
    assert by_hand(f"{source}model.apply(init)\n", "torch", []) == ["FSDP322"]


def test_what_the_runtime_says_in_place_is_announced_by_the_finding_about_the_same() -> None:
    source = _PLAIN.replace(
        "{Block})", "{Block}), use_orig_params=True, mixed_precision=MixedPrecision(torch.half)"
    ).replace("as FSDP", "as FSDP, MixedPrecision")
    evaluates = f"{source}print(model(x).item())\n"
    assert said_of_the_same(evaluates, {"FSDP213"}) == ["FSDP003 as the runtime says"]
    assert said_of_the_same(source, {"FSDP213"}) == []
    assert said_of_the_same(evaluates, {"FSDP213", "FSDP302"}) == []


def test_a_refusal_of_the_runtime_announces_itself() -> None:
    source = f"{_PLAIN}x = MixedPrecision()\n".replace(
        "{Block})", "{Block}), mixed_precision=MixedPrecision(param_dtype=x)"
    ).replace("as FSDP", "as FSDP, MixedPrecision")
    refusal = (
        'File "site-packages/fsdp_migrate/runtime/in_place.py", line 1\nValueError: BatchNorm2d; x'
    )
    other = 'File "site-packages/torch/nn/batchnorm.py", line 1\nRuntimeError: x'
    assert refused(source, "auto", [refusal], [refusal]) == ["ValueError: BatchNorm2d"]
    source += "norm = torch.nn.BatchNorm2d(8)\n"
    assert refused(source, "torch", [other], [refusal]) == ["FSDP003 about BatchNorm"]
    assert refused(source, "auto", [other], [other]) == []


def test_a_program_whose_constructors_are_by_hand_stays() -> None:
    head = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    head += "from torch.distributed.fsdp.wrap import CustomPolicy\n"
    source = f"{head}model = FSDP(model, auto_wrap_policy=CustomPolicy(lambda m: m))\n"
    assert migrated(source, "torch") == source
