"""What generated programs are made of: `$FSDP` and other names of FSDP1, `$m` a model, `$call` a constructor's call, `$e` an
expression, `$n` a new name, `$c` perhaps a comment."""

_FSDP = "torch.distributed.fsdp"
_CLASS = f"{_FSDP}.fully_sharded_data_parallel"
_WRAP = f"{_FSDP}.wrap"

# Each name of FSDP1, and where torch has it.
NAMES = {
    **dict.fromkeys(
        (
            "FullyShardedDataParallel",
            "ShardingStrategy",
            "MixedPrecision",
            "CPUOffload",
            "BackwardPrefetch",
            "StateDictType",
            "FullStateDictConfig",
            "ShardedStateDictConfig",
            "FullOptimStateDictConfig",
        ),
        (_FSDP, _FSDP, _CLASS),
    ),
    **dict.fromkeys(
        (
            "ModuleWrapPolicy",
            "size_based_auto_wrap_policy",
            "transformer_auto_wrap_policy",
            "wrap",
            "enable_wrap",
        ),
        (_WRAP,),
    ),
    "ShardedGradScaler": (f"{_FSDP}.sharded_grad_scaler",),
}

ARGUMENTS = {
    "sharding_strategy": (
        *(
            f"$ShardingStrategy.{n}"
            for n in ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD")
        ),
        "None",
        "given",
        "$ShardingStrategy[name]",
        "$ShardingStrategy.FULL_SHARD if $e else $ShardingStrategy.NO_SHARD",
    ),
    "cpu_offload": (
        "$CPUOffload(True)",
        "$CPUOffload(offload_params=False)",
        "None",
        "$CPUOffload(offload_params=$e)",
    ),
    "auto_wrap_policy": (
        "$ModuleWrapPolicy({Block})",
        "$ModuleWrapPolicy([Norm, Block])",
        "partial($transformer_auto_wrap_policy, transformer_layer_cls={Block})",
        "functools.partial($size_based_auto_wrap_policy, min_num_params=100)",
        "$ModuleWrapPolicy({Block} | {Norm})",
        "$ModuleWrapPolicy({\n        Block,  # the block\n    })",
        "policy",
        "lambda module, recurse, nonwrapped_numel: recurse",
        "None",
    ),
    "backward_prefetch": (
        "$BackwardPrefetch.BACKWARD_PRE",
        "$BackwardPrefetch.BACKWARD_POST",
        "None",
    ),
    "mixed_precision": (
        "$MixedPrecision(torch.bfloat16)",
        "$MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=True)",
        "$MixedPrecision(torch.bfloat16, cast_root_forward_inputs=False)",
        "$MixedPrecision()",
        "types",
        "None",
    ),
    "device_id": ("torch.cuda.current_device()", "3", "None", "$e"),
    "sync_module_states": ("True", "False", "$e"),
    "limit_all_gathers": ("True", "bool(0)"),
    "use_orig_params": ("True", "not 1", "$e"),
    "device_mesh": ("None", "init_device_mesh('cuda', (8,))"),
    "forward_prefetch": ("True", "False"),
    "ignored_modules": ("[$m.head]", "None"),
    "param_init_fn": ("lambda m: m.to_empty(device='cuda')", "None"),
    "process_group": ("None", "group"),
}

EXPRESSIONS = (
    "1", "None", "x", "'FSDP(model)'", "0x_ff", "1e-3j", "...", "b'\\x00'", "rb'\\d'", "'\\d'", "'%d' % x is 1", "''", "\"it's\"", "'''a\n  # no comment\nb'''",
    "(1,)", "()", "[]", "{}", "{1: 2, **a}", "{*a, 1}", "[*a, *b]", "a[1:2, ..., ::3]", "a.b.c(d)(e)", "-x ** +y", "a @ b",
    "not a", "a and b or c", "1 < x <= 3 != y", "x if y else z", "lambda: 0", "lambda a, /, b=1, *c, d, **e: (a, b)",
    "lambda *, k=$FSDP: k", "[x for x in y if x if z]", "{k: v for k, v in z.items()}", "{a for b in c for a in b}",
    "sum(x for x in y)", "(w := 3)", "f(*a, *b, k=1, **c, **d)", "f'{x!r:>{width}} {{}} {y=}'", "f'{$m}' 'b' \"c\"",
    "f'''{\n    x\n}'''", "('implicit'\n        'string')", "x is not None", "x not in y", "~a & b | c ^ d", "a // b % c << d >> e",
    "$FSDP", "$ShardingStrategy.FULL_SHARD", "$StateDictType", "isinstance($m, $FSDP)", "type($m) is $FSDP",
    "isinstance($m, (DDP, $FSDP))", "$m.state_dict()", "$m.module", "$m.clip_grad_norm_(1.0)", "getattr($m, 'no_sync')",
    "[p for p in $m.parameters()]", "$MixedPrecision(torch.float16)", "$CPUOffload", "$FSDP.fsdp_modules($m)",
    "{'zero3': $ShardingStrategy.FULL_SHARD, 'ddp': $ShardingStrategy.NO_SHARD}", "f'{$FSDP}'", "[$call]", "($call, 1)",
    "$call(x)", "(w := $call)", "f($call, *$call)", "$call if $m else $call", "lambda net: $call",
    "[$call for net in nets]",
)  # fmt: skip

STATEMENTS = (
    "$m = $call$c", "model = Net()\nmodel = $call$c", "$n = $call; $n = 2$c", "$m: object = $call", "a = b = $call", "a, b = $call, $e",
    "d['m'] = $call", "models += [$call]", "$call", "$n = $e$c", "$n = $e; $n = $e", "print($e)$c", "assert $e, $e", "del $n",
    "$n: '$FSDP | None' = None", "$n: $FSDP", "T = list['$FSDP']", "pass$c", "global_ = $FSDP", "types = $MixedPrecision(torch.bfloat16, torch.float32)$c",
    "given = $ShardingStrategy.FULL_SHARD", "policy = $ModuleWrapPolicy({Block})$c", "# only a comment, FSDP\npass",
    "optimizer = torch.optim.SGD($m.parameters(), $e)", "scaler = $ShardedGradScaler()$c", "scaler = $ShardedGradScaler(enabled=$e)",
    "$m.clip_grad_norm_(1.0)$c", "norm = $m.clip_grad_norm_(max_norm=2.0, norm_type=$e)", "$m.clip_grad_norm_(  # a\n    # b\n    1.0,  # c\n)  # d",
    "with $m.no_sync():$c\n    loss.backward()", "with $m.no_sync() if $e else nullcontext():\n    pass$c",
    "with $m.no_sync(), $FSDP.summon_full_params($m) as $n:\n    pass",
    "with $FSDP.summon_full_params($m, writeback=False):$c\n    print($m)$c", "with $FSDP.summon_full_params($m): $n = $m.weight",
    "with $FSDP.state_dict_type($m, $StateDictType.FULL_STATE_DICT):$c\n    sd = $m.state_dict()$c",
    "with $FSDP.state_dict_type($m, $StateDictType.FULL_STATE_DICT, $FullStateDictConfig(offload_to_cpu=True, rank0_only=True)):\n    # f\n    sd = $m.state_dict()\n    # h",
    "with $FSDP.state_dict_type($m, $StateDictType.SHARDED_STATE_DICT): sd = $m.state_dict(); y = 1",
    "with (  # a\n    $FSDP.state_dict_type($m, $StateDictType.FULL_STATE_DICT),\n    torch.no_grad(),  # b\n):\n    '''text\n  of more lines'''\n    sd = $m.state_dict()$c",
    "with $FSDP.state_dict_type($m, $StateDictType.SHARDED_STATE_DICT):\n    sd = {\n  'm': $m.state_dict(),\n    # deep\n        }\n    if sd:\n        save(sd)\n    # tail",
    "$FSDP.set_state_dict_type(\n    $m,$c\n    $StateDictType.FULL_STATE_DICT,$c\n    $FullStateDictConfig(rank0_only=False),\n    $FullOptimStateDictConfig(rank0_only=False),\n)$c\nsd = $m.state_dict()",
    "$m.load_state_dict(torch.load($e))$c", "osd = $FSDP.optim_state_dict($m, optimizer)$c",
    "optimizer.load_state_dict($FSDP.optim_state_dict_to_load($m, optimizer, osd))$c", "s = $FSDP.full_optim_state_dict($m, optimizer, rank0_only=True)",
    "r = $FSDP.scatter_full_optim_state_dict(s, $m)\noptimizer.load_state_dict(r)$c", "$m.apply(init)", "$m.register_comm_hook(None, hook)",
    "for module in $m.modules():\n    if isinstance(module, $FSDP):$c\n        module.reshard = 1", "n = sum(p.numel() for p in $m.parameters())",
    "inner = $m.module._fsdp_wrapped_module$c", "inner = getattr($m, '_fsdp_wrapped_module', $m)", "$m = $wrap($m)", "save(unwrap($m.module))",
    "with $enable_wrap(wrapper_cls=$FSDP, auto_wrap_policy=$e):\n    $m = $wrap(Net())$c", "apply_activation_checkpointing($m, check_fn=$e)",
    "$m = torch.compile($call)", "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP$c\nFSDP($m)",
    "if $e: $m = $call\nelse: $m = $e$c", "while $e: $m = $call; break", "x = 1 \\\n    + 2", "$m = \\\n    $call", "import numpy as np; import os",
    "from m import Block, Net, Norm", "class FSDP2: pass", "def fully_shard(m): return m", "__all__ = ['FSDP', \"FullyShardedDataParallel\"]",
    "try: $m = $call\nexcept (ValueError, TypeError) as $n: raise RuntimeError($e) from $n\nelse: pass\nfinally: pass$c",
    "lambda_ = lambda net, **kw: $FSDP(net, **kw)", "raise SystemExit($e)", "print(*$e, sep='')  if $e else 0",
    "fsdp_kwargs = dict(\n    sharding_strategy=$ShardingStrategy.FULL_SHARD,$c\n    use_orig_params=True,\n)\n$m = $FSDP($m, **fsdp_kwargs)$c",
)  # fmt: skip

# Programs that do only what becomes plain, so that rules meet any layout: first how the model is made, then uses.
CALM = (
    "model = Net()$c\nmodel = $plain$c",
    "model = Net()\n# wrap\nmodel = $plain; x = 1$c",
    "def build(model: Net):\n    return $plain$c\n\n\nmodel = build(Net())",
    "def build():\n    model = Net()\n    model = $plain$c\n    return model\n\n\nmodel = build()",
    "if torch.cuda.is_available():\n    model = Net()\n    model = $plain$c\nelse:\n    pass",
    "policy = $ModuleWrapPolicy({Block})$c\ntypes = $MixedPrecision(torch.bfloat16)\nmodel = Net()\nmodel = $plain",
    "class Trainer:\n    def __init__(self, model: Net):\n        self.model = $plain$c",
    "fsdp_kwargs = dict(\n    sharding_strategy=$ShardingStrategy.SHARD_GRAD_OP,$c\n    use_orig_params=True,\n)\nmodel = Net()\nmodel = $FSDP(model, **fsdp_kwargs)$c",
)
CALM_USES = (
    "$m.clip_grad_norm_(1.0)$c",
    "norm = $m.clip_grad_norm_(max_norm=2.0)$c",
    "with $m.no_sync():$c\n    $m(1).backward()",
    "optimizer = torch.optim.SGD($m.parameters(), 0.1)$c",
    "scaler = $ShardedGradScaler()$c",
    "with $FSDP.state_dict_type($m, $StateDictType.FULL_STATE_DICT):$c\n    sd = $m.state_dict()$c",
    "with $FSDP.state_dict_type(\n    $m,$c\n    $StateDictType.FULL_STATE_DICT,\n    $FullStateDictConfig(offload_to_cpu=True, rank0_only=True),$c\n):\n    # f\n    sd = $m.state_dict()\n    # h",
    "with $FSDP.state_dict_type($m, $StateDictType.SHARDED_STATE_DICT):\n    if sd:\n        sd = {'m': $m.state_dict(), 't': '''\n  text'''}$c\n    # tail",
    "$FSDP.set_state_dict_type($m, $StateDictType.FULL_STATE_DICT)$c\nsd = $m.state_dict()",
    "osd = $FSDP.optim_state_dict($m, optimizer)$c",
    "optimizer.load_state_dict($FSDP.optim_state_dict_to_load($m, optimizer, osd))$c",
    "if isinstance($m, $FSDP):$c\n    print(1)",
    "def save():\n    with $FSDP.state_dict_type($m, $StateDictType.FULL_STATE_DICT):\n        return $m.state_dict()$c",
)
PLAIN_ARGUMENTS = {
    "sharding_strategy": ("$ShardingStrategy.FULL_SHARD", "$ShardingStrategy.SHARD_GRAD_OP"),
    "cpu_offload": ("$CPUOffload(True)", "$CPUOffload(offload_params=False)", "None"),
    "auto_wrap_policy": (
        "$ModuleWrapPolicy({Block})",
        "$ModuleWrapPolicy({\n        Block,  # the block\n    })",
        "functools.partial($transformer_auto_wrap_policy, transformer_layer_cls={Block})",
    ),
    "backward_prefetch": ("$BackwardPrefetch.BACKWARD_PRE",),
    "mixed_precision": (
        "$MixedPrecision(torch.bfloat16)",
        "$MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)",
    ),
    "device_id": ("torch.cuda.current_device()",),
    "limit_all_gathers": ("True",),
    "use_orig_params": ("True",),
}

# Compound statements around others.
SHELLS = [
    "if $e:$c\n    BLOCK",
    "if $e:\n    BLOCK\nelif $m:$c\n    BLOCK\nelse:\n    BLOCK",
    "for $n, *_ in $e:$c\n    BLOCK\nelse:\n    BLOCK",
    "while $e:\n    BLOCK\n    break",
    "try:\n    BLOCK\nexcept OSError:\n    BLOCK",
    "try:\n    BLOCK\nexcept (OSError, ValueError) as error:\n    BLOCK\nelse:\n    BLOCK\nfinally:$c\n    BLOCK",
    "with open($e) as f, f:\n    BLOCK",
    "with (\n    a as b,$c\n    c,\n):\n    BLOCK",
    "def f(model, /, net=$e, *args, m: '$FSDP' = None, **kw) -> $FSDP:$c\n    BLOCK\n    return $call",
    "def f(self, net):\n    '''FSDP.'''\n    BLOCK\n    return net",
    "@decorator($e)$c\n@other\ndef f(*everything, **options):\n    nonlocal_ = 1\n    BLOCK\n    yield $e",
    "async def f(model):\n    async with a as b:\n        BLOCK\n    async for x in y:\n        BLOCK\n    await $e\n    return [x async for x in y]",
    "class Trainer(Base, metaclass=M):$c\n    model: object = $e\n    def __init__(self, net):\n        super().__init__()\n        self.model = $call\n        BLOCK",
    "@dataclass\nclass Config:\n    strategy: $ShardingStrategy = $ShardingStrategy.FULL_SHARD\n    BLOCK",
    "class W($FSDP):\n    def forward(self, *a):\n        BLOCK\n        return super().forward(*a)",
    "match $e:\n    case $FSDP():\n        BLOCK\n    case [1, *rest] | {'a': rest} if $m:$c\n        BLOCK\n    case str() as s:\n        BLOCK\n    case _:\n        BLOCK",
    "def outer(net):\n    def inner():\n        nonlocal net\n        net = $call\n        BLOCK\n    global GLOBAL\n    GLOBAL = inner()\n    return net",
    "def build():\n    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP$c\n    BLOCK\n    return FSDP(Net())",
    "if __name__ == '__main__':\n    BLOCK",
    "def f(net):  \n\n    # first\n\n    BLOCK\n\n    # last\n",
]

# The same, by the release of Python that has the syntax.
NEWER = [
    ((3, 11), "try:\n    BLOCK\nexcept* OSError as group:\n    BLOCK"),
    ((3, 11), "def f(*args: *Ts):\n    BLOCK"),
    ((3, 12), "type Model[T: $FSDP] = list[T] | '$FSDP'\nif x:\n    BLOCK"),
    ((3, 12), "def f[T: $FSDP, *Ts, **P](net: T) -> T:\n    BLOCK\n    return $call"),
    ((3, 12), "class G[T]:\n    BLOCK"),
    ((3, 12), "print(f'{f'{$m}' + f\"{'a'}\"}')\nif x:\n    BLOCK"),
    ((3, 13), "class D[T = $FSDP]:\n    BLOCK"),
    ((3, 14), "try:\n    BLOCK\nexcept OSError, ValueError:\n    BLOCK"),
    ((3, 14), "x = t'{$m} {x!r}'\nif x:\n    BLOCK"),
]
