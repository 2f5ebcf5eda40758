"""Stands in for what programs download: models get random weights and a few layers, tokenizers and data sets are made up.

It runs when the interpreter starts, from PYTHONPATH, and changes a package once it is imported. The program itself
is not edited.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

VOCABULARY = 128
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}


class Tokenizer:
    """A letter is a token."""

    pad_token_id, eos_token_id, bos_token_id, unk_token_id = 0, 1, 1, 2
    pad_token = eos_token = bos_token = "<>"
    padding_side = "right"
    chat_template = None

    def __len__(self) -> int:
        return VOCABULARY

    def encode(self, text: str, add_special_tokens: bool = True, **_: Any) -> list[int]:
        return [3 + ord(letter) % (VOCABULARY - 3) for letter in text] + [1] * add_special_tokens

    def __call__(self, text: Any, max_length: int = 512, padding: Any = False, **how: Any) -> Any:
        import torch

        several = isinstance(text, list)
        rows = [
            self.encode(each, how.get("add_special_tokens", True))[:max_length]
            for each in (text if several else [text])
        ]
        length = max_length if padding == "max_length" else max(map(len, rows))
        fill = length if padding else 0
        found: dict[str, Any] = {
            "input_ids": [row + [0] * (fill - len(row)) for row in rows],
            "attention_mask": [[1] * len(row) + [0] * (fill - len(row)) for row in rows],
        }
        if how.get("return_tensors") == "pt":
            from transformers import BatchEncoding

            return BatchEncoding({name: torch.tensor(value) for name, value in found.items()})
        return found if several else {name: value[0] for name, value in found.items()}

    batch_encode_plus = __call__

    def convert_ids_to_tokens(self, ids: Any) -> Any:
        return ids

    def decode(self, ids: Any, **_: Any) -> str:
        return str(list(ids))

    def batch_decode(self, rows: Any, **_: Any) -> list[str]:
        return [self.decode(row) for row in rows]

    def save_pretrained(self, folder: str) -> None: ...


def text(seed: int, words: int = 12) -> str:
    """A few made-up words."""
    draw = random.Random(seed)
    letters = "abcdefghijklmnopqrstuvwxyz"
    return " ".join("".join(draw.choices(letters, k=draw.randint(1, 6))) for _ in range(words))


@contextlib.contextmanager
def _seeded() -> Iterator[None]:
    """Weights are the same in every process, as downloaded ones are."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def _model(cls: Any, *_: Any, **how: Any) -> Any:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, T5Config

    if not hasattr(cls, "config_class"):  # AutoModelForCausalLM
        cls = GPTNeoXForCausalLM
    config = cls.config_class
    made = config(**T5) if config is T5Config else config(**SIZES)
    made.use_cache = how.get("use_cache", True) is not False and config is not GPTNeoXConfig
    with _seeded():
        model = cls(made)
    dtype = how.get("torch_dtype", how.get("dtype"))
    return model.to(dtype) if dtype is not None and dtype != "auto" else model


def _models(module: Any) -> None:
    module.PreTrainedModel.from_pretrained = classmethod(_model)
    module.PreTrainedModel.save_pretrained = lambda self, *args, **kwargs: None


def _auto_models(module: Any) -> None:
    module._BaseAutoModelClass.from_pretrained = classmethod(_model)


def _tokenizers(module: Any) -> None:
    base = getattr(module, "PreTrainedTokenizerBase", None) or module.AutoTokenizer
    base.from_pretrained = classmethod(lambda cls, *args, **kwargs: Tokenizer())


def _configs(module: Any) -> None:
    def llama(*_: Any, **__: Any) -> Any:
        from transformers import LlamaConfig

        return LlamaConfig(**SIZES)

    module.AutoConfig.from_pretrained = llama


def _summary(number: int) -> dict[str, str]:
    row = {"id": str(number), "dialogue": text(number), "summary": text(number + 1000, 5)}
    return {**row, "text": f"{row['dialogue']} {row['summary']}"}


def _preference(number: int) -> dict[str, str]:
    asked = f"\n\nHuman: {text(number)}\n\nAssistant: "
    return {"chosen": asked + text(number + 1000, 5), "rejected": asked + text(number + 2000, 5)}


def _datasets(module: Any) -> None:
    def load_dataset(name: str, split: str = "train", **_: Any) -> Any:
        numbers = range(16) if split == "train" else range(16, 24)
        row = _preference if name == "Anthropic/hh-rlhf" else _summary
        return module.Dataset.from_list([row(number) for number in numbers])

    module.load_dataset = load_dataset


def _transformers(module: Any) -> None:
    import torch

    # It had the name up to release 4. On the class, because the package can make its module twice.
    type(module).AdamW = torch.optim.AdamW


def _no_images(module: Any) -> None:
    # torchvision stands in for a part of itself.
    module.is_torchvision_available = module.is_torchvision_v2_available = lambda: False


def _diffusion(module: Any) -> None:
    """The models of Lumina-T2X and LLaMA2-Accessory, of two layers, where a program asks for its smallest."""

    def small(cls: Any, **sizes: int) -> Callable[..., Any]:
        return lambda **how: cls(dim=64, n_layers=2, n_heads=4, **sizes, **how)

    if hasattr(module, "nextdit"):
        module.NextDiT_2B_patch2 = small(module.nextdit.NextDiT, patch_size=2)
    else:
        made = small(getattr(module, "model", module).DiT_Llama, patch_size=8)
        module.DiT_Llama_600M_patch2, module.DiT_models = made, {"DiT_Llama_600M_patch2": made}


def _captions(module: Any) -> None:
    from torchvision.datasets import ImageFolder

    class Captions(ImageFolder):
        """Pictures of 64 by 64 and what they show."""

        def __init__(self, *_: Any, **__: Any) -> None:
            super().__init__("")

        def __getitem__(self, index: int) -> Any:
            return self.images[index, :, :64, :64], f"a picture of {'abc' * index}"

    module.MyDataset = Captions


def _crops(module: Any) -> None:
    import torch

    class Crops(torch.utils.data.Dataset[Any]):
        """Pictures, each as two large views and eight small ones, and nothing that they show."""

        def __init__(self, *_: Any, **__: Any) -> None:
            draw = torch.Generator().manual_seed(0)
            self.large = torch.randn(16, 2, 3, 32, 32, generator=draw)
            self.small = torch.randn(16, 8, 3, 16, 16, generator=draw)

        def __len__(self) -> int:
            return len(self.large)

        def __getitem__(self, index: int) -> Any:
            return {"global_crops": self.large[index], "local_crops": self.small[index]}, ()

    module.make_dataset = module.DataAugmentationDINO = Crops


def _triples(module: Any) -> None:
    """A graph of 24 things and 3 relations in the folder `graph`; every rank writes it."""
    draw = random.Random(0)
    rows = {(draw.randrange(24), draw.randrange(3), draw.randrange(24)) for _ in range(200)}
    folder = Path("graph")
    folder.mkdir(exist_ok=True)
    written = folder / str(os.getpid())
    written.write_text("".join(f"thing{a} relation{b} thing{c}\n" for a, b, c in sorted(rows)))
    written.replace(folder / "train.txt")


def _videos(module: Any) -> None:
    import torch

    class Latents(torch.utils.data.Dataset[Any]):
        """Videos of three frames of eight by eight, the embedding of what they show, and its length as a mask."""

        lengths = [1] * 16
        uncond_prompt_embed, uncond_prompt_mask = torch.zeros(16, 32), torch.zeros(16).bool()

        def __init__(self, *_: Any) -> None:
            draw = torch.Generator().manual_seed(0)
            self.videos = torch.randn(16, 12, 3, 8, 8, generator=draw)
            self.texts = torch.randn(16, 16, 32, generator=draw)

        def __len__(self) -> int:
            return len(self.videos)

        def __getitem__(self, index: int) -> Any:
            return self.videos[index], self.texts[index], torch.arange(16) <= index

    module.LatentDataset = Latents


def _video_models(module: Any) -> None:
    def small(cls: Any, *_: Any, **__: Any) -> Any:
        sizes = {"num_attention_heads": 4, "attention_head_dim": 16, "num_layers": 3}
        texts = {"text_embed_dim": 32, "pooled_projection_dim": 32, "max_sequence_length": 16}
        with _seeded():
            return cls(**sizes, **texts)

    module.ModelMixin.from_pretrained = classmethod(small)


PATCHES: dict[str, Callable[[Any], None]] = {
    "data": _captions,
    "datasets": _datasets,
    "dicee.executer": _triples,
    "dinov2.data": _crops,
    "diffusers.models.modeling_utils": _video_models,
    "fastvideo.dataset.latent_datasets": _videos,
    "models": _diffusion,
    "transformers": _transformers,
    "transformers.utils.import_utils": _no_images,
    "transformers.models.auto.configuration_auto": _configs,
    "transformers.modeling_utils": _models,
    "transformers.models.auto.auto_factory": _auto_models,
    "transformers.models.auto.tokenization_auto": _tokenizers,
    "transformers.tokenization_utils_base": _tokenizers,
}


class _Patches(MetaPathFinder):
    def __init__(self) -> None:
        self._asking: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        patch = PATCHES.get(fullname)
        if patch is None or fullname in self._asking:
            return None
        self._asking.add(fullname)
        try:
            return self._patched(fullname, path, target, patch)
        finally:
            self._asking.remove(fullname)

    def _patched(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None,
        patch: Callable[[Any], None],
    ) -> ModuleSpec | None:
        for finder in [finder for finder in sys.meta_path if finder is not self]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                execute = spec.loader.exec_module

                def exec_module(module: ModuleType, execute: Any = execute) -> None:
                    execute(module)
                    patch(sys.modules[module.__name__])  # a lazy one takes its place

                spec.loader.exec_module = exec_module  # type: ignore[method-assign]
                return spec
        return None


class _Absent(MetaPathFinder, Loader):
    """Packages that a program imports and, as it is run here, does not use: each name is a class without meaning."""

    names = (
        "decord",
        "torchao",
        "tiktoken",
        "torchvision.models",
        "torchvision.transforms.v2",
        "xformers",
    )

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        wanted = any(fullname == name or fullname.startswith(f"{name}.") for name in self.names)
        return ModuleSpec(fullname, self, is_package=True) if wanted else None

    def create_module(self, spec: ModuleSpec) -> None: ...

    def exec_module(self, module: ModuleType) -> None:
        def attribute(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            made = {"__init__": lambda self, *_, **__: None, "__call__": lambda self, call: call}
            setattr(module, name, type(name, (), made))
            return getattr(module, name)

        module.__getattr__ = attribute  # type: ignore[method-assign]
        module.__version__ = "0.3.0"  # type: ignore[attr-defined]


def _seed(value: Any = None, version: int = 2, seed: Callable[..., None] = random.seed) -> None:
    """Takes numpy's numbers too, as Python did up to 3.10."""
    seed(value.item() if hasattr(value, "item") else value, version)


random.seed = _seed
sys.meta_path[:] = [_Patches(), *sys.meta_path, _Absent()]
