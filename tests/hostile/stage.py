"""A stage on which a program runs before and after: a torch of a few lines that writes down what happens.

Under FSDP1 a model gathers its state dict and keeps its parameters; under FSDP2 `state_dict()` gives shards, parameters are
replaced, a module's class changes, and sharding twice or parents first fails. A program that was migrated soundly leaves the
same record on both.
"""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import functools
import importlib
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock


class Parameter:
    requires_grad = True


class Module:
    """A module of a model: some parameters and some children."""

    def __init__(self, *children: Module, name: str = "m") -> None:
        self.children_, self.name, self.wrapped = list(children), name, 0
        self.own = [Parameter()]
        for index, child in enumerate(self.children_):
            child.rename(f"{name}.{index}")

    def rename(self, name: str) -> None:
        self.name = name
        for index, child in enumerate(self.children_):
            child.rename(f"{name}.{index}")

    def modules(self) -> Iterator[Module]:
        yield self
        for child in self.children_:
            yield from child.modules()

    def parameters(self) -> Iterator[Parameter]:
        for module in self.modules():
            yield from module.own

    @property
    def layers(self) -> list[Module]:
        return self.children_

    @property
    def head(self) -> Module:
        return self.children_[-1]

    def to(self, *_: object) -> Module:
        return self

    cuda = eval = train = to

    def __call__(self, x: object) -> object:
        return x


class Block(Module):
    pass


class Norm(Module):
    pass


class Net(Module):
    def __init__(self, *_: object) -> None:
        super().__init__(Block(Norm(), Block()), Norm(), Block(Norm()), Block())


class Replicated(Module):
    """What DistributedDataParallel gives."""

    def __init__(self, module: Module, **_: object) -> None:
        super().__init__(module)


class Strategy(Enum):
    FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, _HYBRID_SHARD_ZERO2 = range(5)


class Prefetch(Enum):
    BACKWARD_PRE, BACKWARD_POST = range(2)


class Kind(Enum):
    FULL_STATE_DICT, SHARDED_STATE_DICT, LOCAL_STATE_DICT = range(3)


@dataclasses.dataclass
class MixedPrecision:
    param_dtype: object = None
    reduce_dtype: object = None
    buffer_dtype: object = None
    keep_low_precision_grads: bool = False
    cast_forward_inputs: bool = False
    cast_root_forward_inputs: bool = True


@dataclasses.dataclass(frozen=True)
class MixedPrecisionPolicy:
    param_dtype: object = None
    reduce_dtype: object = None
    output_dtype: object = None
    cast_forward_inputs: bool = True


@dataclasses.dataclass
class CPUOffload:
    offload_params: bool = False


class ModuleWrapPolicy:
    def __init__(self, module_classes: Any) -> None:
        self.classes = set(module_classes)

    def add(self, cls: type) -> None:
        self.classes.add(cls)

    def __call__(self, module: Module) -> bool:
        return isinstance(module, tuple(self.classes))


def transformer_auto_wrap_policy(module: Module, transformer_layer_cls: Any) -> bool:
    return isinstance(module, tuple(transformer_layer_cls))


class Stage:
    """One run of one program, with what it did."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files = files
        self.events: list[object] = []
        self.units: dict[str, object] = {}
        self.optimizers: list[list[Parameter]] = []
        self.live: list[Module] = []
        self.loaded: dict[str, Any] = {}
        self.device = 0
        self.parts = self.torch()

    def record(self, main: str) -> dict[str, Any]:
        """What happens when the program runs."""
        error = None
        try:
            self.load(main)
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
        alive = {id(p) for model in self.live for p in model.parameters()}
        return {
            "error": error,
            "events": self.events,
            "units": self.units,
            "optimizers": [[id(p) in alive for p in held] for held in self.optimizers],
        }

    def load(self, name: str) -> Any:
        if name not in self.loaded:
            module = SimpleNamespace()
            self.loaded[name] = module
            scope = module.__dict__
            scope["__name__"] = name
            scope["__builtins__"] = {**vars(builtins), "__import__": self.importing}
            with mock.patch.dict(sys.modules, {name: module}):  # dataclasses look themselves up
                exec(compile(self.files[name], name, "exec"), scope)
        return self.loaded[name]

    def importing(
        self,
        name: str,
        globals_: Any = None,
        locals_: Any = None,
        fromlist: Any = (),
        level: int = 0,
    ) -> Any:
        if name in self.files:
            return self.load(name)
        top, *rest = name.split(".")
        if top not in self.parts:
            return builtins.__import__(name, globals_, locals_, fromlist, level)
        found = self.parts[top]
        if fromlist:
            for part in rest:
                found = getattr(found, part)
            for wanted in fromlist:
                if wanted != "*" and not hasattr(found, wanted):
                    raise ImportError(f"no {wanted} in {name}")
        return found

    # the models

    def shard(self, module: Module, settings: object, version: int) -> None:
        if module.wrapped:
            raise AssertionError(f"{module.name} is sharded twice")
        for below in module.modules():
            if version == 2 and below.wrapped == 0:
                below.own = [Parameter() for _ in below.own]
        above = [n for n in self.units if module.name.startswith(f"{n}.")]
        if version == 2 and above:
            raise TypeError(f"{module.name} is sharded after {above}")
        module.wrapped = version
        if version == 2:
            cls = type(module)
            module.__class__ = type(f"FSDP{cls.__name__}", (FSDPModule, cls), {})
        else:
            cls = type(module)
            module.__class__ = type("FullyShardedDataParallel", (cls,), {})
        self.units[module.name] = (settings, self.device)

    def fsdp1(self, version: int) -> Callable[..., Module]:
        def wrap(
            module: Module,
            process_group: object = None,
            sharding_strategy: Strategy | None = None,
            cpu_offload: Any = None,
            auto_wrap_policy: Any = None,
            backward_prefetch: Any = None,
            mixed_precision: Any = None,
            ignored_modules: object = None,
            param_init_fn: object = None,
            device_id: object = None,
            sync_module_states: bool = False,
            forward_prefetch: bool = False,
            limit_all_gathers: bool = True,
            use_orig_params: bool = False,
            ignored_states: object = None,
            device_mesh: object = None,
        ) -> Module:
            mesh = device_mesh
            if sharding_strategy is Strategy.NO_SHARD:
                mesh = "replicas"
            reshard = sharding_strategy not in (
                Strategy.SHARD_GRAD_OP,
                Strategy._HYBRID_SHARD_ZERO2,
            )
            offload = bool(cpu_offload and cpu_offload.offload_params)
            mp = mixed_precision

            def settings(*, root: bool) -> object:
                types = None
                if mp is not None and (mp.param_dtype or mp.reduce_dtype):
                    cast = mp.cast_forward_inputs or (root and mp.cast_root_forward_inputs)
                    types = (mp.param_dtype, mp.reduce_dtype, cast)
                return (mesh, reshard, offload, types)

            if sync_module_states:
                self.events.append("broadcast")
            if device_id is not None:
                self.device = int(str(device_id))
            below = list(module.modules())[1:]
            wanted = [
                m for m in below if auto_wrap_policy is not None and decide(auto_wrap_policy, m)
            ]
            for unit in reversed(wanted):
                self.shard(unit, settings(root=False), version)
            self.shard(module, settings(root=True), version)
            self.live.append(module)
            return module

        return wrap

    def broadcast(self, module: Module, *, device: object = None) -> None:
        self.events.append("broadcast")

    def fully_shard(
        self,
        module: Module,
        *,
        mesh: object = None,
        reshard_after_forward: Any = None,
        mp_policy: Any = None,
        offload_policy: Any = None,
    ) -> Module:
        types = None
        if mp_policy is not None:
            types = (mp_policy.param_dtype, mp_policy.reduce_dtype, mp_policy.cast_forward_inputs)
        settings = (mesh, reshard_after_forward is not False, bool(offload_policy), types)
        self.shard(module, settings, 2)
        self.live.append(module)
        return module

    # everything around

    def torch(self) -> dict[str, Any]:
        events = self.events

        class Meta(type):
            def __instancecheck__(cls, instance: object) -> bool:
                return getattr(instance, "wrapped", 0) == 1

        stage = self

        class FSDP(metaclass=Meta):
            def __new__(cls, *args: Any, **kwargs: Any) -> Any:
                return stage.fsdp1(1)(*args, **kwargs)

            @staticmethod
            @contextlib.contextmanager
            def state_dict_type(model: Module, *_: object) -> Iterator[None]:
                if model.wrapped != 1:
                    raise KeyError("state_dict_type")
                yield

        def state_dict(module: Module) -> str:
            sharded = any(m.wrapped == 2 for m in module.modules())
            events.append("shards" if sharded else "full state")
            return "state"

        def load_state_dict(module: Module, _: object) -> None:
            sharded = any(m.wrapped == 2 for m in module.modules())
            events.append("load shards" if sharded else "load full state")

        def get_model_state_dict(module: Module, options: object = None) -> str:
            events.append("full state")
            return "state"

        def set_model_state_dict(module: Module, state: object, options: object = None) -> None:
            events.append("load full state")

        def clip(parameters: object, max_norm: float, *_: object, **__: object) -> float:
            events.append(f"clip {max_norm}")
            return 1.0

        @contextlib.contextmanager
        def no_sync(model: Module) -> Iterator[None]:
            events.append("no_sync")
            yield

        def of_fsdp1(method: Callable[..., Any]) -> property:
            def get(module: Module) -> Any:
                if module.wrapped != 1:
                    raise AttributeError("not an FSDP1 model")
                return functools.partial(method, module)

            return property(get)

        Module.state_dict = state_dict  # type: ignore[attr-defined]
        Module.load_state_dict = load_state_dict  # type: ignore[attr-defined]
        Module.no_sync = of_fsdp1(no_sync)  # type: ignore[attr-defined]
        Module.clip_grad_norm_ = of_fsdp1(clip)  # type: ignore[attr-defined]
        Module.module = property(self.inner)  # type: ignore[attr-defined]

        def optimizer(parameters: Any, *_: object, **__: object) -> object:
            held = list(parameters)
            self.optimizers.append(held)
            return SimpleNamespace(step=lambda: None, param_groups=[{"params": held}])

        @contextlib.contextmanager
        def remap_optimizer(optimizer: Any, model: Module) -> Iterator[None]:
            before = {id(p): index for index, p in enumerate(model.parameters())}
            yield
            after = list(model.parameters())
            held = optimizer.param_groups[0]["params"]
            held[:] = [after[before[id(p)]] if id(p) in before else p for p in held]

        def make_mesh(kind: str, shape: tuple[int, ...], mesh_dim_names: object = None) -> str:
            events.append(f"mesh {shape}")
            return f"mesh{shape}"

        wrap = SimpleNamespace(
            ModuleWrapPolicy=ModuleWrapPolicy,
            transformer_auto_wrap_policy=transformer_auto_wrap_policy,
        )
        vocabulary: dict[str, Any] = {
            "ShardingStrategy": Strategy,
            "BackwardPrefetch": Prefetch,
            "MixedPrecision": MixedPrecision,
            "CPUOffload": CPUOffload,
            "StateDictType": Kind,
            "FullStateDictConfig": lambda **_: None,
        }
        fsdp = SimpleNamespace(
            FullyShardedDataParallel=FSDP,
            fully_shard=self.fully_shard,
            FSDPModule=FSDPModule,
            wrap=wrap,
            api=SimpleNamespace(**vocabulary),
            fully_sharded_data_parallel=SimpleNamespace(
                FullyShardedDataParallel=FSDP, **vocabulary
            ),
            MixedPrecisionPolicy=MixedPrecisionPolicy,
            CPUOffloadPolicy=lambda: True,
            **vocabulary,
        )
        runtime = SimpleNamespace(
            shard_model=self.fsdp1(2),
            broadcast_module_states=self.broadcast,
            no_sync=no_sync,
            clip_grad_norm_=clip,
            remap_optimizer=remap_optimizer,
            resharded=lambda model: model,
            **vocabulary,
            **vars(wrap),
        )
        checkpoint = SimpleNamespace(
            get_model_state_dict=get_model_state_dict,
            set_model_state_dict=set_model_state_dict,
            StateDictOptions=lambda **_: None,
        )
        nn = SimpleNamespace(
            Module=Module,
            Linear=Norm,
            Sequential=Net,
            utils=SimpleNamespace(clip_grad_norm_=clip),
            parallel=SimpleNamespace(DistributedDataParallel=Replicated),
        )
        distributed = SimpleNamespace(
            fsdp=fsdp,
            checkpoint=SimpleNamespace(state_dict=checkpoint),
            device_mesh=SimpleNamespace(init_device_mesh=make_mesh),
        )
        torch = SimpleNamespace(
            nn=nn,
            distributed=distributed,
            optim=SimpleNamespace(SGD=optimizer, AdamW=optimizer),
            __version__="2.13.0",
            bfloat16="bf16",
            float32="f32",
            save=lambda *_: None,
            cuda=SimpleNamespace(
                current_device=lambda: self.device, set_device=lambda d: setattr(self, "device", d)
            ),
        )
        m = SimpleNamespace(Block=Block, Norm=Norm, Net=Net)
        return {"torch": torch, "fsdp_migrate": SimpleNamespace(runtime=runtime), "m": m}

    def inner(self, module: Module) -> Module:
        if module.wrapped != 1:
            raise AttributeError("module")
        return module


class FSDPModule:
    pass


def decide(policy: Any, module: Module) -> bool:
    if isinstance(policy, functools.partial):
        return bool(policy.func(module, **policy.keywords))
    return bool(policy(module))


def modules(parts: Mapping[str, Any], above: str = "") -> dict[str, ModuleType]:
    """The torch of a stage as modules, by their full names, for Python's own import to find."""
    found: dict[str, ModuleType] = {}
    for name, part in parts.items():
        if isinstance(part, SimpleNamespace):
            module = found[f"{above}{name}"] = ModuleType(f"{above}{name}")
            below = modules(vars(part), f"{above}{name}.")
            module.__dict__.update(
                {
                    **vars(part),
                    **{
                        n.rpartition(".")[2]: m
                        for n, m in below.items()
                        if n.count(".") == f"{above}{name}".count(".") + 1
                    },
                }
            )
            found |= below
    return found


def record_script(folder: Path, script: str) -> dict[str, Any]:
    """What a script does, run from its folder or from the project's: Python itself finds what it imports."""
    stage = Stage({})
    path = [str((folder / script).parent), str(folder), *sys.path]

    def load(_: str) -> None:
        runpy.run_path(str(folder / script), run_name="__main__")

    stage.load = load  # type: ignore[method-assign]
    importlib.invalidate_caches()
    with (
        mock.patch.dict(sys.modules, modules(stage.parts)),
        mock.patch.object(sys, "path", path),
        mock.patch.object(sys, "dont_write_bytecode", True),
    ):
        return stage.record(script)


def record(files: Mapping[str, str] | str, main: str = "main") -> dict[str, Any]:
    """What a program does, or the files of a project whose `main` is run."""
    return Stage({"main": files} if isinstance(files, str) else files).record(main)
