import torch


def log(model):
    """No program that trains by Accelerate imports it."""
    return torch.stack([p.grad.norm() for p in model.parameters()]).numpy()
