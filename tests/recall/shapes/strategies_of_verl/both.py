from verl.workers.config import ActorConfig


def build(config: ActorConfig):
    if config.strategy == "fsdp":
        return 1
    return 2 if config.strategy == "fsdp2" else 0
