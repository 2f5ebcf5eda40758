"""The areas; importing them registers their behaviours."""

from . import initialization, precision, training, wrapping  # noqa: F401
