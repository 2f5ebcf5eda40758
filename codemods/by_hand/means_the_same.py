"""The safe list: what may be asked of parameters and their names, or done to them, and means the same under FSDP2."""

# Functions that give the items that they are given.
SAME = frozenset(
    {
        "chain",
        "deque",
        "dict",
        "from_iterable",
        "frozenset",
        "islice",
        "iter",
        "list",
        "reversed",
        "set",
    }
    | {"sorted", "tqdm", "tuple"}
)
# Functions of the number of items, or of their places.
COUNTING = frozenset({"array_split", "batched", "enumerate", "islice", "len"})
# Functions that take items one by one.
ITERATING = frozenset(
    {"enumerate", "filter", "groupby", "map", "max", "min", "next", "reduce", "zip"}
)
# Functions that write what they are given into a file, or into bytes.
SAVING = frozenset({"dump", "dumps", "save", "save_file"})
# Methods of a parameter that draw values for it, and of a module that draw its parameters.
DRAWN = frozenset(
    {"exponential_", "kaiming_normal_", "normal_", "random_", "trunc_normal_", "uniform_"}
)
DRAWS_MODULE = frozenset(
    {"_init_weights", "init_weights", "initialize_weights", "reset_parameters"}
)
# Not sharded alike.
TRANSPOSED = frozenset({"H", "T", "mH", "mT"})
# Attributes of a module that are none of its parts.
OF_MODULE = frozenset(
    {"config", "device", "dtype", "forward", "training", "in_features", "out_features"}
)
# Asked of a parameter: a DTensor answers alike, or counts, shapes and hooks have a rule of their own.
ASKED = frozenset(
    """requires_grad device dtype is_cuda is_leaf layout is_floating_point is_complex numel nelement shape size ndim dim stride
    element_size storage untyped_storage data_ptr register_hook register_post_accumulate_grad_hook is_sparse is_contiguous
    to_local full_tensor""".split()  # noqa: SIM905
)
# Done to each element, in place or not: what comes out is sharded alike.
ELEMENTWISE = frozenset(
    """abs add add_ addcdiv_ addcmul_ bfloat16 clamp clamp_ clone contiguous copy_ cpu cuda data detach detach_ div div_ double
    fill_ float grad half isfinite isinf isnan lerp lerp_ mul mul_ nan_to_num nan_to_num_ neg neg_ pow pow_ requires_grad_
    addcdiv addcmul empty_like exp isclose maximum minimum no_grad ones_like relu retain_grad rsqrt sign sqrt square sub sub_
    tanh to type where zero_ zeros_like""".split()  # noqa: SIM905
)
# Functions that do the same with parameters of both kinds, or that have rules of their own.
TAKES_PARAMETER = frozenset(
    """add_param_group all all_gather all_reduce any append assert_close bool broadcast clip_grad_norm_ clip_grad_value_
    debug deepcopy discard empty_like error extend full_like getattr hasattr id info is_floating_point is_tensor
    isinstance local_shard log ones_like print reduce remove repr setattr str type unscale_ warning zeros_like
    _broadcast_coalesced""".split()  # noqa: SIM905
) | {"add"}
OF_OPTIMIZERS = (
    *("optim", "param_group", "parameter_group"),
    *("Adam", "SGD", "Lion", "Lamb", "Adafactor", "Muon"),
)
# Methods that put something into a list, a set or a dictionary.
APPENDING = frozenset({"add", "append", "extend", "insert", "update"})
# What makes a name of a name, and looks for a text anywhere in it.
NAMES = frozenset({"encode", "format", "join", "lower", "removeprefix", "replace", "strip"})
SEARCHING = frozenset({"findall", "finditer", "search", "sub"})
# What the name of a function has in it that shows its arguments to somebody, or takes FSDP1's prefixes off.
SHOWING = ("debug", "info", "log", "print", "show", "warn", "write")
CLEANING = ("canonical", "clean", "fqn", "strip", "unwrap")
