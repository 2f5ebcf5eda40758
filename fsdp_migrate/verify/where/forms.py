"""Whether two forms of a value (`fsdp_migrate/verify/recorder/lines/forms.py`) mean the same."""

from __future__ import annotations

import enum
import math
import re

_NUMBER = re.compile(r"(?<![\w#])-?(?:\d+\.?\d*(?:e[+-]?\d+)?|inf|nan)(?![\w])")
_PREFIX = re.compile(r"_fsdp_wrapped_module(?:\.|$|(?='))\.?")
_WRAPPER = re.compile(r"FSDP\(([^()]*)\)")
_SHARDED = re.compile(r"~[\w. ]+\([^)]*\)")
_CHOSEN = re.compile(r"~(\w+\.\w+) \(\)")
"""One of FSDP1's strategies and the like, which is no other object of both programs."""
_TENSOR = re.compile(
    r"tensor \w+(?: \([^)]*\))?(?: \|[^|]*\|)?|(?:True|False|nan|-?inf|-?[\d.e+-]+) (?:b?float|u?int|bool)\d*|None"
)
_MOMENTS = re.compile(r"'(exp_avg|momentum_buffer|square_avg)'")
_OBJECT = re.compile(r"\bobject \w+")
_APART = 1e-2
"""How much a factor may be off: FSDP1's copies are those of low precision, which it computes with."""
_MOVED = 2e-2
"""How far two moves of a weight may be apart, of themselves; of the largest move of the model a hundredth of that."""
_COLLECTION = re.compile(r"(\w+) of (\d+) \(")
_COUNT = re.compile(r"(of) (\d+)")


class Grade(enum.IntEnum):
    """How much two values differ."""

    SAME = 0
    KNOWN = 1
    """As they must between FSDP1 and FSDP2: a flat parameter and a DTensor, a name with the wrapper's part."""
    OTHER = 2


def grade(old: str, new: str, tolerance: float) -> Grade:
    """Compare two forms; numbers agree within a relative tolerance."""
    if old == new or _close(old, new, tolerance):
        return Grade.SAME
    known = (
        _close(_plain(old, new), _plain(new, old), tolerance)
        or "_flat_param" in old
        or "unreduced" in (old, new)
        or other_modules(old, new)
        or _are_moments(old, new)
    )
    if known:
        return Grade.KNOWN
    return Grade.OTHER


def _are_moments(old: str, new: str) -> bool:
    """Whether two forms are of an optimizer's states, of flat parameters and of each parameter by itself."""
    return ("~" in old) != ("~" in new) and all(map(_MOMENTS.search, (old, new)))


def _by_name(form: str) -> dict[str, str]:
    """The norms of a form of weights, by name."""
    return dict(item.rpartition(" ")[::2] for item in form.split(", "))


def same_but_for_copies(old: str, new: str) -> bool:
    """Whether weights differ by one factor only: copies were counted twice, in a layout that the recorder does not know."""
    olds = _by_name(old)
    news = _by_name(new)
    if olds.keys() != news.keys() or len(olds) < 2 or "" in olds or "0" in olds.values():
        return False
    ratios = [(float(news[name]) / float(norm)) ** 2 for name, norm in olds.items()]
    factors = [ratio for ratio in ratios if abs(ratio - 1) > 1e-3]
    if not factors:
        return True
    whole = max(factors[0], 1 / factors[0])
    near = max(factors) < (1 + _APART) * min(factors)
    return near and round(whole) > 1 and abs(whole - round(whole)) < _APART * whole


def moved_alike(old: str, new: str) -> bool:
    """Whether weights moved as far: what is rounding in weights is more of their moves."""
    olds, news = [
        {name: float(norm) for name, norm in _by_name(form).items() if name} for form in (old, new)
    ]
    least = _MOVED * max([*olds.values(), *news.values()], default=0.0) / 100
    return all(
        math.isclose(olds.get(name, 0.0), news.get(name, 0.0), rel_tol=_MOVED, abs_tol=least)
        for name in {**olds, **news}
    )


def other_counts(old: str, new: str) -> bool:
    """Whether two forms are of collections of one kind with other numbers of elements."""
    one = _COLLECTION.match(old)
    other = _COLLECTION.match(new)
    return bool(one and other and one[1] and one[1] == other[1] and one[2] != other[2])


def other_modules(old: str, new: str) -> bool:
    """Whether two forms are of modules of other classes: FSDP1's wrappers are modules of their own."""
    both = _plain(old, new), _plain(new, old)
    return all(form.startswith("module ") for form in both) and both[0] != both[1]


def only_numbers(old: str, new: str) -> bool:
    """Whether two forms differ in numbers only, which are no counts."""
    texts = [_NUMBER.sub("#", _COUNT.sub(r"\1 =\2=", text)) for text in (old, new)]
    return texts[0] == texts[1]


def _plain(text: str, other: str) -> str:
    """A form without what FSDP1 and FSDP2 must write differently."""
    if _CHOSEN.search(text) and _CHOSEN.search(other):
        text = _CHOSEN.sub(r"\1", text)
    if "~" in text or "~" in other:
        text = _TENSOR.sub("~", _SHARDED.sub("~", text))
    while _WRAPPER.search(text):
        text = _WRAPPER.sub(r"\1", text)
    text = _OBJECT.sub("object", text)
    return _PREFIX.sub("", text).replace(".'", "'")


def _close(old: str, new: str, tolerance: float) -> bool:
    olds = _NUMBER.findall(old)
    news = _NUMBER.findall(new)
    if _NUMBER.sub("#", old) != _NUMBER.sub("#", new) or len(olds) != len(news):
        return False
    return all(map(lambda a, b: _same_number(a, b, tolerance), olds, news))


def _same_number(old: str, new: str, tolerance: float) -> bool:
    if old == new:
        return True
    if not {*".en"} & {*old, *new}:  # a count
        return False
    a = float(old)
    b = float(new)
    return math.isclose(a, b, rel_tol=tolerance, abs_tol=1e-9) or (math.isnan(a) and math.isnan(b))
