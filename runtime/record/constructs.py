"""What each FSDP1 construct of a program is given: where it is called, its arguments as Python text, the units it makes.

Both torch's class and the runtime's are watched, so that a program can be recorded before its migration and on the bridge.
"""

from __future__ import annotations

import functools
import gc
import inspect
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from types import FrameType, ModuleType
from typing import Any

from . import imports, texts
from .patch import around

MODULES = (
    "torch.distributed.fsdp.fully_sharded_data_parallel",
    "*.bridge",  # the runtime's, which has another name where a project has a copy of it
)
_CLASS = "FullyShardedDataParallel"
_WRAPPED, _MODULE = "_fsdp_wrapped_module", "module"
_METHODS = (
    "state_dict", "load_state_dict", "state_dict_type", "set_state_dict_type", "optim_state_dict",
    "optim_state_dict_to_load", "full_optim_state_dict", "sharded_optim_state_dict",
    "summon_full_params", "no_sync", "clip_grad_norm_",
)  # fmt: skip
_OPTIONS = ("sharding_strategy", "mixed_precision", "cpu_offload", "process_group")
_MODELS = ("self", "module", "model", "optim")
_MOST_NAMES, _LONGEST, _DEEPEST = 300, 100, 3

Entry = dict[str, Any]


def install() -> list[Entry]:
    """Watch the constructs of this process; returns the list that they are added to, call by call."""
    from torch import nn

    watched = _Watched()
    around(nn.Module, "__getattr__", watched.other_attribute)
    for module in MODULES:
        imports.after(module, watched.watch_module)
    return watched.entries


class _Watched:
    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._inside = False

    def watch_module(self, module: ModuleType) -> None:
        """Watch a module's FSDP1 class, if it has one."""
        if cls := vars(module).get(_CLASS):
            self.watch(cls)

    def watch(self, cls: Any) -> None:
        """Note every call of a class's constructor and of its methods, and each place that reads a wrapper's `module`."""
        cls.module = property(self._unwrapping(vars(cls)[_MODULE].fget))
        cls.__init__ = self._noted(cls.__init__, cls, _CLASS)
        for name in _METHODS:
            method = vars(cls).get(name, getattr(cls, name, None))
            if isinstance(method, staticmethod):
                setattr(cls, name, staticmethod(self._noted(method.__func__, cls, name)))
            elif method is not None:
                setattr(cls, name, self._noted(method, cls, name))

    def _unwrapping(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def unwrapped(unit: Any) -> Any:
            self._read(sys._getframe(1), of_wrapper=True)
            return original(unit)

        return unwrapped

    def other_attribute(self, original: Callable[..., Any], module: Any, name: str) -> Any:
        """Note a place that reads `module` of a module that is no wrapper of FSDP1's."""
        if name == _MODULE:
            self._read(sys._getframe(2), of_wrapper=False)
        return original(module, name)

    def _read(self, frame: FrameType, *, of_wrapper: bool) -> None:
        if _caller(frame) is frame:  # not torch's own use
            entry = {"call": _MODULE, **_place(frame), "arguments": {}, "names": {}}
            self.entries.append({**entry, "of_wrapper": of_wrapper})

    def _noted(self, original: Callable[..., Any], cls: Any, name: str) -> Callable[..., Any]:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def noted(*args: Any, **kwargs: Any) -> Any:
            if self._inside:  # a unit that the policy makes, or FSDP1's own use of its methods
                return original(*args, **kwargs)
            self._inside = True
            try:
                given = signature.bind(*args, **kwargs).arguments
                entry = _entry(name, given)
                model = _Model(given, cls) if name == _CLASS else None
                result = original(*args, **kwargs)
                if model is not None:
                    entry |= model.facts | model.units(args[0]) | {"hidden_outputs": []}
                    model.watch_outputs(args[0], entry["hidden_outputs"])
                self.entries.append(entry)
                return result
            finally:
                self._inside = False

        return noted


def _entry(name: str, given: dict[str, Any]) -> Entry:
    """The place of the call that is being made, and its arguments."""
    arguments = {key: texts.given(key, value) for key, value in given.items() if key not in _MODELS}
    frame = _caller(sys._getframe(2))
    place = {"file": "", "line": 0} if frame is None else _place(frame)
    return {"call": name, **place, "arguments": arguments, "names": _names(frame) if frame else {}}


def _caller(frame: FrameType | None) -> FrameType | None:
    """The program's frame: the nearest outside of torch and of this package, which `wrap` goes through."""
    own = [os.path.dirname(__file__), os.path.dirname(sys.modules["torch"].__file__ or "")]
    passed = (os.path.dirname(os.path.realpath(own[0])), os.path.realpath(own[1]), "<frozen")
    while frame and os.path.realpath(frame.f_code.co_filename).startswith(passed):
        frame = frame.f_back
    return frame


def _place(frame: FrameType) -> Entry:
    code = frame.f_code
    place: Entry = {"file": os.path.realpath(code.co_filename), "line": frame.f_lineno}
    place["function"] = getattr(code, "co_qualname", code.co_name)
    if hasattr(code, "co_positions"):  # Python 3.11
        line, end, _, column = next(
            itertools.islice(code.co_positions(), frame.f_lasti // 2, None), (None,) * 4
        )
        if line and end and column:
            place |= {"line": line, "end_line": end, "end_column": column + 1}
    return place


def _names(frame: FrameType) -> dict[str, str]:
    """The plain values that a function can name: its variables, the globals that it reads, and what is in their fields.

    A key of a dictionary is written as a field, since the two are one to many configurations.
    """
    read = {
        name: frame.f_globals[name] for name in frame.f_code.co_names if name in frame.f_globals
    }
    found: dict[str, str] = {}
    waiting = [(name, value, 0) for name, value in {**read, **frame.f_locals}.items()]
    while waiting and len(found) < _MOST_NAMES:
        name, value, depth = waiting.pop(0)
        if value is None or isinstance(value, bool | int | float | Enum):
            found[name] = texts.text(value)
        elif isinstance(value, str):
            found |= {name: texts.text(value)} if len(value) < _LONGEST else {}
        elif depth < _DEEPEST:
            waiting += [(f"{name}.{key}", each, depth + 1) for key, each in _fields(value)]
    return found


def _fields(value: Any) -> list[tuple[str, Any]]:
    """The fields of a configuration: of a dictionary, or of an object that is no part of a model."""
    from torch import Tensor, nn

    if isinstance(value, Mapping):  # a dictionary, or omegaconf's
        try:
            return [(key, value[key]) for key in [*value] if isinstance(key, str)]
        except Exception:  # what it says is that a value is missing, or refers to one that is
            return []
    if isinstance(value, ModuleType | type | Tensor | nn.Module) or callable(value):
        return []
    return [*getattr(value, "__dict__", {}).items()]


class _Model:
    """A module that is about to be wrapped: what it is made of, and afterwards the units that were made of it."""

    def __init__(self, given: dict[str, Any], cls: type) -> None:
        import torch

        self.cls, module = cls, given["module"]
        self.modules: dict[str, Any] = dict(module.named_modules())
        units = list(self._instances(module))
        inner = {id(m) for unit in units for m in unit.modules()}
        own = {name: m for name, m in self.modules.items() if id(m) not in inner}
        parameters = [p for m in own.values() for p in m._parameters.values() if p is not None]
        kept = torch.nn.modules.batchnorm._BatchNorm
        self.facts: Entry = {
            "model": texts.text(type(module)),
            "sources": sorted({_source(type(m)) for m in self.modules.values()} - {""}),
            "meta": any(p.is_meta for p in parameters),
            "batch_norm": [name for name, m in own.items() if isinstance(m, kept)],
            "buffers": any(b.is_floating_point() for b in module.buffers()),
            "ignored_are_used": _are_used(given.get("ignored_modules")),
            "has_units": bool(units),
            "parameters_held": _are_held(parameters, [m._parameters for m in own.values()]),
        }

    def units(self, root: Any) -> Entry:
        """The units below the root: by class, and whether they are all the modules of these classes."""
        names = {id(module): name for name, module in reversed(self.modules.items())}
        parts = [(u, u._modules[_WRAPPED]) for u in self._instances(root) if u is not root]
        made = {names[id(part)]: (unit, type(part)) for unit, part in parts if id(part) in names}
        classes = tuple({cls for _, cls in made.values()})
        alike = {name for name, m in self.modules.items() if isinstance(m, classes)}
        grouped: dict[str, list[str]] = {}
        for name, (_, cls) in made.items():
            grouped.setdefault(texts.text(cls), []).append(name)
        return {
            "units": {cls: list(self._short(names, set(made))) for cls, names in grouped.items()},
            "all_of_classes": alike - {""} == set(made),
            "root_is_alike": "" in alike,
            "device_type": "cuda" if texts.EMULATED else root.compute_device.type,
            "shard_ranks": root.process_group.size(),
            "other_options": [
                n for n, (unit, _) in made.items() if _options(unit) != _options(root)
            ],
        }

    def watch_outputs(self, root: Any, types: list[str]) -> None:
        """Note what units return that FSDP1 looks into, and FSDP2 before torch 2.13 does not: they would get no gradients."""

        def note(_unit: Any, _given: Any, output: Any) -> None:
            types.extend(sorted({*map(texts.text, _hidden(output))} - {*types}))

        for unit in self._instances(root):
            unit.register_forward_hook(note)

    def _short(self, names: list[str], made: set[str]) -> Iterator[str]:
        """Names of units, with `layers.*` once for a container of units."""
        said = set()
        for name in names:
            above = name.rpartition(".")[0]
            inside: dict[str, Any] = self.modules[above]._modules if above else {}
            whole = all(f"{above}.{key}" in made and key.isdecimal() for key in inside)
            short = f"{above}.*" if inside and whole else name
            if short not in said:
                yield short
            said.add(short)

    def _instances(self, module: Any) -> Iterator[Any]:
        units = (each for each in module.modules() if isinstance(each, self.cls))
        return (unit for unit in units if _WRAPPED in vars(unit)["_modules"])


def _hidden(output: Any) -> Iterator[type]:
    """The classes of containers in an output that torch's pytree takes for leaves, and that hold tensors with gradients."""
    import torch
    from torch.distributed.utils import _apply_to_tensors
    from torch.utils._pytree import tree_leaves

    found: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    for leaf in tree_leaves(output) if torch.is_grad_enabled() else ():
        found.clear()
        if not isinstance(leaf, torch.Tensor):
            _apply_to_tensors(note, leaf)
        if any(tensor.requires_grad for tensor in found):
            yield type(leaf)


def _are_used(modules: Any) -> bool:
    """Whether some modules may have parameters that train, or buffers."""
    if not isinstance(modules, list | tuple | set):  # None, or it can be read once
        return modules is not None
    trained = any(p.requires_grad for module in modules for p in module.parameters())
    return trained or any([*module.buffers()] for module in modules)


def _are_held(parameters: list[Any], owners: list[Any]) -> bool:
    """Whether an optimizer, a list or another model holds some of the parameters, which `fully_shard` replaces."""
    from torch import Tensor

    known = {id(parameters), *map(id, owners)}
    holders = (holder for holder in gc.get_referrers(*parameters) if id(holder) not in known)
    return any(not isinstance(holder, FrameType | Tensor) for holder in holders)


def _options(unit: Any) -> list[str]:
    return [texts.text(getattr(unit, name, None)) for name in _OPTIONS]


def _source(cls: type) -> str:
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return os.path.realpath(file) if file else ""
