"""Settings as verl reads them."""

from dataclasses import dataclass
from textwrap import dedent

from omegaconf import OmegaConf
from verl.workers.config import FSDPEngineConfig


@dataclass
class ActorConfig:
    strategy: str = "fsdp"  # FSDP807
    ppo_mini_batch_size: int = 8


CONFIG = dedent("""
    actor:
      strategy: fsdp  # FSDP807
""")
engine = FSDPEngineConfig(fsdp_size=-1, strategy="fsdp")  # FSDP807
override = OmegaConf.create({"critic": {"strategy": "fsdp"}})  # FSDP807
arguments = ["actor_rollout_ref.actor.strategy=fsdp"]  # FSDP807


def check(config):
    if config.actor.strategy == "fsdp" and config.actor.strategy != config.critic.strategy:  # FSDP807
        raise ValueError("one strategy for both")
    assert config.critic.strategy != "megatron"
