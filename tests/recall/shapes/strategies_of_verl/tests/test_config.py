from verl.workers.config import ActorConfig


def test_default():
    assert ActorConfig(strategy="fsdp").strategy == "fsdp"
