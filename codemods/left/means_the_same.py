"""The safe list: what may be asked of parameters and their names, or done to them, and means the same under FSDP2."""

# Functions that give the items that they are given.
SAME = frozenset(
    {"iter", "list", "reversed", "set", "sorted", "tuple", "deque", "chain", "dict", "tqdm"}
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
    retain_grad rsqrt sign sqrt square sub sub_ to type zero_""".split()  # noqa: SIM905
)
# Functions that do the same with parameters of both kinds, or that have rules of their own.
TAKES_PARAMETER = frozenset(
    """add_param_group all all_gather all_reduce any append assert_close bool broadcast clip_grad_norm_ clip_grad_value_ debug
    deepcopy discard empty_like error extend full_like getattr hasattr id info is_floating_point is_tensor isinstance log
    ones_like print reduce remove repr setattr str type unscale_ warning zeros_like""".split()  # noqa: SIM905
) | {"add"}
OF_OPTIMIZERS = (
    *("optim", "param_group", "parameter_group"),
    *("Adam", "SGD", "Lion", "Lamb", "Adafactor", "Muon"),
)
# Methods that put something into a list, a set or a dictionary.
APPENDING = frozenset({"add", "append", "extend", "insert", "update"})
# What makes a name of a name, and looks for a text anywhere in it.
NAMES = frozenset({"format", "join", "lower", "removeprefix", "replace", "strip"})
SEARCHING = frozenset({"findall", "finditer", "search", "sub"})
