"""Why a program failed: which rank failed first, and what it said last."""

import itertools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fsdp_migrate.settings import DEFAULT_FORM
from fsdp_migrate.verify import syntax
from fsdp_migrate.verify.errors import ProgramFailed
from fsdp_migrate.verify.folders import Program
from fsdp_migrate.verify.left import Left
from fsdp_migrate.verify.processes import OUTPUT, Outcome
from fsdp_migrate.verify.records import Ending, Rank, read_endings

_LINES = 30
_HEAD = 9
"""Lines of a traceback, and how many of them at most are shown to the program's last frame."""
_TAIL = 3
_TAILS = 8
"""Last lines of a rank, and how many ranks are shown with them."""
_WIDTH = 200
"""At most of a line: a warning may be a paragraph."""
_TRACEBACK = re.compile(r"(\[rank\d+\]: ?)?Traceback \(most recent call last\)")
_TORCHRUN = re.compile(r"rank\s*:\s*(\d+) \(local_rank: \d+\)\s*exitcode\s*:\s*(-?\d+)")
_FRAME = re.compile(r'File "(.+)", line (\d+)')
_OWN_FRAME = re.compile(r'  File "(?!/)')
_RAISED = re.compile(r"^  File .*\n(?: .*\n|\n)*(\S.*)", re.MULTILINE)
_LOST = re.compile(
    r"Connection (reset|closed) by peer|gloo/transport|Broken pipe|remote process exited"
)
"""The end of a connection to another rank: what follows from that rank's end, and never the reason."""
_TOGETHER = "Every rank must make the same collective calls: look for one that not all ranks make."
_NO_CUDA = re.compile(r"cuda|nvidia|nccl|\bGPUs?\b|\baccelerator\b|invalid device", re.IGNORECASE)
_WORD = re.compile(r"[A-Za-z_]\w*")
_DEFAULT = f"--form {DEFAULT_FORM}"
_LAST = 3
"""Lines at the end of what a program printed that say why it left."""
_READ = 32 << 20
"""Bytes at the end of an output that are read."""
_TERMINATED = -15


@dataclass(frozen=True)
class Scene:
    """What one run left in a folder: `records`, `output` and `logs`; `expected` is 0 where the program decides."""

    program: Program
    outcome: Outcome
    folder: Path
    expected: int
    ranks: list[Rank]

    def failed(self, reason: str, details: str) -> ProgramFailed:
        """The error to raise: paths in the copy are shown relative to it, long texts by their end."""
        lines = _shortened(self._shown(details))
        lines += [line for line in self._tails() if line not in lines]
        return ProgramFailed(self.program.name, reason, "\n".join(lines), details)

    @property
    def output(self) -> str:
        """What the launcher printed, and under a plain `python` the ranks, too, with the errors last."""
        return self.standard + _text(self.folder / "errors")

    @property
    def standard(self) -> str:
        """The same without what went to standard error."""
        return _text(self.folder / "output")

    def _tails(self) -> Iterator[str]:
        """The last lines of every rank, without a second traceback: one rank's end ends the others."""
        logs = sorted(self.folder.glob("logs/*/attempt_*/*/"), key=lambda log: int(log.name))
        for log in logs[:_TAILS]:
            said = _TRACEBACK.split(_text(log / "stderr.log"), maxsplit=1)[0]
            texts = (_text(log / "stdout.log"), said)
            lines = [line for text in texts for line in self._shown(text)[-_TAIL:]]
            if lines:
                yield f"rank {log.name} said last:"
                for line in lines:
                    yield f"  {line[:_WIDTH]}"

    def _shown(self, text: str) -> list[str]:
        return text.replace(f"{self.program.root}/", "").strip().splitlines()

    def printed(self, rank: int, stream: str = "stdout") -> str:
        """What a rank wrote to its standard output, or error; empty where the launcher does not separate the ranks."""
        logs = sorted(self.folder.glob(f"logs/**/{rank}/{stream}.log"))
        if logs:
            return _text(logs[-1])
        return ""

    def errors(self, rank: int) -> str:
        """What a rank wrote to its standard error, or all output where that is not known."""
        return self.printed(rank, "stderr") or self.output


def _shortened(lines: list[str]) -> list[str]:
    """The last lines; of a long traceback also the last of the program's own frames, whose paths are relative."""
    last = lines[-_LINES:]
    own = [number for number, line in enumerate(lines) if _OWN_FRAME.match(line)]
    if len(lines) <= _LINES or not own or own[-1] >= len(lines) - _LINES:
        return last
    head = lines[: own[-1] + 2][-_HEAD:]
    return [*head, "  ...", *last[len(head) + 1 :]]


def check(scene: Scene) -> None:
    """Raise `ProgramFailed` unless a program ended well and has trained."""
    if scene.outcome.timed_out:
        raise _late(scene)
    if scene.outcome.flooded:
        raise scene.failed(f"it printed more than {OUTPUT >> 20} MiB", scene.output)
    failed = scene.outcome.status != 0
    # A program may start its ranks itself and not look at how they ended, or hide an exception.
    endings = read_endings(scene.folder / "records")
    if failed:
        endings = [ending for ending in endings if ending.status or ending.failure]
    else:
        endings = [ending for ending in endings if ending.sure]
    if endings or failed:
        raise _ended_badly(scene, endings)
    if not any(rank.losses for rank in scene.ranks):
        raise scene.failed("no rank called backward", scene.output)
    if scene.expected and len(scene.ranks) != scene.expected:
        missing = set(range(scene.expected)) - {rank.rank for rank in scene.ranks}
        raise scene.failed(f"rank {min(missing)} left no record", scene.errors(min(missing)))


def with_cuda(
    failure: ProgramFailed, scene: Scene, device: str, *, emulated: bool
) -> ProgramFailed:
    """The failure, with what CUDA, or its emulation, may have to do with it."""
    if emulated:
        failure.reason += " (CUDA was emulated: no kernels, graphs or extensions of a device)"
    elif device == "cpu" and any(map(_NO_CUDA.search, _named(failure, scene))):
        failure.reason += " (there is no CUDA here: --emulate runs it on the CPU)"
    return failure


def _named(failure: ProgramFailed, scene: Scene) -> Iterator[str]:
    """What a failure names: its reason, and the code of the program that raised or the last lines that it printed."""
    frames = own_frames(scene.program, failure.trace)
    if not frames:
        yield failure.reason
        yield from failure.trace.strip().splitlines()[-_LAST:]
        return
    name, line = frames[-1]
    yield failure.reason.removesuffix(f" ({name}:{line})")
    lines = [text.partition("#")[0] for text in _text(scene.program.root / name).splitlines()]
    for code in lines[line - 1 : line]:
        yield code
        # A name may have its value from CUDA, as a number of devices that is 0.
        named = "|".join(_WORD.findall(code))
        for text in lines:
            if re.match(rf"\s*(?:{named})\s*=[^=]", text):
                yield text


def own_frames(program: Program, trace: str) -> list[tuple[str, int]]:
    """The frames of a traceback that are the program's: the file relative to its folder, and the line."""
    root = f"{program.root}{os.sep}"
    found = [(path, int(line)) for path, line in _FRAME.findall(trace) if path.startswith(root)]
    return [(path.removeprefix(root), line) for path, line in found]


def explain(failure: ProgramFailed, program: Program, left: Left | None) -> None:
    """Add to a failure the line of the program that it failed at and, if `left` is given, what the migration did there."""
    frames = own_frames(program, failure.trace)
    if frames:
        name, line = frames[-1]
        failure.place = f"{name}:{line}"
    if left is None:
        return
    if frames and name in left.changed:
        place = left.place(failure.place)
        of_copy = f"line {line} of the migrated copy"
        failure.reason = failure.reason.replace(f"({failure.place})", f"({place}, {of_copy})")
        failure.place = place
        failure.written = line
    _explain_branch(failure, program, left, frames)
    failure.default_form = any(_DEFAULT in finding.message for finding in left.findings)
    failure.found = [left.text(finding) for finding in left.behind(program.root, frames)]
    if not failure.found and failure.hints in ([], [_TOGETHER]):
        failure.others = [left.text(finding) for finding in left.findings]


def _explain_branch(
    failure: ProgramFailed, program: Program, left: Left, frames: list[tuple[str, int]]
) -> None:
    """Say which branch keeps other ranks from a collective call, if there is one."""
    branch = syntax.branch_of_some_ranks(program.root, frames)
    if _TOGETHER not in failure.hints or branch is None:
        return
    place = left.place(branch.name)
    rest = ""
    if syntax.saves(program.root, *frames[-1]):
        rest = ", and keep only the writing of the file inside"
    failure.hints.remove(_TOGETHER)
    failure.hints.append(
        f"cause: only some ranks make this call. All ranks must make it: move it out of `{branch.text}` ({place}){rest}."
    )


def _ended_badly(scene: Scene, endings: list[Ending]) -> ProgramFailed:
    # A rank that a signal ended left no record, and the others' errors follow from its end.
    endings = sorted(endings, key=_follows)
    told = {ending.rank for ending in endings}
    for number, code in _TORCHRUN.findall(scene.output):
        if int(code) < 0 and int(code) != _TERMINATED and int(number) not in told:
            reason = f"rank {number} ended by signal {-int(code)}"
            return scene.failed(reason, scene.errors(int(number)))
    hints: list[str] = []
    if endings:
        details = endings[0].failure.strip()
    else:
        details = scene.output
    if not endings:
        reason = f"exit status {scene.outcome.status}"
    elif _LOST.search(endings[0].failure):
        left = [_name(rank.rank) for rank in scene.ranks if rank.rank not in told]
        others = " and ".join(left) or "another rank"
        at = _raised_at(scene, details)
        reason = (
            f"{_name(endings[0].rank)} was in a collective{at} when {others} had left the program"
        )
        hints = [_TOGETHER]
    elif details:
        # A message may go on for lines, of which the first one has the exception's name.
        raised = (_RAISED.findall(details) or details.splitlines())[-1]
        reason = f"{_process(scene, endings[0])} raised {raised}{_raised_at(scene, details)}"
        if (status := endings[0].status) not in (0, 1):
            reason += f" and left with exit status {status}"
    else:  # torch.multiprocessing.spawn hands an exception of its processes to the one that started them
        reason = f"{_process(scene, endings[0])} ended with exit status {endings[0].status}"
        details = scene.errors(endings[0].rank)
    failure = scene.failed(reason, details)
    failure.hints += hints
    return failure


def _follows(ending: Ending) -> int:
    """How surely the end of a process only follows from that of another one."""
    if "ChildFailedError" in ending.failure:
        return 2  # torchrun's own: one of its ranks has failed
    return int(bool(_LOST.search(ending.failure)))


def _process(scene: Scene, ending: Ending) -> str:
    """A process by its rank, or by what it is known by as long as it has none."""
    if ending.rank >= 0 or not ending.process:
        return _name(ending.rank)
    if scene.expected and ending.process == str(scene.program.script):
        return f"{_name(ending.variable)}, before it trained,"
    return f"{Path(ending.process).name}, a process that is no rank,"


def _raised_at(scene: Scene, trace: str) -> str:
    """The innermost line of the program in a traceback, in brackets; empty where none of it is there."""
    frames = own_frames(scene.program, trace)
    if frames:
        return f" ({frames[-1][0]}:{frames[-1][1]})"
    return ""


def _late(scene: Scene) -> ProgramFailed:
    stacks = [found for found in scene.outcome.stacks if found[0]] or [*scene.outcome.stacks]
    reason = f"it did not end within {scene.outcome.seconds:.0f} seconds"
    waiting = [stack for rank, stack in stacks if rank and _waits(stack)]
    busy = [_name(rank) for rank, stack in stacks if rank and not _waits(stack)]
    places = [f"{_name(rank)} is at\n{_where(stack)}" for rank, stack in stacks]
    details = "\n".join(places) or scene.output
    if not waiting or not busy:
        return scene.failed(reason, details)
    failure = scene.failed(f"{reason}; all but {', '.join(busy)} wait in a collective", details)
    failure.trace = "\n".join(reversed(_frames(waiting[0])))  # as a traceback has them
    failure.hints.append(_TOGETHER)
    return failure


def _waits(stack: str) -> bool:
    """Whether a rank is in a collective: what runs inside of the program's innermost line is torch.distributed."""
    inner = itertools.takewhile(lambda frame: "/lib/python" in frame, _frames(stack))
    return any("/torch/distributed/" in frame for frame in inner)


def _where(stack: str) -> str:
    """The innermost frames of a stack, those of the program if it has any."""
    frames = _frames(stack)
    own = [frame for frame in frames if "/lib/python" not in frame]
    return "\n".join((own or frames)[:3])


def _frames(stack: str) -> list[str]:
    lines = [line for line in stack.splitlines() if line.startswith("  File")]
    return [line for line in lines if "/verify/recorder/" not in line and "<frozen" not in line]


def _name(rank: int | str) -> str:
    number = str(rank)
    if number.isdigit():
        return f"rank {number}"
    return "a process that is no rank"


def _text(path: Path) -> str:
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - _READ, 0))
        return file.read().decode("utf-8", errors="replace")
