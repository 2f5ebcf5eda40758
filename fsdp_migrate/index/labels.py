"""What is followed through a project: FSDP1 models, and the functions that make them."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from fsdp_migrate.index.module import Module
from fsdp_migrate.index.paths import Path

_DEPTH = 3  # functions that return functions that return functions


@dataclass(frozen=True, eq=False)
class Site:
    """A place where a value becomes known to be an FSDP1 model.

    Attributes:
        call: the constructor call, or the call of what makes models; None where the program only says so, by an annotation
            or an isinstance test.
        partly: the model is not wrapped itself, but one of its parts is.
    """

    module: Module
    call: ast.Call | None
    partly: bool = False


@dataclass(eq=False)
class Maker:
    """A value whose every call makes an FSDP1 model: `partial(FSDP, ...)`, or `wrap` inside of `enable_wrap`.

    Attributes:
        node: the partial application, or the reference to `wrap`.
        further: partial applications of this one.
        calls: the calls that make models.
        lost: a use of the value from which on it cannot be followed, if there is one.
    """

    module: Module
    node: ast.expr
    further: list[tuple[Module, ast.Call]] = field(default_factory=list)
    calls: list[tuple[Module, ast.Call]] = field(default_factory=list)
    lost: tuple[Module, ast.AST] | None = None

    @property
    def partial(self) -> ast.Call | None:
        """The partial application; None for `wrap`."""
        return self.node if isinstance(self.node, ast.Call) else None


@dataclass(frozen=True)
class Result:
    """A function whose every call gives what `of` says, at `path`."""

    of: Site | Maker | Result
    path: Path

    @property
    def depth(self) -> int:
        return self.of.depth + 1 if isinstance(self.of, Result) else 1

    @property
    def is_too_deep(self) -> bool:
        return self.depth > _DEPTH


Label = Site | Maker | Result


def maker_of(label: Label) -> Maker | None:
    """The maker that a label is of, directly or as a function's result."""
    while isinstance(label, Result):
        label = label.of
    return label if isinstance(label, Maker) else None


def lose(label: Label, module: Module, node: ast.AST) -> None:
    """Notes that a maker goes where nobody sees its calls. Of a model, what follows is not known, and that is all."""
    maker = maker_of(label)
    if maker is not None and maker.lost is None:
        maker.lost = (module, node)
