"""Mixed precision of a constructor, as it is written for `fully_shard`."""

import pytest

from .constructors import HEAD, without_imports
from .programs import table
from .test_examples import analyse

# Programs behind the head, and what they become; without the comment at the line with `like_fsdp1`.
WRITTEN = table(
    """\
=== mixed precision of units
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), mixed_precision=MixedPrecision(param_dtype=torch.bfloat16))
---
mp_policy = MixedPrecisionPolicy(
    param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16
)
with like_fsdp1(model):
    for module in reversed(list(model.modules())):
        if isinstance(module, Block):
            # As under FSDP1, only the root casts its inputs
            fully_shard(module, mp_policy=replace(mp_policy, cast_forward_inputs=False))
    fully_shard(model, mp_policy=mp_policy)
=== buffers
model = FSDP(model, mixed_precision=MixedPrecision(buffer_dtype=torch.float16))
---
with like_fsdp1(model, buffer_dtype=torch.float16):
    fully_shard(model)
=== precision that casts no inputs
model = FSDP(model, mixed_precision=MixedPrecision(torch.float16, cast_root_forward_inputs=False))
---
with like_fsdp1(model):
    fully_shard(
        model,
        mp_policy=MixedPrecisionPolicy(
            param_dtype=torch.float16,
            reduce_dtype=torch.float16,
            cast_forward_inputs=False,
        ),
    )
=== gradients in low precision
model = FSDP(model, mixed_precision=MixedPrecision(keep_low_precision_grads=True))
---
with like_fsdp1(model):
    fully_shard(model)
=== BatchNorm in the model
model.bn = nn.BatchNorm1d(8)
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), mixed_precision=MixedPrecision(param_dtype=torch.bfloat16))
---
model.bn = nn.BatchNorm1d(8)
mp_policy = MixedPrecisionPolicy(
    param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16
)
with like_fsdp1(model):
    for module in reversed(list(model.modules())):
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            # As under FSDP1, in float32
            fully_shard(
                module,
                mp_policy=MixedPrecisionPolicy(
                    param_dtype=torch.float32, output_dtype=mp_policy.param_dtype
                ),
            )
        elif isinstance(module, Block):
            # As under FSDP1, only the root casts its inputs
            fully_shard(module, mp_policy=replace(mp_policy, cast_forward_inputs=False))
    fully_shard(model, mp_policy=mp_policy)
=== precisions that cast inputs, and do not
half = MixedPrecision(torch.bfloat16, cast_forward_inputs=True)
full = MixedPrecision(reduce_dtype=torch.float32)
p = half if low else full
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), mixed_precision=p)
---
half = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.bfloat16, cast_forward_inputs=True)
full = MixedPrecisionPolicy(reduce_dtype=torch.float32, cast_forward_inputs=False)
p = half if low else full
with like_fsdp1(model):
    for module in reversed(list(model.modules())):
        if isinstance(module, Block):
            fully_shard(module, mp_policy=p)
    fully_shard(model, mp_policy=replace(p, cast_forward_inputs=True))
=== a dtype of buffers by a name
low, cast = dtypes()
p = MixedPrecision(param_dtype=low, buffer_dtype=cast)
model = FSDP(model, mixed_precision=p)
---
low, cast = dtypes()
p = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=low)
with like_fsdp1(model, buffer_dtype=cast):
    fully_shard(model, mp_policy=p)
=== precision or None
p = None
if half:
    p = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, buffer_dtype=torch.bfloat16)
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), mixed_precision=p)
---
p = MixedPrecisionPolicy()
if half:
    p = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
with like_fsdp1(model, buffer_dtype=p.param_dtype):
    for module in reversed(list(model.modules())):
        if isinstance(module, Block):
            # As under FSDP1, only the root casts its inputs
            fully_shard(module, mp_policy=replace(p, cast_forward_inputs=False))
    fully_shard(model, mp_policy=p)
=== precision that something else reads
p = MixedPrecision(param_dtype=torch.bfloat16)
model = FSDP(model, mixed_precision=p)
other(p)
---
p = MixedPrecision(param_dtype=torch.bfloat16)
with like_fsdp1(model):
    fully_shard(
        model,
        mp_policy=MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16
        ),
    )
other(p)
=== precision of which nothing is known
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), mixed_precision=config.precision)
---
mp_policy = MixedPrecisionPolicy()
if config.precision is not None:
    mp_policy = MixedPrecisionPolicy(
        param_dtype=config.precision.param_dtype,
        reduce_dtype=config.precision.reduce_dtype or config.precision.param_dtype,
    )
with like_fsdp1(model, buffer_dtype=config.precision and config.precision.buffer_dtype):
    for module in reversed(list(model.modules())):
        if isinstance(module, Block):
            # As under FSDP1, only the root casts its inputs
            fully_shard(module, mp_policy=replace(mp_policy, cast_forward_inputs=False))
    fully_shard(model, mp_policy=mp_policy)
"""
)


@pytest.mark.parametrize("name", WRITTEN)
def test_an_argument_by_its_expression(name: str) -> None:
    before, expected = WRITTEN[name]
    report, after = analyse(HEAD + before)
    assert without_imports(after) == expected
    found = [each.action.value for each in report.findings if each.code == "FSDP002"]
    assert set(found) == ({"runtime"} if "units(" in after else {"rewrite"})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("", True),
        (", cast_forward_inputs=True", False),
        (", cast_root_forward_inputs=False", False),
    ],
)
def test_that_the_root_alone_casts_is_said_where_it_is_so(given: str, said: bool) -> None:
    policy = f"MixedPrecision(param_dtype=torch.bfloat16{given})"
    call = f"model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({{Block}}), mixed_precision={policy})\n"
    messages = [f.message for f in analyse(HEAD + call)[0].findings if f.code == "FSDP213"]
    assert any("only the root casts" in message for message in messages) is said
