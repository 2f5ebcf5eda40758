"""The public training programs of `real_programs.py`: where they are, how they are run, and what is edited."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from by_hand import STANDINS

# Each clone's repository and commit: torchtune's and torchtitan's last before their FSDP2, a tutorial that has FSDP1.
CLONES = {
    "examples": ("pytorch/examples", "77f55b912142e11fcfdf5b530231fb9c52f181e8"),
    "llama-cookbook": ("meta-llama/llama-cookbook", "0e0033518623d03ac5c1654bf04b7e480f7d5e5a"),
    "direct-preference-optimization": (
        "eric-mitchell/direct-preference-optimization",
        "f8b8c0f49dc92a430bae41585f9d467d3618fe2f",
    ),
    "Lumina-T2X": ("Alpha-VLLM/Lumina-T2X", "1c606962f95899da711633ee3a333d21c753e2d9"),
    "LLaMA2-Accessory": ("Alpha-VLLM/LLaMA2-Accessory", "3777c43940ddfb45d3bc1046b118ca4401747ee2"),
    "fms-fsdp": ("foundation-model-stack/fms-fsdp", "5a296afe42f9932f590783cb053fa0f9384e01fc"),
    "torchtune-before": ("pytorch/torchtune", "3955b339f360635c6473c31124361ef14748d0d5"),
    "torchtitan-before": ("pytorch/torchtitan", "ab5d91823f835e8688f381e3ff24706d7ae50cff"),
    "open_lm": ("mlfoundations/open_lm", "9bb92ef1689333534b7057942a20d18a46d1fa52"),
    "FastVideo-before": ("hao-ai-lab/FastVideo", "b79d1fc15b356b89e53e51095d82b47b3533a39e"),
    "dinov2": ("facebookresearch/dinov2", "b8931f7bf91576930313be2c6d6af376033b35f0"),
    "tutorials": ("pytorch/tutorials", "c53e7d4efc0e39e455c531d21ec7db28ba220214"),
}
# What is installed by its version instead.
RELEASES = {"dicee": "dicee==0.3.3"}


class Edit(NamedTuple):
    """Text in a file of the program's folder, and what takes its place in a copy."""

    path: str
    before: str
    after: str


@dataclass(frozen=True)
class Real:
    """A program in a public repository.

    Attributes:
        shows: what it stands for, as the page says it.
        repository: its name, and that of the clone.
        folder, entry: where it is, below the clone.
        arguments: as short a run as it allows.
        paths: folders that an installation would put on the path, below `folder` or of stand-ins.
        edits: twenty lines at most.
        options: of `verify`.
        made: the program's text from that of `entry`, where a page has it in pieces.
        before: arguments of a run of the original, from whose checkpoint both programs go on.
        by_hand: what findings and assumptions ask for, in the migrated program.
    """

    shows: str
    repository: str
    folder: str
    entry: str
    arguments: tuple[str, ...]
    paths: tuple[str, ...] = ()
    edits: tuple[Edit, ...] = ()
    options: tuple[str, ...] = ()
    made: Callable[[str], str] | None = None
    before: tuple[str, ...] = ()
    by_hand: tuple[Edit, ...] = ()


def tutorial(text: str) -> str:
    """The program of the tutorial: its blocks of code, up to the one that starts it."""
    blocks = re.findall(r"^\.\. code-block:: python\n\n((?: {4}.*\n| *\n)+)", text, re.MULTILINE)
    last = next(i for i, block in enumerate(blocks) if "__main__" in block)
    return "\n".join(textwrap.dedent(block) for block in blocks[: last + 1])


def resumed(real: Real, before: tuple[str, ...] = (), after: tuple[str, ...] = ()) -> Real:
    """The program in two runs: the original's first, with more arguments, and from its checkpoint on."""
    return replace(
        real,
        shows="the same, resumed from FSDP1's checkpoint",
        arguments=(*real.arguments, *after),
        before=(*real.arguments, *before),
    )


def dit(shows: str, repository: str, folder: str, *model: str) -> Real:
    """A diffusion transformer; all of them take the same arguments."""
    return Real(
        shows, repository, folder, "train.py", (*DIT, *model), paths=(str(STANDINS / "dit"),)
    )


def fastvideo(shows: str, script: str, *more: str) -> Real:
    return Real(
        shows,
        "FastVideo-before",
        "",
        f"fastvideo/{script}.py",
        (*FASTVIDEO, *more),
        paths=(".",),
        edits=(NO_V1,),
    )


def fms(shows: str, strategy: str, *more: str) -> Real:
    return Real(
        shows,
        "fms-fsdp",
        "",
        "main_training_llama.py",
        (*FMS, f"--sharding_strategy={strategy}", *more),
        edits=(TINY_LLAMA,),
    )


def torchtune(shows: str, recipe: str, settings: str, model: str) -> Real:
    config = ("--config", f"recipes/configs/llama2/{settings}.yaml")
    named = (f"model._component_=torchtune.models.llama2.{model}", *TORCHTUNE)
    return Real(
        shows,
        "torchtune-before",
        "",
        f"recipes/{recipe}_distributed.py",
        (*config, *named),
        paths=(".",),
    )


T5 = ("--epochs", "1", "--batch-size", "4", "--test-batch-size", "4")
FLOAT32 = Edit("configs/training.py", "mixed_precision: bool=True", "mixed_precision: bool=False")
LLAMA = (
    *("--enable_fsdp", "--model_name", "none", "--num_epochs", "1", "--context_length", "64"),
    *("--batch_size_training", "2", "--max_train_step", "4", "--max_eval_step", "2"),
    *("--dist_checkpoint_root_folder", "out", "--dist_checkpoint_folder", "model"),
)
DPO = (
    *("model=pythia28", "datasets=[hh]", "loss=dpo", "loss.beta=0.1", "exp_name=dpo"),
    *("trainer=FSDPTrainer", "sample_during_eval=false", "gradient_accumulation_steps=2"),
    *("batch_size=8", "eval_batch_size=4", "n_eval_examples=4", "n_epochs=2"),
    *("lr=1e-3", "warmup_steps=2", "minimum_log_interval_secs=0", "local_run_dir=."),
)
DIT = (
    *("--data_path", "none", "--results_dir", "out", "--max_steps", "3", "--num_workers", "0"),
    *("--global_batch_size", "8", "--micro_batch_size", "2", "--precision", "fp32"),
    *("--lr", "1e-3", "--grad_clip", "0.05", "--model"),
)
SMALL = "DiT_Llama_600M_patch2"
TINY_LLAMA = Edit(
    "fms_fsdp/utils/config_utils.py",
    '    if model_variant == "llama2_70b":\n',
    '    if model_variant == "tiny":\n'
    "        model_config = LLaMAConfig(\n"
    "            src_vocab_size=128, emb_dim=32, nheads=4, nlayers=3, max_expected_seq_len=64\n"
    "        )\n"
    '    elif model_variant == "llama2_70b":\n',
)
FMS = (
    *("--model_variant=tiny", "--use_dummy_dataset=True", "--vocab_size=128", "--seq_length=32"),
    *("--num_steps=24", "--batch_size=2", "--report_interval=6", "--checkpoint_interval=12"),
    *("--ckpt_load_path=out", "--ckpt_save_path=out", "--use_torch_compile=False"),
    *("--learning_rate=1e-2", "--mixed_precision=False"),
)
TORCHTUNE = (
    *("model.vocab_size=128", "model.num_layers=2", "model.num_heads=4", "model.embed_dim=32"),
    *("model.num_kv_heads=4", "model.max_seq_len=64", "tokenizer._component_=recipe.tokenizer"),
    *("tokenizer.path=none", "dataset._component_=recipe.dataset", "seed=1", "batch_size=2"),
    *("checkpointer._component_=recipe.Checkpointer", "epochs=2", "max_steps_per_epoch=2"),
    *("output_dir=out", "optimizer.lr=1e-2", "dtype=fp32", "optimizer.fused=False"),
    "gradient_accumulation_steps=2",
)
OPEN_LM = (
    *("--dataset-type", "synthetic", "--model", "open_lm_test_tiny", "--train-num-samples", "256"),
    *("--global-batch-size", "8", "--accum-freq", "2", "--epochs", "2", "--workers", "0"),
    *("--fsdp", "--fsdp-use-orig-params", "--grad-checkpointing", "--precision", "fp32"),
    *("--attn-name", "torch_attn", "--ffn-type", "swiglu_torch", "--lr", "1e-2", "--warmup", "2"),
    *("--grad-clip-norm", "0.5"),
    *("--logs", "out", "--name", "run"),
)
FASTVIDEO = (
    *("--model_type", "mochi", "--pretrained_model_name_or_path", "none", "--cache_dir", "none"),
    *("--data_json_path", "none", "--num_latent_t", "3", "--output_dir", "out", "--seed", "1"),
    *("--train_batch_size", "2", "--dataloader_num_workers", "0", "--max_train_steps", "4"),
    *("--gradient_accumulation_steps", "2", "--learning_rate", "1e-3", "--max_grad_norm", "0.5"),
    *("--checkpointing_steps", "2", "--gradient_checkpointing"),
)
DICEE = (
    *("--dataset_dir", "graph", "--path_to_store_single_run", "out", "--trainer", "torchFSDP"),
    *("--model", "Keci", "--scoring_technique", "NegSample", "--eval_model", "None"),
    *("--num_epochs", "2", "--batch_size", "32", "--fsdp_trainer_kwargs"),
    '{"precision": "bfloat16", "num_workers": 0}',
)
DINO = (
    *("--config-file", "dinov2/configs/train/vitl16_short.yaml", "--output-dir", "out"),
    *("student.arch=vit_small", "student.patch_size=8", "student.block_chunks=2"),
    *("crops.global_crops_size=32", "crops.local_crops_size=16", "train.num_workers=0"),
    *("dino.head_n_prototypes=64", "dino.head_bottleneck_dim=16", "dino.head_hidden_dim=32"),
    *("train.batch_size_per_gpu=4", "train.OFFICIAL_EPOCH_LENGTH=2", "optim.epochs=12"),
    *("optim.warmup_epochs=0", "optim.base_lr=0.05", "teacher.warmup_teacher_temp_epochs=1"),
    *("dino.koleo_loss_weight=0", "evaluation.eval_period_iterations=16"),
)
# A small model, and what torch has of FSDP1's private parts: one handle for a unit, and no list of streams.
SMALL_DINO = (
    Edit(
        "dinov2/models/vision_transformer.py",
        "embed_dim=384,\n        depth=12,\n        num_heads=6,",
        "embed_dim=32,\n        depth=4,\n        num_heads=4,",
    ),
    Edit("dinov2/fsdp/__init__.py", "handles = x._handles\n", "handles = x._handle\n"),
    Edit("dinov2/fsdp/__init__.py", "        true_list = [True for h in handles]\n", ""),
    Edit("dinov2/fsdp/__init__.py", "handles, true_list)", "handles, True)"),
    Edit("dinov2/train/ssl_meta_arch.py", "        self.fsdp_synchronize_streams()\n\n", ""),
)
DINO_BY_HAND = (
    Edit(
        "dinov2/fsdp/__init__.py", " and x.sharding_strategy is not ShardingStrategy.NO_SHARD", ""
    ),
    Edit("dinov2/fsdp/__init__.py", "handles = x._handle\n", "x.reshard()\n"),
    Edit("dinov2/fsdp/__init__.py", "        _reshard(x, handles, True)\n", ""),
    Edit("dinov2/fsdp/__init__.py", "StateDictType.LOCAL", "StateDictType.SHARDED"),
    Edit(
        "dinov2/train/ssl_meta_arch.py",
        "                for ms, mt in zip(get_fsdp_modules(self.student[k]), "
        "get_fsdp_modules(self.teacher[k])):\n"
        "                    student_param_list += ms.params\n"
        "                    teacher_param_list += mt.params\n",
        "                student_param_list += self.student[k].parameters()\n"
        "                teacher_param_list += self.teacher[k].parameters()\n",
    ),
)
DISTILL_BY_HAND = (
    Edit(
        "fastvideo/distill.py",
        "        if m._has_params and m.sharding_strategy is not ShardingStrategy.NO_SHARD:\n"
        "            torch.distributed.fsdp._runtime_utils._reshard(m, m._handle, True)\n",
        "        m.reshard()\n",
    ),
)
# The package's new half, whose requirements the old one does not have.
NO_V1 = Edit(
    "fastvideo/__init__.py",
    "from fastvideo.v1.configs.pipelines import PipelineConfig\n"
    "from fastvideo.v1.configs.sample import SamplingParam\n"
    "from fastvideo.v1.entrypoints.video_generator import VideoGenerator\n",
    "",
)
TITAN = "train_configs/debug_model.toml"
SMALL_TITAN = (
    Edit(
        "torchtrain/parallelisms/parallelize_llama.py",
        "import _pt2_selective_checkpoint_context_fn_gen, checkpoint",
        "import checkpoint",
    ),
    Edit(TITAN, "./torchtrain/datasets/tokenizer/tokenizer.model", "README.md"),
    Edit(TITAN, "batch_size = 8\nseq_len = 2048", "batch_size = 2\nseq_len = 64"),
    Edit(TITAN, "steps = 10", "steps = 4"),
    Edit(TITAN, "run_profiler = true", "run_profiler = false"),
)

PROGRAMS = {
    "t5": Real("T5, fine-tuning in bfloat16", "examples", "distributed/FSDP", "T5_training.py", T5),
    "t5-float32": Real(
        "the same in float32",
        "examples",
        "distributed/FSDP",
        "T5_training.py",
        T5,
        edits=(FLOAT32,),
    ),
    "llama-cookbook": Real(
        "Llama, fine-tuning",
        "llama-cookbook",
        "",
        "getting-started/finetuning/finetuning.py",
        LLAMA,
        paths=("src",),
    ),
    "dpo": Real(
        "DPO: a trainer class, a policy and a reference, accumulation",
        "direct-preference-optimization",
        "",
        "train.py",
        DPO,
    ),
    "flag-dit": dit(
        "diffusion, EMA, `no_sync`, a norm by hand", "Lumina-T2X", "Flag-DiT-ImageNet", SMALL
    ),
    "flag-dit-zero2": dit(
        "the same, SHARD_GRAD_OP",
        "Lumina-T2X",
        "Flag-DiT-ImageNet",
        SMALL,
        "--data_parallel",
        "sdp",
    ),
    "large-dit": dit("diffusion, EMA", "LLaMA2-Accessory", "Large-DiT-ImageNet", SMALL),
    "next-dit-mini": dit(
        "text to image, three sharded models",
        "Lumina-T2X",
        "lumina_next_t2i_mini",
        "NextDiT_2B_patch2",
    ),
    "fms-fsdp": fms("Llama, pretraining, checkpoints", "fsdp"),
    "fms-hsdp": fms("the same, HYBRID_SHARD within a node", "hsdp"),
    "fms-ac": fms(
        "the same, activation checkpointing",
        "fsdp",
        "--fsdp_activation_checkpointing=True",
        "--selective_checkpointing=1/2",
    ),
    "torchtune-full": torchtune(
        "full fine-tuning recipe, activation checkpointing", "full_finetune", "7B_full", "llama2"
    ),
    "torchtune-lora": torchtune("LoRA recipe", "lora_finetune", "7B_lora", "lora_llama2"),
    "torchtitan": Real(
        "Llama, pretraining with `enable_wrap` and a grad scaler",
        "torchtitan-before",
        "",
        "train.py",
        ("--job.config_file", TITAN),
        edits=SMALL_TITAN,
    ),
    "open-lm": Real(
        "pretraining, accumulation, clipping, activation checkpointing",
        "open_lm",
        "",
        "open_lm/main.py",
        OPEN_LM,
        paths=(".",),
        edits=(
            Edit(
                "open_lm/file_utils.py", "(f, map_location", "(f, weights_only=False, map_location"
            ),
        ),
    ),
    "dicee": Real(
        "knowledge graph, a table of embeddings sharded by rows, an optimizer of its own",
        "dicee",
        "",
        "dicee/scripts/run.py",
        DICEE,
        paths=(".", str(STANDINS / "graph")),
    ),
    "dinov2": Real(
        "vision, a student and a teacher in parts, a grad scaler, private handles",
        "dinov2",
        "",
        "dinov2/train/train.py",
        DINO,
        paths=(".", str(STANDINS / "vit")),
        edits=SMALL_DINO,
    ),
    "fastvideo": fastvideo(
        "video, HYBRID_SHARD, activation checkpointing",
        "train",
        "--fsdp_sharding_startegy",
        "hybrid_full",
    ),
    "fastvideo-lora": fastvideo(
        "LoRA of the video model", "train", "--use_lora", "--lora_rank", "4"
    ),
    "fastvideo-distill": fastvideo(
        "its distillation: a teacher, EMA from parameter to parameter, private handles",
        "distill",
        *("--use_ema", "--multi_phased_distill_schedule", "4000-1", "--num_euler_timesteps", "50"),
    ),
    "mnist": Real(
        "the FSDP tutorial, as printed",
        "tutorials",
        "",
        "intermediate_source/FSDP_tutorial.rst",
        ("--epochs", "2", "--batch-size", "16", "--save-model"),
        options=("--align-init",),
        made=tutorial,
    ),
}
for name, edits in (("dinov2", DINO_BY_HAND), ("fastvideo-distill", DISTILL_BY_HAND)):
    PROGRAMS[f"{name}-by-hand"] = replace(
        PROGRAMS[name], shows="the same, findings by hand done", by_hand=edits
    )
for name, before, after in (
    ("flag-dit", (), ("--max_steps", "6")),
    ("large-dit", (), ("--max_steps", "6")),
    ("fms-fsdp", (), ("--num_steps=36",)),
    ("fms-hsdp", (), ("--num_steps=36",)),
    ("torchtune-full", (), ("resume_from_checkpoint=True",)),
    ("torchtune-lora", (), ("resume_from_checkpoint=True",)),
    ("open-lm", (), ("--epochs", "3", "--resume", "latest")),
    (
        "fastvideo-lora",
        (),
        ("--max_train_steps", "6", "--resume_from_lora_checkpoint", "out/lora-checkpoint-4"),
    ),
):
    PROGRAMS[f"{name}-resumed"] = resumed(PROGRAMS[name], before, after)
