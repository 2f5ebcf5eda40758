from accelerate import Accelerator
from torch import nn


def test_prepares():
    assert Accelerator().prepare(nn.Linear(8, 8))
