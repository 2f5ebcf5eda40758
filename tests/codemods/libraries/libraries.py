"""What Accelerate and transformers make of configurations. Runs in an environment that has them, without this project.

python libraries.py FOLDER

FOLDER holds `before` and `after`, with files of the same names. `accelerate to-fsdp2` adds `peer`. Printed is, as JSON, what
each file of the three means to the library that reads it, or how that fails.
"""

import argparse
import contextlib
import io
import json
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import yaml
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.commands.to_fsdp2 import to_fsdp2_command
from accelerate.utils import FullyShardedDataParallelPlugin, ParallelismConfig, dataclasses
from accelerate.utils.launch import prepare_multi_gpu_env

UNSHARDED = {"shards": "nothing"}


def main(folder: Path) -> None:
    """Reads all files and prints what they mean."""
    (folder / "peer").mkdir()
    found: dict[str, dict[str, Any]] = {}
    for file in sorted((folder / "before").iterdir()):
        converted = folder / "peer" / file.name
        arguments = argparse.Namespace(
            config_file=str(file), overwrite=False, output_file=str(converted)
        )
        fails = "" if file.suffix == ".py" else failure(lambda: to_fsdp2_command(arguments))  # noqa: B023
        found[file.stem] = {"fails": fails}
        for side in ("before", "after", "peer"):
            path = folder / side / file.name
            if path.exists():
                found[file.stem][side] = meaning(path)
    json.dump(found, sys.stdout)


def failure(action: Any) -> str:
    """How an action fails; empty if it does not."""
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return ""


def meaning(path: Path) -> Any:
    """What a file means to the library that reads it, or how it fails there."""
    output = io.StringIO()
    with (
        mock.patch.dict(os.environ),
        mock.patch.object(dataclasses, "is_cuda_available", return_value=True),
        mock.patch.object(torch.cuda, "current_device", return_value=0),
        # Nothing is launched: another program on the machine may have the port.
        mock.patch("accelerate.utils.launch.is_port_in_use", return_value=False),
        contextlib.redirect_stdout(output),
    ):
        try:
            first = path.parent.name == "before"
            if path.suffix == ".py":
                return called(path, first)
            read = json.loads if path.suffix == ".json" else yaml.safe_load
            settings = read(path.read_text())
            known = re.compile(r"^fsdp$|distributed_type|learning_rate|transformer_layer")
            if not isinstance(settings, dict) or not any(map(known.search, settings)):
                return "nothing of theirs"
            if "base_model" in settings:
                return "nothing of theirs"
            if "distributed_type" in settings:
                return launched(path)
            return trained(settings, first)
        except Exception as error:
            return f"{type(error).__name__}: {error}".splitlines()[0]


def launched(path: Path) -> dict[str, Any]:
    """As `accelerate launch` and the script that it starts read a configuration."""
    arguments = launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
    arguments, _, _ = _validate_launch_command(arguments)
    os.environ.update(prepare_multi_gpu_env(arguments))
    if not arguments.use_fsdp:
        return UNSHARDED if arguments.multi_gpu else {"shards": "nothing", "on": "one device"}
    mesh = ParallelismConfig() if arguments.use_parallelism_config else None
    if arguments.num_processes == -1:
        raise ValueError("num_processes is missing")
    return said(FullyShardedDataParallelPlugin(), mesh, arguments)


def trained(settings: dict[str, Any], first: bool) -> dict[str, Any]:
    """As transformers' TrainingArguments read it.

    In its version 4, version 1 was the default, and the strategy went through the environment: Accelerate takes it from
    nowhere else (1.15), so that transformers 5 trains each of them as FULL_SHARD.
    """
    from transformers import TrainingArguments

    if isinstance(settings.get("fsdp_config"), str):
        return {"shards": "as a file says", "on": bool(settings["fsdp"])}
    flat = not {"fsdp", "fsdp_config", "learning_rate"} & settings.keys()
    given = {"fsdp": True, "fsdp_config": settings} if flat else settings
    if not given.get("fsdp"):
        return UNSHARDED
    inner = dict(given.get("fsdp_config") or {})
    for name in ("fsdp_transformer_layer_cls_to_wrap", "fsdp_min_num_params"):
        if name in given:
            inner[name.removeprefix("fsdp_")] = given[name]
    if first:
        inner["version"] = 1
        options = given["fsdp"].split() if isinstance(given["fsdp"], str) else given["fsdp"]
        for option in options if isinstance(options, list) else []:
            if option not in ("auto_wrap", "offload"):
                os.environ["FSDP_SHARDING_STRATEGY"] = option
    arguments = TrainingArguments(fsdp=given["fsdp"], fsdp_config=inner, use_cpu=True)
    plugin = FullyShardedDataParallelPlugin(**arguments.fsdp_plugin_args)
    return said(plugin, None, SimpleNamespace(num_machines=1, num_processes=1))


def called(path: Path, first: bool) -> dict[str, Any]:
    """A Python file that makes `plugin` or `arguments`."""
    names: dict[str, Any] = {}
    with mock.patch("transformers.TrainingArguments", dict):
        exec(path.read_text(), names)
    if "plugin" not in names:
        return trained(names["arguments"], first)
    return said(names["plugin"], None, SimpleNamespace(num_machines=1, num_processes=1))


def said(plugin: Any, mesh: Any, arguments: Any) -> dict[str, Any]:
    """The meaning of a plugin, in terms that do not depend on the version."""
    strategy = plugin.sharding_strategy or plugin.reshard_after_forward
    name = getattr(strategy, "name", "")
    if name == "NO_SHARD":
        return UNSHARDED
    sizes = [arguments.num_machines, arguments.num_processes // arguments.num_machines]
    if plugin.fsdp_version == 2:
        sizes = [mesh.dp_replicate_size, mesh.dp_shard_size] if mesh else [1, 0]
    hybrid = sizes[0] > 1 and (plugin.fsdp_version == 2 or "HYBRID" in name)
    kept = strategy is False or name in ("SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2")
    policy = getattr(plugin.auto_wrap_policy, "__name__", None)
    return {
        "version": plugin.fsdp_version,
        "shards": f"over {sizes[1]} of {sizes[0] * sizes[1]}" if hybrid else "over all",
        "frees": not kept,
        "wraps": [policy, plugin.transformer_cls_names_to_wrap, plugin.min_num_params if policy else None],
        "offloads": getattr(plugin.cpu_offload, "offload_params", plugin.fsdp_version == 2)
        and type(plugin.cpu_offload).__name__ != "OffloadPolicy",
        "saves": plugin.state_dict_type.name,
        "checkpoints": plugin.activation_checkpointing,
        "loads on rank 0": plugin.cpu_ram_efficient_loading,
    }  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]))
