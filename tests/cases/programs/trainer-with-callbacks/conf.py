from dataclasses import dataclass


@dataclass
class Config:
    seed: int = 1
    dim: int = 8
    layers: int = 2
    lr: float = 1e-2
    max_steps: int = 4
    accum: int = 2
    clip: float = 0.5
    amp: str = "bf16"
