"""Stands in for torchvision: images are noise."""

from torchvision import datasets, transforms

__all__ = ["datasets", "transforms"]
