"""What the modules of torch, and the names of other packages, put into a model: a BatchNorm, a buffer, or neither."""

from __future__ import annotations

import re
from dataclasses import dataclass

# Modules of torch.nn that hold neither a BatchNorm nor a buffer, whatever their arguments. The loss functions are not
# among them: their weights are buffers.
_CONTAINERS = frozenset({"Sequential", "ModuleList", "ModuleDict"})
_PLAIN_MODULES = re.compile(
    r"""(Lazy)?Linear | Bilinear | Identity | Flatten | Unflatten | Fold | Unfold | PixelShuffle | PixelUnshuffle
    | Embedding | EmbeddingBag | LayerNorm | RMSNorm | GroupNorm | LocalResponseNorm
    | (Lazy)?Conv(Transpose)?[123]d | (Adaptive)?(Max|Avg)Pool[123]d | Upsample | \w+Pad[123]d
    | ((Alpha|FeatureAlpha)?Dropout[123]?d?)
    | ReLU6? | LeakyReLU | PReLU | RReLU | ELU | CELU | SELU | GELU | GLU | SiLU | Mish | Tanh | Sigmoid | LogSigmoid
    | Softmax | LogSoftmax | Softplus | Softmin | Softsign | Hard(sigmoid|swish|tanh|shrink) | Tanhshrink | Threshold
    | MultiheadAttention | Transformer((En|De)coder(Layer)?)? | RNN | LSTM | GRU | (RNN|LSTM|GRU)Cell
    | Module | Parameter | ParameterList | ParameterDict | CosineSimilarity | PairwiseDistance
    """,
    re.VERBOSE,
)
_FUNCTIONS = re.compile(
    r"torch\.(nn\.(functional|init)|cuda|linalg|fft|special|random|amp|autocast|backends|utils\.checkpoint|finfo|iinfo)\.\w.*"
    r"|torch\.(?!load$|compile$|classes|ops|hub|jit|fx|export)\w+"
)
_PLAIN_PACKAGES = frozenset({"math", "typing", "dataclasses", "collections", "os", "logging"})
# What these return is what they are given.
HANDING_ON = frozenset({"functools", "itertools", "copy"})
# Methods and functions that put what they are given into a module.
STORING = frozenset(
    {"append", "extend", "insert", "add_module", "register_module", "setattr", "__setattr__"}
    | {"update"}
)


@dataclass(frozen=True)
class Makeup:
    """What is known of a model's parts.

    Attributes:
        no_batch_norm: proven that no part is a BatchNorm.
        no_buffers: proven that no part has a buffer.
    """

    no_batch_norm: bool
    no_buffers: bool

    def __and__(self, other: Makeup) -> Makeup:
        return Makeup(
            self.no_batch_norm and other.no_batch_norm, self.no_buffers and other.no_buffers
        )


PLAIN = Makeup(True, True)
UNKNOWN = Makeup(False, False)


def of_external(dotted: str) -> Makeup:
    """What can come from a name of another package."""
    if "BatchNorm" in dotted:
        return UNKNOWN
    root, _, rest = dotted.partition(".")
    if root in _PLAIN_PACKAGES or root in HANDING_ON or root in {"abc", "enum", "__future__"}:
        return PLAIN
    if root != "torch":
        return UNKNOWN
    if rest in {"", "nn", "nn.functional", "nn.init"} or _FUNCTIONS.fullmatch(dotted):
        return PLAIN
    if rest.startswith("nn."):
        name = rest.removeprefix("nn.").removeprefix("modules.")
        first = name.split(".")[0]
        if first in _CONTAINERS or _PLAIN_MODULES.fullmatch(first):
            return PLAIN
        if first[:1].isupper():
            return Makeup(
                True, False
            )  # a loss, an InstanceNorm: no BatchNorm, but perhaps a buffer
    return UNKNOWN


def is_container(dotted: str) -> bool:
    """Whether a name is a container of torch's."""
    return dotted.startswith("torch.nn.") and dotted.rpartition(".")[2] in _CONTAINERS
