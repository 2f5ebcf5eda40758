"""Functions in the place of others: the recorder's only way to change torch."""

from __future__ import annotations

from types import SimpleNamespace

from fsdp_migrate.runtime.record.patch import around


class Tensor:
    def scaled(self, factor: int = 1) -> int:
        """The documentation stays."""
        return 2 * factor


def test_the_original_is_the_first_argument() -> None:
    kept = Tensor.scaled
    around(Tensor, "scaled missing", lambda original, self, factor=1: original(self, factor) + 1)
    assert Tensor().scaled(factor=3) == 7
    assert Tensor.scaled.__doc__ == kept.__doc__
    assert not hasattr(Tensor, "missing")


def test_what_this_release_does_not_have_is_left_out() -> None:
    module = SimpleNamespace(load=None)
    around(None, "__init__", lambda original: None)
    around(module, "load", lambda original: 1)
    assert module.load is None
