"""Stands in for torchvision: MNIST is noise."""

from torchvision import datasets, transforms

__all__ = ["datasets", "transforms"]
