"""What is said of commands, and of files that only have the word."""

from pathlib import Path

import pytest

from fsdp_migrate.cli import exit_code
from fsdp_migrate.discover import discover
from fsdp_migrate.engine import analyse, analyse_source
from fsdp_migrate.findings import Action
from fsdp_migrate.settings import Options
from fsdp_migrate.source import Source

from ..programs import analysed

MESH = "`dp_replicate_size` is the number of nodes"


def said(text: str, name: str = "run.sh") -> list[str]:
    report = analyse_source(Source(Path("/nowhere", name), name, text.encode()))
    assert not report.errors
    assert not report.changes
    assert all(finding.action is Action.MANUAL for finding in report.findings)
    return [f"{finding.construct} -> {finding.message}" for finding in report.findings]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("export FSDP_SHARDING_STRATEGY=SHARD_GRAD_OP", ["set `FSDP_RESHARD_AFTER_FORWARD=false` and `FSDP_VERSION=2`"]),
        ("export FSDP_SHARDING_STRATEGY=$1", ["`FSDP_VERSION=2`, and `FSDP_RESHARD_AFTER_FORWARD=true` for FULL_SHARD"]),
        ("FSDP_FORWARD_PREFETCH=false python train.py", ["Remove it"]),
        ("ACCELERATE_USE_FSDP=true python train.py", ["Add `FSDP_VERSION=2`, and `FSDP_STATE_DICT_TYPE=FULL_STATE_DICT` if"]),
        (
            "accelerate launch --use_fsdp train.py",
            ["--use_fsdp -> This selects FSDP1 unless the version is set. Add `--fsdp_version 2`"],
        ),
        (
            "accelerate launch --use-fsdp --fsdp-sharding-strategy FULL_SHARD --fsdp-use-orig-params true a.py",
            ["--use-fsdp -> This selects FSDP1", "set `--fsdp_reshard_after_forward true` and `--fsdp_version 2`", "Remove it"],
        ),
        (
            "accelerate launch --use_fsdp \\\n  --fsdp_sharding_strategy=4 \\\n  --fsdp_use_orig_params true a.py",
            ["Add `--fsdp_version 2`", f"Without a `parallelism_config` it shards over all nodes: {MESH}", "Remove it"],
        ),
        ("accelerate launch --fsdp_version 1 train.py", ["Write `2`"]),
        ("accelerate launch --fsdp_reshard_after_forward SHARD_GRAD_OP a.py", ["`--fsdp_reshard_after_forward false` and"]),
        ("accelerate launch --fsdp_state_dict_type LOCAL_STATE_DICT a.py", ["SHARDED_STATE_DICT or"]),
        ("accelerate launch --use_fsdp --fsdp_sharding_strategy no_shard a.py", ["Add", "DistributedDataParallel"]),
        ('torchrun train.py --fsdp "shard_grad_op auto_wrap offload"', ["Keep it, and add `--fsdp_config '{"]),
        ("torchrun train.py --fsdp hybrid_shard", [MESH]),
        (
            "torchrun train.py --fsdp 'full_shard auto_wrap' --fsdp_transformer_layer_cls_to_wrap GPT2Block",
            ["Keep it, and add", "Move it into `fsdp_config` as `transformer_layer_cls_to_wrap`"],
        ),
        ("accelerate launch --use_fsdp --fsdp_transformer_layer_cls_to_wrap GPT2Block a.py", ["Add `--fsdp_version 2`"]),
        ("FSDP_SYNC_MODULE_STATES=true python train.py", ["weights if `cpu_ram_efficient_loading` is true. If it is false"]),
        ("torchrun train.py --fsdp no_shard", ["DistributedDataParallel"]),
        ("python -m verl.trainer critic.strategy=fsdp", ["critic.strategy=fsdp2"]),
        ("kind=fsdp; python -m verl.trainer actor.fsdp_config.strategy=$kind", ["its FSDP1 code. Write `kind=fsdp2`"]),
        ("k=fsdp; [ $k = fsdp ] && python -m verl.trainer actor.fsdp_config.strategy=$k", ["and test for `fsdp2`"]),
        ("STRATEGY=${STRATEGY:-fsdp}; python -m verl.trainer", ["Write `STRATEGY=${STRATEGY:-fsdp2}`."]),
        ('KIND_STRATEGY="${KIND_STRATEGY:-"fsdp"}"; verl', ['Write `KIND_STRATEGY="${KIND_STRATEGY:-"fsdp2"}"`.']),
        ("python -m verl.trainer actor.strategy='fsdp' lr=1", ["Write `actor.strategy='fsdp2'`."]),
    ],
)  # fmt: skip
def test_a_command_is_answered_with_what_to_write(command: str, expected: list[str]) -> None:
    found = said(command)
    assert len(found) == len(expected)
    assert all(part in each for part, each in zip(expected, found, strict=True))


@pytest.mark.parametrize(
    "text",
    [
        "# accelerate launch --use_fsdp\n",
        "torchrun own.py --use_fsdp --fsdp-sharding FULL_SHARD\n",
        "accelerate launch --use-fsdp --fsdp-version 2 train.py\n",
        "accelerate launch train.py --fsdp_sharding_strategy FULL_SHARD\n",
        "torchrun own.py --fsdp_sharding_strategy FULL_SHARD --fsdp_min_num_params 10\n",
        "FSDP_SHARDING_STRATEGY=FULL_SHARD\npython own.py --how $FSDP_SHARDING_STRATEGY\n",
        "kind=fsdp; python -m verl.trainer --backend $kind engine=fsdp\n",
        'A_STRATEGY=${A_STRATEGY:-"fsdp"}\nif [ "${A_STRATEGY}" == "fsdp" ]; then\n  python -m verl.trainer\nfi\n',
        "torchrun train.py  # or with --fsdp full_shard\n",
        "accelerate launch --use_fsdp --fsdp_version 2 train.py\n",
        "export FSDP_VERSION=2\nexport ACCELERATE_USE_FSDP=true\n",
        "torchrun train.py --fsdp full_shard --fsdp_config '{\"version\": 2}'\n",
        "torchrun train.py --fsdp --dit_fsdp --data_parallel fsdp strategy=fsdp fsdp_size=4\n",
        "python -m verl.trainer actor.strategy=fsdp2 actor.fsdp_config.param_offload=True\n",
    ],
)
def test_what_is_no_fsdp1_is_passed_over(text: str) -> None:
    assert said(text) == []


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_command_ends_with_its_line(end: str) -> None:
    text = "accelerate launch --use_fsdp \\\n  a.py\naccelerate launch --use_fsdp \\\n  --fsdp_version 2 b.py\n"
    assert len(said(text.replace("\n", end))) == 1


def test_a_workflow_holds_commands_too() -> None:
    text = "jobs:\n  train:\n    steps:\n      - run: |\n          accelerate launch --use_fsdp train.py\n"
    assert len(said(text, "ci.yaml")) == 1
    second = text.replace("--use_fsdp", "--use_fsdp\n            --fsdp_version 2")
    assert said(second, "ci.yaml") == []


def test_a_folder_gives_only_files_that_set_it(tmp_path: Path) -> None:
    for name, text in {
        "notes.yaml": "title: FSDP vs DeepSpeed\nlocal: usage_guides/fsdp\nneeds: [test_fsdp]\n",
        "data.json": '{"text": "fsdp"}',
        "own.yaml": "fsdp_cpu_offload: true\nfsdp:\n  enabled: true\nstrategy: fsdp\n",
        "run.sh": "python fsdp.py\n",
        "broken.yaml": "{{ fsdp_config: }\n  - x: [\n",
        "run2.sh": "accelerate launch --use-fsdp a.py\n",
        "fsdp_small.json": '{"min_num_params": 2000}',
        "set.yml": "distributed_type: FSDP\nfsdp_config: {fsdp_use_orig_params: true}\n",
        "large.json": '{"fsdp_config": "' + "x" * (1 << 20) + '"}',
    }.items():
        (tmp_path / name).write_text(text)
    found = discover([tmp_path])
    sets = {"run2.sh", "fsdp_small.json", "set.yml"}
    assert {path.name for path in found.files} == {"own.yaml", "broken.yaml", *sets}
    report = analyse(found)
    assert {Path(finding.path).name for finding in report.findings} == sets
    assert [change.path.name for change in report.changes] == ["fsdp_small.json", "set.yml"]
    assert [Path(error.path).name for error in report.errors] == ["broken.yaml"]


def test_a_check_speaks_of_it_until_it_is_migrated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = 'arguments = TrainingArguments(fsdp="full_shard auto_wrap")\n'
    (tmp_path / "train.py").write_text(text)
    (tmp_path / "fsdp.yaml").write_text("distributed_type: FSDP\nfsdp_config: {}\n")
    assert exit_code(["check", str(tmp_path)]) == 1
    assert exit_code([str(tmp_path), "--diff"]) == 0
    assert capsys.readouterr().out.count("\n+++ ") == 2
    assert exit_code([str(tmp_path)]) == 0
    assert exit_code(["check", str(tmp_path)]) == 0
    assert exit_code([str(tmp_path / "fsdp.yaml")]) == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("trainer:\n  accelerator: gpu\n  strategy: fsdp\n", "FSDP806"),
        ("strategy:\n  class_path: lightning.pytorch.strategies.FSDPStrategy\n", "FSDP806"),
        ("strategy:\n  _target_: lightning.fabric.strategies.FSDPStrategy\n", "FSDP806"),
        ("actor_rollout_ref:\n  actor:\n    strategy: fsdp  # or fsdp2\n", "FSDP807"),
        ("model: verl\nenv:\n  ACTOR_STRATEGY: 'fsdp'\n", "FSDP807"),
    ],
)
def test_a_strategy_by_name_is_one_of_a_framework(text: str, expected: str) -> None:
    report = analyse_source(Source(Path("/nowhere/a.yaml"), "a.yaml", text.encode()))
    assert [finding.code for finding in report.findings] == [expected]


@pytest.mark.parametrize(
    "text",
    [
        "precision: bf16\nparallel_strategy: fsdp\n",
        "precision: 16\nmy_strategy: fsdp\ndevices: 4\n",
        "strategy: fsdp\nlr: 0.1\n",
    ],
)
def test_a_strategy_of_no_trainer_is_none_of_lightning(text: str) -> None:
    report = analyse_source(Source(Path("/nowhere/a.yaml"), "a.yaml", text.encode()))
    assert report.findings == []


@pytest.mark.parametrize(
    ("name", "first"),
    [("launch", "#!/bin/sh"), ("run", "#!/usr/bin/env bash"), ("a.sbatch", ""), ("b.bash", "")],
)
def test_a_script_is_known_by_its_ending_or_its_first_line(name: str, first: str) -> None:
    (found,) = said(f"{first}\nfor x in a; do accelerate launch --use_fsdp train.py; done\n", name)
    assert "This selects FSDP1 unless the version is set" in found


def test_a_check_lists_a_name_that_is_only_tested_for(tmp_path: Path) -> None:
    code = "import torch\n\nassert isinstance(model, torch.distributed.fsdp.FullyShardedDataParallel)\n"
    (tmp_path / "train.py").write_text(code)
    found = analyse(discover([tmp_path]), Options(only_checks=True)).findings
    assert [each.code for each in found] == ["FSDP007"]


@pytest.mark.parametrize(
    "settings",
    [
        "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n",
        "output_dir: out\nfsdp: true\nfsdp_config:\n  version: 2\n",
        "base_model: gpt2\nfsdp_version: 2\nfsdp_config:\n  offload_params: true\n",
        "base_model: gpt2\nfsdp:\n  - full_shard\n",
    ],
)
def test_programs_beside_settings_of_either_version(settings: str, tmp_path: Path) -> None:
    code = "import torch\nfrom accelerate import Accelerator\n\nmodel = Accelerator().prepare(torch.nn.Linear(2, 2))\n"
    (tmp_path / "train.py").write_text(f"{code}model(batch).sum().backward()\n")
    assert not [each.code for each in analyse(discover([tmp_path])).findings]
    (tmp_path / "settings.yaml").write_text(settings)
    assert "FSDP808" in [each.code for each in analyse(discover([tmp_path])).findings]


WORKFLOW = """\
on: push
jobs:
  train:
    container:
      image: registry/fsdp:1.2
   steps: [
"""


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        (".github/workflows/ci.yml", WORKFLOW, 0),
        ("compose.yaml", WORKFLOW, 0),
        ("chart.yaml", "image: fsdp:1.2\nargs: {{ .Values.args }\n", 0),
        ("fsdp.yaml", "fsdp_config: {fsdp_offload_params: true\n", 2),
        ("fsdp.yaml", "- fsdp: [full_shard, auto_wrap\n", 2),
        ("fsdp.json", '{"distributed_type": "FSDP",,}\n', 2),
        ("fsdp.yaml", "distributed_type: FSDP\n  mixed: [\n", 2),
    ],
)
def test_only_settings_that_do_not_parse_are_an_error(
    name: str, text: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    assert exit_code(["check", str(tmp_path)]) == code
    said = [line for line in capsys.readouterr().err.splitlines() if "does not parse" in line]
    assert len(said) == 1
    assert ("skipped" in said[0] and "`exclude`" in said[0]) == (code == 0)
    assert exit_code(["check", str(tmp_path), "--exclude", "*.y*ml", "--exclude", "*.json"]) == 0
    assert "does not parse" not in capsys.readouterr().err


def test_a_workflow_that_does_not_parse_is_searched_for_commands(tmp_path: Path) -> None:
    text = f"{WORKFLOW}      - run: accelerate launch --use_fsdp train.py\n"
    report = analyse_source(Source(tmp_path / "ci.yml", "ci.yml", text.encode()))
    assert [each.code for each in report.findings] == ["FSDP805"]
    assert not report.errors
    assert len(report.passed) == 1


@pytest.mark.parametrize(
    "code",
    [
        "Trainer(strategy='fsdp_native')",
        "name = 'fsdp'\nTrainer(strategy=name)",
        "settings = {'strategy': 'fsdp_cpu_offload'}\nTrainer(**settings)",
        "parser.add_argument('--strategy', default='fsdp')",
        "class Settings:\n    strategy: str = 'fsdp'",
        "Trainer(strategy=FSDPStrategy())",
    ],
)
def test_lightnings_strategy_is_found_wherever_it_is_given(code: str) -> None:
    imports = "from lightning.pytorch import Trainer\nfrom lightning.pytorch.strategies import FSDPStrategy\n"
    text = f"{imports}\n{code}\n"
    report = analyse_source(Source(Path("/nowhere/a.py"), "a.py", text.encode()))
    assert [each.code for each in report.findings] == ["FSDP806"]


@pytest.mark.parametrize("code", ["Trainer(strategy='ddp')", "backend = 'fsdp'", "log('fsdp')"])
def test_other_words_are_no_strategy_of_lightning(code: str) -> None:
    text = f"from lightning.pytorch import Trainer\n\n{code}\n"
    report = analyse_source(Source(Path("/nowhere/a.py"), "a.py", text.encode()))
    assert report.findings == []


LISTED = {
    "launch.json": '{"configurations": [{"args": ["--bf16", "--fsdp", "full_shard auto_wrap"],}]} // a comment\n',
    "job.yaml": 'args: ["--bf16", "--fsdp", "full_shard auto_wrap"]\n',
    "job2.yaml": "args:\n  - --bf16\n  - --fsdp\n  - full_shard auto_wrap\n",
    "run.py": 'import subprocess\n\nsubprocess.run(["torchrun", "t.py", "--fsdp", "full_shard auto_wrap", *more])\n',
    "text.py": "command = \"torchrun train.py --fsdp 'full_shard auto_wrap'\"\n",
}


@pytest.mark.parametrize("name", LISTED)
def test_a_command_in_pieces_is_read(name: str) -> None:
    (found,) = said(LISTED[name], name)
    assert "Keep it, and add `--fsdp_config '{" in found


@pytest.mark.parametrize(
    ("text", "disagree"),
    [
        ("distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: 1\n", [1]),
        ("distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n", []),
        ("lr: 1\n", []),
    ],
)
def test_variables_and_a_file_that_becomes_version_2_disagree(
    text: str, disagree: list[int], tmp_path: Path
) -> None:
    files = {
        "run.py": 'env["ACCELERATE_USE_FSDP"] = "true"\nenv["FSDP_SHARDING_STRATEGY"] = "1"\n',
        "accelerate.yaml": text,
    }
    result = analysed(tmp_path, files, "torch")
    assert (result.after["accelerate.yaml"] != text) is bool(disagree)
    said = [each.line for each in result.findings if "the two disagree" in each.message]
    assert said == disagree


def test_an_environment_in_json_is_read() -> None:
    text = '{"env": {"ACCELERATE_USE_FSDP": "true", "FSDP_SHARDING_STRATEGY": "2"}}\n'
    assert [
        "Add `FSDP_VERSION=2`" in each or "FORWARD=false" in each for each in said(text, "l.json")
    ] == [True, True]
    assert said(text.replace('{"ACC', '{"FSDP_VERSION": 2, "ACC'), "l.json") == []


@pytest.mark.parametrize(
    "text",
    [
        'parser.add_argument("--fsdp", default="")\nparser.add_argument("--use_fsdp", action="store_true")\n',
        '"""Run it by `train.py --fsdp full_shard`."""\n',
        'command = ["torchrun", "train.py", "--fsdp", "true"]\n',
        'config["fsdp"] = True\narguments.fsdp = None\n',
        'def make(fsdp="", *, kind="full_shard"):\n    pass\n',
    ],
)
def test_python_that_sets_no_fsdp1(text: str) -> None:
    assert said(text, "a.py") == []


@pytest.mark.parametrize(
    "text",
    [
        'config["fsdp"] = "full_shard auto_wrap"\n',
        'arguments.fsdp = ["shard_grad_op"]\n',
        'parser.add_argument("--fsdp", default="full_shard auto_wrap")\n',
        'def make(name, *, fsdp="full_shard"):\n    pass\n',
        'arguments = TrainingArguments(fsdp=f"{strategy} auto_wrap")\n',
        'arguments = TrainingArguments(fsdp="full_shard auto_wrap" if gpus > 1 else "")\n',
        'class Arguments(TrainingArguments):\n    fsdp: str = "full_shard"\n',
    ],
)
def test_words_that_stand_alone_have_a_finding(text: str) -> None:
    (found,) = said(text, "a.py")
    assert "This selects FSDP1. Keep it, and in `fsdp_config`, set FSDP's version to 2" in found


@pytest.mark.parametrize(
    ("needs", "expected"),
    [
        ("transformers>=5.10", "Keep it, and add `--fsdp_config '{"),
        ("transformers==5.2", "Keep it, and add `--fsdp_config '{\"version\": 2, \"reshard_after_forward\": true}'"),
        ("transformers==4.57.1", "Or launch it with `FSDP_VERSION=2`, `FSDP_RESHARD_AFTER_FORWARD=true`"),
        ("transformers==4.40", "Raise that requirement, then run fsdp-migrate again."),
    ],
)  # fmt: skip
def test_a_flag_is_of_the_releases(needs: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text(needs)
    (tmp_path / "run.sh").write_text("torchrun train.py --fsdp 'full_shard auto_wrap offload'\n")
    (found,) = analyse(discover([tmp_path])).findings
    assert expected in found.message
    (tmp_path / "run.sh").write_text("torchrun train.py --fsdp full_shard --fsdp_config f.json\n")
    (tmp_path / "f.json").write_text('{"version": 2}\n')
    is_done = not needs.startswith("transformers==4")
    assert bool(analyse(discover([tmp_path])).findings) != is_done
