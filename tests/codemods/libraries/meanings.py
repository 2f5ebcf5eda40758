"""What a release of transformers, Accelerate, axolotl, Composer or Lightning makes of settings. Runs where that is.

python meanings.py FOLDER LIBRARY [PACKAGE]

Printed is, as JSON, what each file of FOLDER means to the library, or how it fails there. PACKAGE is the folder of axolotl's
or Composer's package, of which what reads settings is taken: the packages themselves need a GPU's libraries, and more.
"""

import ast
import contextlib
import importlib.util
import io
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import yaml
from accelerate.utils import FullyShardedDataParallelPlugin, dataclasses

UNSHARDED = {"shards": "nothing"}
_MACHINE = SimpleNamespace(num_machines=1, num_processes=1)


def main(folder: Path, library: str, package: Path | None) -> None:
    """Reads all files and prints what they mean."""
    found = {}
    for file in sorted(each for each in folder.rglob("*") if each.is_file()):
        environment = {k: v for k, v in os.environ.items() if "FSDP" not in k}
        with (
            mock.patch.dict(os.environ, environment, clear=True),
            mock.patch.object(dataclasses, "is_cuda_available", return_value=True),
            mock.patch.object(torch.cuda, "current_device", return_value=0),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            try:
                found[str(file.relative_to(folder))] = meaning(file, library, package)
            except Exception as error:
                found[str(file.relative_to(folder))] = (
                    f"{type(error).__name__}: {error}".splitlines()[0].partition(" (/")[0]
                )
    json.dump(found, sys.stdout)


def meaning(path: Path, library: str, package: Path | None) -> Any:
    """What one file means."""
    if path.suffix == ".py":
        names: dict[str, Any] = {}
        if library == "lightning":
            return of_lightning(path.read_text())
        exec(path.read_text(), names)
        if "plugin" in names:
            return said(names["plugin"], None, _MACHINE)
        return of_arguments(names["arguments"])
    if library == "accelerate":
        return launched(path)
    read = json.loads if path.suffix == ".json" else yaml.safe_load
    settings = read(path.read_text())
    if library == "axolotl":
        assert package is not None
        return of_axolotl(settings, package)
    if library == "lightning":
        return of_lightning(
            f"from lightning.pytorch import Trainer\nmade = Trainer(**{settings['trainer']})\n"
        )
    if library == "composer":
        assert package is not None
        return of_composer(settings, package)
    from transformers import TrainingArguments

    return of_arguments(TrainingArguments(**settings.get("train", settings)))


def of_arguments(arguments: Any) -> dict[str, Any]:
    """As transformers' Trainer makes the plugin: from arguments of its own, or from the environment that they set."""
    if not arguments.fsdp:
        return UNSHARDED
    if hasattr(arguments, "fsdp_plugin_args"):
        plugin = FullyShardedDataParallelPlugin(**arguments.fsdp_plugin_args)
    else:
        assert os.environ["ACCELERATE_USE_FSDP"] == "true"
        plugin = FullyShardedDataParallelPlugin()
    # As in `Trainer.create_accelerator_and_postprocess`.
    kept = plugin.activation_checkpointing
    plugin.activation_checkpointing = arguments.fsdp_config.get("activation_checkpointing", kept)
    return said(plugin, None, _MACHINE)


def launched(path: Path) -> dict[str, Any]:
    """As `accelerate launch` and the script that it starts read a configuration."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env

    arguments = launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
    arguments, _, _ = _validate_launch_command(arguments)
    os.environ.update(prepare_multi_gpu_env(arguments))
    if not arguments.use_fsdp:
        return UNSHARDED if arguments.multi_gpu else {"shards": "nothing", "on": "one device"}
    mesh = None
    if getattr(arguments, "use_parallelism_config", False):
        from accelerate.utils import ParallelismConfig

        mesh = ParallelismConfig()
    return said(FullyShardedDataParallelPlugin(), mesh, arguments)


class _Settings(dict[str, Any]):
    """As axolotl's: what is not set is None."""

    def __getattr__(self, name: str) -> Any:
        value = self.get(name)
        return _Settings(value) if isinstance(value, dict) else value

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


def of_axolotl(settings: dict[str, Any], package: Path) -> dict[str, Any]:
    """As a release of axolotl reads a recipe: its checks in their order, its environment, its TrainingArguments."""
    names: dict[str, Any] = {"os": os, "LOG": mock.Mock()}
    checks = package / "utils" / "schemas" / "validation.py"
    wanted = ["check_fsdp_version_in_fsdp_config", "check_fsdp_config_kwargs_prefix"]
    for check in _functions(checks, wanted) if checks.exists() else ():
        check.decorator_list = []
        exec(ast.unparse(check), names)
        settings = names[check.name](None, settings)
    schema = package / "utils" / "schemas" / "fsdp.py"
    if schema.exists() and settings.get("fsdp_config"):
        exec(schema.read_text(), names)
        read = names["FSDPConfig"](**settings["fsdp_config"])
        settings["fsdp_config"] = read.model_dump(exclude_none=True)
    config = _Settings(settings)
    trainer = package / "utils" / "trainer.py"
    needs_list = "cfg.fsdp or cfg.fsdp_config" not in trainer.read_text()
    if not config.fsdp and (needs_list or not config.fsdp_config):
        return UNSHARDED
    config.setdefault("fsdp_config", {})
    for function in _functions(trainer, ["setup_fsdp_envs"]):
        exec(ast.unparse(function), names)
    names["setup_fsdp_envs"](config)
    from transformers import TrainingArguments

    inner = dict(config["fsdp_config"])
    if needs_list:
        inner = {key.lstrip("fsdp_"): value for key, value in inner.items()}
    given = {"fsdp": config.fsdp or True, "fsdp_config": inner}
    return of_arguments(TrainingArguments(output_dir="out", use_cpu=True, **given))


def of_composer(settings: dict[str, Any], package: Path) -> dict[str, Any]:
    """As a release of Composer reads its settings of FSDP; `FSDP_VERSION` among them is that of the environment."""
    spec = importlib.util.spec_from_file_location("parallelism", package / "utils/parallelism.py")
    assert spec is not None
    assert spec.loader is not None
    parallelism = sys.modules["parallelism"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(parallelism)
    given = settings.get("parallelism_config", {}).get("fsdp") or settings.get("fsdp_config")
    if given is None or given.get("sharding_strategy") == "NO_SHARD":
        return UNSHARDED
    reads_version = "FSDP_VERSION" in (package / "trainer" / "trainer.py").read_text()
    if not (reads_version and settings.get("FSDP_VERSION") == 2):
        config = parallelism.FSDPConfig(**given)
        copies = config.data_parallel_replicate_degree or config.sharding_strategy == "HYBRID_SHARD"
        frees = config.sharding_strategy != "SHARD_GRAD_OP"
        offloads = config.cpu_offload
        version = 1
    else:
        config = parallelism.FSDP2Config.from_compatible_attrs(given)
        copies = config.device_mesh
        frees = config.reshard_after_forward
        offloads = False
        version = 2
    return {
        "version": version,
        "shards": "over each node" if copies else "over all",
        "frees": frees,
        "offloads": offloads,
        "saves": config.state_dict_type,
        "checkpoints": config.activation_checkpointing,
        "offloads activations": config.activation_cpu_offload,
        "loads on rank 0": config.load_monolith_rank0_only,
        "computes in": getattr(config, "mixed_precision", "DEFAULT"),
    }


def of_lightning(program: str) -> dict[str, Any]:
    """As a release of Lightning makes the strategy of a Trainer or a Fabric, on a machine that seems to have two GPUs."""
    names: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        for home in ("fabric", "pytorch"):
            cuda = f"lightning.{home}.accelerators.cuda"
            stack.enter_context(mock.patch(f"{cuda}.num_cuda_devices", return_value=2))
            stack.enter_context(
                mock.patch(f"{cuda}.CUDAAccelerator.is_available", return_value=True)
            )
        exec(program, names)
    made = names["made"]
    strategy = getattr(made, "_strategy", None) or made.strategy
    if type(strategy).__name__ == "ModelParallelStrategy":
        return {"version": 2, "shards": "over all"}
    name = strategy.sharding_strategy.name
    return {
        "version": 1,
        "shards": "over all",
        "frees": name == "FULL_SHARD",
        "offloads": strategy.cpu_offload.offload_params,
        "saves": strategy._state_dict_type,
    }


def _functions(path: Path, names: list[str]) -> list[ast.FunctionDef]:
    """The functions with these names in a file, in its order."""
    tree = ast.parse(path.read_text())
    return [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name in names]


def said(plugin: Any, mesh: Any, arguments: Any) -> dict[str, Any]:
    """The meaning of a plugin, in terms that do not depend on the version."""
    version = getattr(plugin, "fsdp_version", 1)
    strategy = plugin.sharding_strategy if version == 1 else plugin.reshard_after_forward
    name = getattr(strategy, "name", "")
    if name == "NO_SHARD":
        return UNSHARDED
    sizes = [arguments.num_machines, arguments.num_processes // arguments.num_machines]
    if version == 2:
        sizes = [mesh.dp_replicate_size, mesh.dp_shard_size] if mesh else [1, 0]
    hybrid = sizes[0] > 1 and (version == 2 or "HYBRID" in name)
    kept = strategy is False or name in ("SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2")
    policy = getattr(plugin.auto_wrap_policy, "__name__", None)
    layers, size = plugin.transformer_cls_names_to_wrap, plugin.min_num_params
    precision = plugin.mixed_precision_policy
    types = [getattr(precision, f"{each}_dtype", None) for each in ("param", "reduce")]
    return {
        "version": version,
        "shards": f"over {sizes[1]} of {sizes[0] * sizes[1]}" if hybrid else "over all",
        "frees": not kept,
        "wraps": [policy, layers if policy else None, size if policy else None],
        "offloads": getattr(plugin.cpu_offload, "offload_params", version == 2)
        and type(plugin.cpu_offload).__name__ != "OffloadPolicy",
        "saves": plugin.state_dict_type.name,
        "checkpoints": plugin.activation_checkpointing,
        "loads on rank 0": plugin.cpu_ram_efficient_loading,
        "computes in": [str(each) for each in types],
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]) if sys.argv[3:] else None)
