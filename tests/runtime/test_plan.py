"""The planner picks the modules that FSDP1 wraps, found by wrapping a copy with FSDP1."""

import copy
import functools
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed.fsdp.fully_sharded_data_parallel as fsdp1
from torch import nn
from torch.distributed.fsdp import MixedPrecision

from fsdp_migrate.runtime import wrap
from fsdp_migrate.runtime.ignored import resolve_ignored
from fsdp_migrate.runtime.plan import plan_units

from ..nets import Block, Stack, Transformer

pytestmark = [
    pytest.mark.usefixtures("one_rank"),
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),
]


class Gate(nn.Module):
    """Owns a parameter and a plain list of parameters next to its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.ones(50))
        self.more = nn.ParameterList([nn.Parameter(torch.ones(4)) for _ in range(2)])
        self.layers = nn.ModuleList([nn.Linear(10, 10), nn.ModuleList([nn.Linear(10, 10)])])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Shared(nn.Module):
    """One block in three places."""

    def __init__(self) -> None:
        super().__init__()
        block = nn.Sequential(nn.Linear(10, 10), nn.LayerNorm(10))
        self.first = nn.Sequential(block, nn.Linear(10, 10))
        self.second = nn.Sequential(nn.Linear(10, 10), block)
        self.block = block

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


def deep(levels: int) -> nn.Module:
    model: nn.Module = nn.Linear(12, 12)
    for _ in range(levels):
        model = nn.Sequential(model, nn.Linear(12, 12), nn.LayerNorm(12))
    return model


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "transformer": Transformer,
    "stack": Stack,
    "encoder": encoder,  # torch's own blocks, with multi-head attention
    "deep": lambda: deep(5),
    "gate": Gate,
    "no-parameters": lambda: nn.Sequential(nn.ReLU(), nn.Sequential(nn.Dropout())),
    "norms": lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Sequential(nn.SyncBatchNorm(4))),
    "recurrent": lambda: nn.Sequential(nn.LSTM(8, 8), nn.ModuleDict({"head": nn.Linear(8, 100)})),
    "mixed-sizes": lambda: nn.Sequential(*[nn.Linear(n, n) for n in (2, 8, 16, 32, 16, 8, 2)]),
}
SHARED = {"shared": Shared, "shared-root": lambda: nn.Sequential(*[nn.Linear(9, 9)] * 3)}

CLASSES = {Block, nn.Sequential, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer, nn.LSTM}


def by_dict(module: nn.Module) -> bool | dict[str, Any]:
    if isinstance(module, nn.LayerNorm):
        return {"forward_prefetch": True}
    if isinstance(module, nn.Linear):
        return {"backward_prefetch": None, "mixed_precision": None}
    return isinstance(module, (Block, nn.ModuleList))


OBJECTS: dict[str, Any] = {
    "module-wrap": wrap.ModuleWrapPolicy(CLASSES),
    "custom-dict": wrap.CustomPolicy(by_dict),
}
FUNCTIONS: dict[str, Any] = {
    "size-600": functools.partial(wrap.size_based_auto_wrap_policy, min_num_params=600),
    "size-leaf": functools.partial(
        wrap.size_based_auto_wrap_policy,
        min_num_params=100,
        force_leaf_modules={Block, nn.TransformerEncoderLayer},
        exclude_wrap_modules={nn.LayerNorm},
    ),
    "always": wrap.always_wrap_policy,
    "or": functools.partial(
        wrap._or_policy,
        policies=[
            functools.partial(wrap.size_based_auto_wrap_policy, min_num_params=500),
            functools.partial(wrap.lambda_auto_wrap_policy, lambda_fn=lambda m: hasattr(m, "bias")),
        ],
    ),
    "own-function": lambda module, recurse, nonwrapped_numel: (
        recurse or (isinstance(module, nn.Linear) and nonwrapped_numel < 300)
    ),
}
POLICIES = {**OBJECTS, **FUNCTIONS}

IGNORED: dict[str, list[str]] = {
    "transformer": ["blocks.0", "norm"],
    "stack": ["inner.1", "parts.a"],
    "deep": ["0.0.0"],
    "gate": ["layers.1"],
}

Described = list[tuple[str, bool, bool, bool]]


def wrap_with_fsdp1(
    model: nn.Module, policy: Any, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> Described:
    """Wraps with FSDP1; the modules it makes units of, in its order, with the arguments of each."""
    names = {module: name for name, module in model.named_modules()}
    wrapped: Described = []
    init = fsdp1._init_param_handle_from_module

    def record(state: Any, module: nn.Module, *args: Any) -> None:
        low_precision = state.mixed_precision.param_dtype is not None
        prefetch = state.backward_prefetch is not None
        wrapped.append((names[module], low_precision, state.forward_prefetch, prefetch))
        init(state, module, *args)

    monkeypatch.setattr(fsdp1, "_init_param_handle_from_module", record)
    fsdp1.FullyShardedDataParallel(
        model,
        auto_wrap_policy=policy,
        device_id=torch.device("cpu"),
        use_orig_params=True,
        **options,
    )
    return wrapped


def plan(model: nn.Module, policy: Any, **options: Any) -> Described:
    ignored = resolve_ignored(model, options.get("ignored_modules"), options.get("ignored_states"))
    mixed_precision = options.get("mixed_precision")
    units = plan_units(
        model,
        policy,
        ignored_modules=ignored.modules,
        ignored_parameters=ignored.parameters,
        mixed_precision=mixed_precision,
    )
    return [
        (
            unit.name,
            unit.kwargs.get("mixed_precision", mixed_precision) is not None,
            unit.kwargs.get("forward_prefetch", False),
            unit.kwargs.get("backward_prefetch", True) is not None,
        )
        for unit in units
    ]


def compare(
    make_model: Callable[[], nn.Module],
    policy: Any,
    monkeypatch: pytest.MonkeyPatch,
    options: Callable[[nn.Module], dict[str, Any]] = lambda _: {},
    planned: Any = None,
) -> Described:
    torch.manual_seed(0)
    model = make_model()
    twin = copy.deepcopy(model)
    expected = wrap_with_fsdp1(twin, policy, monkeypatch, **options(twin))
    assert plan(model, planned or policy, **options(model)) == expected
    del twin
    return expected


@pytest.fixture(scope="module", autouse=True)
def frozen_heap() -> Any:
    """FSDP1 models are collected often here; what was imported before is not garbage."""
    gc.freeze()
    yield
    gc.unfreeze()


BF16 = MixedPrecision(param_dtype=torch.bfloat16)
OPTIONS: list[tuple[list[str], dict[str, Any], Callable[[nn.Module], dict[str, Any]]]] = [
    ([*MODELS], POLICIES, lambda _: {}),
    ([*MODELS], POLICIES, lambda _: {"mixed_precision": BF16}),
    # Functions that select a shared module fail in FSDP1: it wraps the module again in each place.
    ([*SHARED], OBJECTS, lambda _: {}),
    (["shared"], OBJECTS, lambda m: {"ignored_modules": [m.block]}),
    # Ignored parameters do not count.
    (["mixed-sizes"], POLICIES, lambda m: {"ignored_states": [m[3].weight, m[4].weight]}),
]


@pytest.mark.parametrize(
    ("model", "policy", "options"),
    [
        pytest.param(model, policy, options, id=f"{model}-{policy}-{number}")
        for number, (models, policies, options) in enumerate(OPTIONS)
        for model in models
        for policy in policies
    ],
)
def test_same_units(model: str, policy: str, options: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    compare({**MODELS, **SHARED}[model], POLICIES[policy], monkeypatch, options)


@pytest.mark.parametrize("argument", ["ignored_modules", "ignored_states"])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("model", IGNORED)
def test_ignored(model: str, policy: str, argument: str, monkeypatch: pytest.MonkeyPatch) -> None:
    units = compare(
        MODELS[model],
        POLICIES[policy],
        monkeypatch,
        lambda m: {argument: [m.get_submodule(name) for name in IGNORED[model]]},
    )
    assert not {name for name, *_ in units} & set(IGNORED[model])


def test_classes_left_out_of_mixed_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    precision = MixedPrecision(torch.bfloat16, _module_classes_to_ignore=(nn.LayerNorm, nn.GELU))
    units = compare(
        Transformer, OBJECTS["module-wrap"], monkeypatch, lambda _: {"mixed_precision": precision}
    )
    assert ("norm", False, False, True) in units


def test_policies_are_asked_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def policy(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
        asked.append((type(module), recurse, nonwrapped_numel))
        return nonwrapped_numel >= 12  # of what is inside, all or nothing

    def nested() -> nn.Module:
        return nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Linear(2, 2))

    units = compare(nested, policy, monkeypatch)
    assert [name for name, *_ in units] == ["0", ""]
    half = len(asked) // 2
    assert asked[:half] == asked[half:]


def test_what_a_policy_says_of_a_class_that_mixed_precision_leaves_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = wrap.CustomPolicy(
        lambda m: {"forward_prefetch": True} if isinstance(m, nn.BatchNorm1d) else False
    )
    precision = MixedPrecision(param_dtype=torch.bfloat16)
    units = compare(
        lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)),
        policy,
        monkeypatch,
        lambda _: {"mixed_precision": precision},
    )
    assert units[0] == ("1", False, True, True)


def test_something_else_than_a_policy() -> None:
    with pytest.raises(TypeError, match=r"auto_wrap_policy=\{.*is not a wrap policy"):
        plan_units(Stack(), {nn.Linear})


def test_a_wrong_plan_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: against a policy that answers otherwise it does."""
    wrong = functools.partial(wrap.size_based_auto_wrap_policy, min_num_params=601)
    assert [u.name for u in plan_units(deep(5), wrong)]
    layers = (nn.Linear(24, 24), nn.Linear(24, 24))
    with pytest.raises(AssertionError):
        compare(
            lambda: nn.Sequential(*copy.deepcopy(layers)),
            FUNCTIONS["size-600"],
            monkeypatch,
            planned=wrong,
        )
