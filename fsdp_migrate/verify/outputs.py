"""What programs print: the lines of both, compared by their words and by the numbers in them.

A number is compared unless it is a time, a rate or an amount of memory: by the words around it here, by the code that
printed it in `sources`.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from fsdp_migrate.verify.records import Run
from fsdp_migrate.verify.sources import Sources

_SHOWN = 160
_LINES = 100_000
_TEXTS = 5
"""At most so many lines that only one program prints are shown of a rank or file."""

_UNSTABLE = re.compile(
    r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?)?|\b\d\d?:\d\d(?::\d\d)?(?:[.,]\d+)?\b"
    r"|\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}\b|\b0x[0-9a-fA-F]+\b|\w+://\S+|(?<![\w.])\.{0,2}/(?:[\w.@+-]+/)+[\w.@+-]*"
    r"|\b\d+h ?\d+m(?: ?\d+(?:\.\d+)?s)?\b|\b\d+m ?\d+(?:\.\d+)?s\b"
)
"""Dates, times of day, addresses, identifiers and paths: they differ from run to run."""

_UNIT = (
    r"\s?(?:[munµ]?s|secs?|seconds?|mins?|minutes?|hrs?|hours?|days?|[kmgt]i?b|bytes?|[gt]?flops?|elapsed)\b"
    r"|\s?[a-z_]{0,16}\s?(?:/|\bper[ _]|_per_)\s?(?:s|secs?|seconds?|mins?|minutes?|h|hrs?|hours?|days?)\b|\s?s/it\b|x real"
)
_AFTER = re.compile(_UNIT, re.IGNORECASE)
_NUMBER = re.compile(
    r"(?<![\w.])[-+]?(?:\d{1,3}(?:[,_]\d{3})+(?![,_]?\d)|\d+)(?:\.\d+)?(?:e[-+]?\d+)?(?!\.\d)"
    rf"(?:[kmbgt](?!\w)|(?!\w)|(?=(?:{_UNIT})))|(?<![\w.])[-+]?(?:nan|inf|infinity)\b",
    re.IGNORECASE,
)
_RATE = re.compile(r"/\s?s\b|/sec|\bper[ _](?:s|sec|second|min|minute|hour|day)s?\b", re.IGNORECASE)
_TOKEN = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_COST = re.compile(
    r"""secs?|seconds?|ms|msec|minutes?|hours?|hrs|time|timing|elapsed|took|taken|duration|eta|latency|wall|walltime|clock
    |runtime|dt|timestamp|speed|throughput|bandwidth|[gt]?flops|[mh]fu|fps|[qtw]ps|tgs
    |mem|memory|vram|rss|allocated|reserved|[kmgt]i?b""",
    re.VERBOSE,
)
"""Words of what a run costs, not of what it computes."""
_NEAR = 5
"""So many words before a number may say what it is."""

_SCALES = {"k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
_OF_PARAMETERS = re.compile(r"param|numel|element|weight|model size", re.IGNORECASE)
_OF_LAYOUT = re.compile(
    r"FullyShardedDataParallel|_fsdp_wrapped_module|FlatParameter|_flat_param|ShardedTensor|DTensor|\bFSDP[A-Z]\w*"
)


@dataclass(frozen=True)
class Printed:
    """A line in which the programs print something else: no part of the verdict, which is about training.

    Attributes:
        words: the line without its numbers, which is the same in both.
        place: the file that has the line; empty for what the rank prints.
    """

    rank: int
    words: str
    text: str
    cause: str
    place: str = ""

    def __str__(self) -> str:
        if self.place:
            where = f"written to {self.place}"
        else:
            where = f"printed on rank {self.rank}"
        return f"{where}: {self.text}; cause: {self.cause or 'not known'}"


@dataclass(frozen=True)
class Line:
    """A line of text; `spans` are the places of the `numbers` in the stripped `text`."""

    words: str
    numbers: tuple[str, ...]
    text: str
    spans: tuple[tuple[int, int], ...]

    @property
    def shown(self) -> str:
        """At most so much of it as fits on a line."""
        return self.text[:_SHOWN]


def printed(
    original: Run, migrated: Run, tolerance: float, sources: Sources | None = None
) -> list[Printed]:
    """The lines in which the ranks print something else, each on the first rank that does.

    Numbers may differ by the tolerance and by one in their last digit.
    """
    befores = [by_words(text) for text in _texts(original)]
    afters = [by_words(text) for text in _texts(migrated)]
    found: dict[str, Printed] = {}
    for rank, (lines, others) in enumerate(zip(befores, afters, strict=False)):
        for line in _odd(rank, lines, others, befores, tolerance, sources or Sources()):
            found.setdefault(line.words, line)
    return [*found.values()]


def written(
    place: str, one: str, other: str, tolerance: float, sources: Sources | None = None
) -> list[Printed]:
    """The lines in which two files of text differ, compared as what is printed."""
    lines = by_words(one)
    others = by_words(other)
    return [*_odd(0, lines, others, [lines], tolerance, sources or Sources(), place)]


def count_of_lines(run: Run) -> int:
    """How many lines are compared, of all ranks."""
    return sum(len(lines) for text in _texts(run) for lines in by_words(text).values())


Lines = dict[str, list[Line]]
"""Lines by their words."""


def by_words(text: str) -> Lines:
    """The lines of a text that have letters or digits, by their words."""
    found: Lines = {}
    for line in text.splitlines()[:_LINES]:
        if any(character.isalnum() for character in line):
            parsed = _parsed(line.strip())
            found.setdefault(parsed.words, []).append(parsed)
    return found


def _odd(
    rank: int,
    lines: Lines,
    others: Lines,
    ranks: list[Lines],
    tolerance: float,
    sources: Sources,
    place: str = "",
) -> Iterator[Printed]:
    """What two texts have that is not the same; `ranks` are the original's texts on all ranks."""
    missing = []
    additional = []
    for words in dict.fromkeys([*lines, *others]):
        ones = lines.get(words, [])
        twins = others.get(words, [])
        if len(ones) != len(twins):
            missing += ones[len(twins) :]
            additional += twins[len(ones) :]
            continue
        pair = _other_numbers(ones, twins, tolerance, sources)
        if pair is not None:
            one, twin, at = pair
            cause = _cause(words, one, twin, at, ranks, sources)
            yield Printed(rank, words, f"{one.shown!r} against {twin.shown!r}", cause, place)
    yield from _other_texts(rank, missing, additional, sources, place)


def _other_numbers(
    ones: list[Line], twins: list[Line], tolerance: float, sources: Sources
) -> tuple[Line, Line, int] | None:
    """The first two lines of the same words whose numbers differ, and which number does."""
    found = _first_apart(ones, twins, tolerance, sources)
    if found is None:
        return None
    # Ranks that print into one file do so in any order.
    ones, twins = [sorted(lines, key=lambda line: line.numbers) for lines in (ones, twins)]
    if _first_apart(ones, twins, tolerance, sources):
        return found
    return None


def _first_apart(
    ones: list[Line], twins: list[Line], tolerance: float, sources: Sources
) -> tuple[Line, Line, int] | None:
    for one, twin in zip(ones, twins, strict=True):
        for at, (number, other) in enumerate(zip(one.numbers, twin.numbers, strict=True)):
            same = _close(number, other, tolerance)
            if not same and not sources.is_cost(one.text, one.spans[at]):
                return one, twin, at
    return None


def _other_texts(
    rank: int, missing: list[Line], additional: list[Line], sources: Sources, place: str
) -> Iterator[Printed]:
    """Lines that one program has more often than the other: in pairs, if there are as many on both sides."""
    if len(missing) == len(additional):
        pairs = zip(missing, additional, strict=True)
        texts = [(one, f"{one.shown!r} against {other.shown!r}") for one, other in pairs]
    else:
        texts = [(line, f"only the original has {line.shown!r}") for line in missing]
        texts += [(line, f"only the migrated program has {line.shown!r}") for line in additional]
    # `(_fsdp_wrapped_module): Net(` of a printed model is `Net(` without the wrapper.
    wrapped = [one.text for one in missing if _OF_LAYOUT.search(one.text)]
    more = len(texts) - _TEXTS
    for number, (line, text) in enumerate(texts[:_TEXTS], 1):
        rest = ""
        if number == _TEXTS and more > 0:
            rest = f" (and {more} more lines)"
        cause = sources.finding(line.text)
        if not cause and (_OF_LAYOUT.search(text) or any(line.text in one for one in wrapped)):
            cause = "FSDP1 and FSDP2 have other classes of modules and tensors, and their text names them"
        yield Printed(rank, line.words, text + rest, cause, place)


def _cause(words: str, one: Line, twin: Line, at: int, ranks: list[Lines], sources: Sources) -> str:
    """Why a number is another one: a finding on the code that prints it, or what the ranks' numbers show."""
    shares = [own[words][0].numbers[at] for own in ranks if words in own]
    if len(shares) != len(ranks) or len(ranks) == 1:
        shares = [one.numbers[at]]
    share = _share(words, shares, twin.numbers[at], len(ranks))
    finding = sources.finding(one.text, one.spans[at])
    return "; ".join(filter(None, (share, finding)))


def _share(words: str, before: list[str], after: str, ranks: int) -> str:
    """Why a number is another one: all ranks', or one's, was of its own part of the parameters, and now is of the whole."""
    olds = [abs(_value(number)) for number in before]
    new = abs(_value(after))
    if any(_near(old, new) and old != new for old in olds):
        return ""  # one rank's alone has changed: the others have nothing of it
    whole = all(map(_is_whole, (*before, after)))
    if len(olds) == 1:
        parts = [count for count in range(2, ranks + 1) if ranks % count == 0]
        counts = any(_near(olds[0] * count, new) for count in parts)
    else:
        counts = _near(sum(olds), new)
        if _near(math.hypot(*olds), new) and not whole:  # a norm is no whole number
            return "a norm of this rank's part of the parameters under FSDP1, of the whole now"
    if not counts or not (whole or _OF_PARAMETERS.search(words)):
        return ""
    return "a count or sum over this rank's part of the parameters under FSDP1, over the whole now"


def _near(one: float, other: float) -> bool:
    # FSDP1 fills its flat parameters up.
    return abs(one - other) <= 0.02 * max(one, other)


def _texts(run: Run) -> list[str]:
    apart = [rank.output for rank in run.ranks]
    if any(apart):
        return apart
    return [run.output]


def _parsed(line: str) -> Line:
    """A line with its numbers; what differs from run to run is no number, and the same word in all lines."""
    unstable = [match.span() for match in _UNSTABLE.finditer(line)]
    words = ""
    numbers = []
    spans = []
    end = 0
    label = 0  # where the words begin that say what the next number is
    for start, stop, is_number in _pieces(line, unstable):
        words += line[end:start]
        end = stop
        if not is_number:
            words += "…"
            label = stop
            continue
        unit = _AFTER.match(line, stop)
        if unit:
            end = unit.end()  # the same time may be in another unit
        if unit or names_a_cost(line[label:start]):
            words += "…"
        else:
            words += "#"
            numbers.append(line[start:stop])
            spans.append((start, stop))
        label = stop
        if unit:
            label = unit.end()
    words += line[end:]
    return Line(words, tuple(numbers), line, tuple(spans))


def _pieces(line: str, unstable: list[tuple[int, int]]) -> list[tuple[int, int, bool]]:
    """Where there is something unstable or, elsewhere, a number, in order."""
    numbers = [
        match.span()
        for match in _NUMBER.finditer(line)
        if not any(match.start() < stop and start < match.end() for start, stop in unstable)
    ]
    pieces = [(*span, False) for span in unstable] + [(*span, True) for span in numbers]
    return sorted(pieces)


def names_a_cost(label: str) -> bool:
    """Whether the words before a number say that it is a time, a rate or an amount of memory."""
    parts = [part for part in re.split(r"[,;|]", label) if _TOKEN.search(part)]
    nearest = ""
    if parts:
        nearest = parts[-1]
    tokens = [token.lower() for token in _TOKEN.findall(nearest)][-_NEAR:]
    return any(map(_COST.fullmatch, tokens)) or bool(_RATE.search(nearest))


def _value(number: str) -> float:
    """The value of a number as it is printed: `13,648`, `1.2e-3`, `13.6K`."""
    text, scale = _scaled(number)
    return float(text) * scale


def _scaled(number: str) -> tuple[str, float]:
    """A number without separators of thousands and without its suffix, and what the suffix stands for."""
    text = number.replace(",", "").replace("_", "").lower()
    if text[-1] in _SCALES and text[-2:-1].isdigit():
        return text[:-1], _SCALES[text[-1]]
    return text, 1.0


def _is_whole(number: str) -> bool:
    return re.fullmatch(r"[-+]?[\d,_]+", number) is not None


def _close(one: str, other: str, tolerance: float) -> bool:
    a = _value(one)
    b = _value(other)
    if not (math.isfinite(a) and math.isfinite(b)):
        return a == b or (math.isnan(a) and math.isnan(b))
    if _is_whole(one) and _is_whole(other):
        return a == b
    return abs(a - b) <= max(tolerance * max(abs(a), abs(b)), _unit(one), _unit(other))


def _unit(number: str) -> float:
    """One in the last digit that is printed."""
    text, scale = _scaled(number)
    mantissa, _, exponent = text.partition("e")
    places = len(mantissa.partition(".")[2])
    if places:
        return 1.001 * 10.0 ** (int(exponent or 0) - places) * scale
    return 0.0
