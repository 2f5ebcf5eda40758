"""FSDP1 as a command line sets it: flags of Accelerate and transformers, their environment variables, verl's overrides.

A shell is no language to rewrite by pattern: each place is reported with the text to write.
"""

import json
import re
from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fsdp_migrate.codemods.libraries import rules
from fsdp_migrate.codemods.libraries.configuration import table
from fsdp_migrate.codemods.libraries.configuration.project import Project
from fsdp_migrate.codemods.rule import Rule
from fsdp_migrate.search import Search

_WORD = re.compile(r"[fF][sS][dD][pP]")
_END = re.compile(r"\n(?<!\\\n)(?<!\\\r\n)")  # no backslash before it
# Patterns that begin with a letter of their own are searched for faster than those that begin with what may stand there.
_FLAG = re.compile(
    r"--(?<![\w-]--)(?P<flag>use[_-]fsdp|fsdp(?:[_-][\w-]+)?)\b"
    r"(?:(?:=|[ \t]+)(?P<value>\"[^\"\n]*\"|'[^'\n]*'|[^\s\\'\"-]\S*))?"
    r"|(?:A(?<![\w-]A)CCELERATE_USE_FSDP|F(?<![\w-]F)SDP_[A-Z_]+)=(?P<set>\"[^\"\n]*\"|[^\s;&]*)"
)
_COMMENT = re.compile(r"(?:^|\s)#")
_SECOND = re.compile(r"(?i)fsdp[_-]version[=\"',\s-]+2\b|[\"']version[\"']\s*:\s*2")
_EXPORTED = re.compile(r"export(?<!\wexport)\s+FSDP_VERSION=[\"']?2")
_STRATEGY = re.compile(r"=[\"']?(?:\$\{\w+:-[\"']?)?[fF][sS][dD][pP]\b(?![\w.])")
_OPENING = re.compile(r"\$\{|[\"']")
_NAME = re.compile(r"[\w.]+$")
# A value that only a run knows, as `$1` is in a script.
UNSURE = "$"
LEFT_OUT = "FSDP2 does not use this setting: {}. Remove it, unless other runs still use FSDP1."
# What a program's own flags stand behind, in the last of several commands of a line.
_SEPARATOR = re.compile(r"&&|[;|]")
_SCRIPT = re.compile(r"[\w}]\.py\b|(?:^|\s)(?:-m|--module)[ \t]+(?!accelerate)\w")
_OF_TRAINER = re.compile(rf"--fsdp[= \t]+[\"']?(?:{'|'.join(sorted(table.OPTIONS))})\b")
_PATH = re.compile(r"--fsdp_config[= \t]+[\"']?([^\s\"'{]+)")
_STRATEGIES = ("sharding_strategy", "reshard_after_forward")
# Some word that only a script or a configuration for verl has.
OF_VERL = Search(r"actor_rollout_ref|\bverl\b|ppo_mini_batch|ppo_micro_batch|param_offload")


@dataclass(frozen=True)
class Line:
    """A place in a script, and the message about it."""

    rule: Rule
    start: int
    end: int
    message: str


def launches(text: str, project: Project, is_script: bool = True) -> Iterator[Line]:
    """What sets FSDP1 in a shell script, or in a workflow, whose steps hold commands in pieces."""
    for start, end in _commands(text):
        for found in _FLAG.finditer(text, start, end):
            if _COMMENT.search(_before(text, found)) or _is_second(text, start, end, is_script):
                continue
            if not _is_own(found, text, start, end):
                yield from _of_flag(found, text[start:end], project)
        for found in _STRATEGY.finditer(text, start, end):
            line = _before(text, found)
            if _COMMENT.search(line):
                continue
            name = _NAME.search(line)
            if name and OF_VERL(text) and _is_strategy(name[0], text):
                yield _of_verl(name[0], found, text)


def _before(text: str, found: re.Match[str]) -> str:
    """What is in front of a match on its line."""
    return text[text.rfind("\n", 0, found.start()) + 1 : found.start()]


def _of_flag(found: re.Match[str], command: str, project: Project) -> Iterator[Line]:
    """What a flag of a command sets."""
    message = _said_of(found, command, project)
    last = found.end()
    if found["flag"] and _named(found) == "use_fsdp":
        last = found.end("flag")
    if message:
        yield Line(rules.FLAGS, found.start(), last, message)


def _of_verl(name: str, found: re.Match[str], text: str) -> Line:
    """What to write for a strategy of verl, or for a variable that gives one its value: a default stays one."""
    start = found.start() - len(name)
    end = found.end()
    for opening in reversed(_OPENING.findall(found[0])):
        closing = opening
        if opening == "${":
            closing = "}"
        if text.startswith(closing, end):
            end += 1
    given = f"{text[start : found.end() - len('fsdp')]}fsdp2{text[found.end() : end]}"
    message = f"Write `{given}`"
    if _is_tested(name, text):
        message += ", and test for `fsdp2` where the script tests it"
    return Line(rules.VERL, start, end, table.STRATEGY_OF_VERL.format(message))


def of_words(words: Sequence[str], project: Project) -> Iterator[tuple[int, Line]]:
    """What sets FSDP1 in the words of a command, each with the place of its word."""
    quoted = []
    for word in words:
        if re.search(r"\s", word) and '"' not in word:
            word = f'"{word}"'
        quoted.append(word)
    starts = [0]
    for word in quoted:
        starts.append(starts[-1] + len(word) + 1)
    for line in launches(" ".join(quoted), project):
        yield bisect(starts, line.start) - 1, line


def said_of(variable: str, value: str, project: Project) -> str:
    """What to write for a variable of the environment; "" where it is no setting of FSDP1."""
    found = _FLAG.fullmatch(f"{variable}={value}")
    if found and found["flag"] is None:
        return _said_of(found, "", project)
    return ""


def is_left_out(variable: str) -> bool:
    """Whether a variable of the environment has no use under FSDP2."""
    return variable.removeprefix("ACCELERATE_").lower().removeprefix("fsdp_") in table.REMOVED


def _said_of(found: re.Match[str], command: str, project: Project) -> str:
    value = (found["value"] or found["set"] or "").strip("\"'")
    if found["flag"] is not None and _named(found) == "fsdp":
        return _said_of_trainer(table.options_of(value), command, project)
    return _said(_named(found), value, is_flag=found["flag"] is not None)


def _is_own(found: re.Match[str], text: str, start: int, end: int) -> bool:
    """Whether a flag is the program's own, though it is called like Accelerate's, or a variable one of the script alone."""
    if found["flag"] is None:
        name = found[0].partition("=")[0]
        return re.search(rf"\$\{{?{name}\b", text) is not None
    if _named(found) == "fsdp":
        return False
    if _named(found) in table.MOVED:
        return not _OF_TRAINER.search(text, start, end)
    before = _SEPARATOR.split(text[start : found.start()])[-1]
    return "accelerate" not in text or _SCRIPT.search(before) is not None


def _is_strategy(name: str, text: str) -> bool:
    """Whether a name is a strategy's, or that of a variable that gives one its value."""
    read = rf"\$\{{?{re.escape(name)}\b"
    if re.search(rf"strategy=[\"']?{read}", text):
        return True
    # A variable that the script only tests says nothing to verl.
    return name.lower().endswith("strategy") and not _is_tested(name, text)


def _is_tested(name: str, text: str) -> bool:
    """Whether a script compares a variable: `[ "$name" == "fsdp" ]`, `case $name in`."""
    found = re.search(rf"\$\{{?{re.escape(name)}\b\}}?[\"']?\s*(?:==?|!=|in\b)", text)
    return found is not None


def _is_second(text: str, start: int, end: int, is_script: bool) -> bool:
    """Whether a command is for version 2: by its own flags, or by what a script exports, or a workflow sets anywhere."""
    if is_script:
        whole = _EXPORTED.search(text)
    else:
        whole = _SECOND.search(text)
    return bool(whole or _SECOND.search(text, start, end))


def _commands(text: str) -> Iterator[tuple[int, int]]:
    """Where the commands are that mention FSDP, with the lines that backslashes join."""
    end = 0
    while found := _WORD.search(text, end):
        before = text.rfind("\n", end, found.start())
        while text.endswith(("\\", "\\\r"), end, max(before, end)):
            before = text.rfind("\n", end, before)
        start = max(before + 1, end)
        last = _END.search(text, found.end())
        if last:
            end = last.start()
        else:
            end = len(text)
        yield start, end


def _named(found: re.Match[str]) -> str:
    """A flag's or a variable's name without its prefix."""
    name = (found["flag"] or found[0].partition("=")[0].removeprefix("ACCELERATE_")).lower()
    return name.replace("-", "_").removeprefix("fsdp_")


def _said(name: str, value: str, *, is_flag: bool) -> str:
    """What to write for a flag or a variable; "" where FSDP2 has the same."""
    version = _setting(is_flag, "version", "2")
    if name in table.MOVED and is_flag:
        return f"Newer releases of transformers stop with an error at this flag. Move it into `fsdp_config` as `{name}`."
    if name in table.REMOVED:
        return LEFT_OUT.format(table.REMOVED[name])
    if name == "use_fsdp":
        kept = _setting(is_flag, "state_dict_type", "FULL_STATE_DICT")
        said = (
            f"This selects FSDP1 unless the version is set. Add `{version}`, and `{kept}` if no type of state dict is "
            "set."
        )
        if value.lower() in ("false", "0"):
            return ""
        return said
    if name == "version":
        if value == "1":
            return "This selects FSDP1. Write `2`."
        return ""
    if name == "state_dict_type":
        if value.upper() in ("LOCAL_STATE_DICT", "2"):
            return table.LOCAL
        return ""
    if name in _STRATEGIES:
        return _said_of_strategy(name, value, is_flag=is_flag)
    return ""


def _said_of_strategy(name: str, value: str, *, is_flag: bool) -> str:
    """What to write for a flag or a variable that gives a strategy."""
    strategy = table.strategy_of(value)
    if strategy is None:
        is_unknown = bool(value) and name == "sharding_strategy"
        if is_unknown:
            said = f"`{_setting(is_flag, 'version', '2')}`"
            either = [
                f"`{_setting(is_flag, 'reshard_after_forward', each)}`"
                for each in ("true", "false")
            ]
            return (
                f"This is a setting of FSDP1. Instead, set {said}, and {either[0]} for FULL_SHARD or {either[1]} for "
                "SHARD_GRAD_OP."
            )
        return ""
    if strategy == "NO_SHARD":
        return table.UNSHARDED
    freed = str(table.reshards(strategy)).lower()
    said = f"set `{_setting(is_flag, 'reshard_after_forward', freed)}` and `{_setting(is_flag, 'version', '2')}`"
    return f"This is a setting of FSDP1. Instead, {said}.{_of_mesh(strategy)}"


def _said_of_trainer(words: list[str], command: str, project: Project) -> str:
    """What to write for transformers' `--fsdp`, whose words the releases read in different ways."""
    strategies = [strategy for word in words if (strategy := table.strategy_of(word))]
    if not words or "NO_SHARD" in strategies:
        if words:
            return table.UNSHARDED
        return ""
    strategy = "FULL_SHARD"
    if strategies:
        strategy = strategies[0]
    freed = table.reshards(strategy)
    mesh = _of_mesh(strategy)
    if old := project.too_old_for_trainer(str(freed).lower()):
        return f"{old}{mesh}"
    path = _PATH.search(command)
    if path:
        said = f"This selects FSDP1. Write `version: 2` and `reshard_after_forward: {str(freed).lower()}` into `{path[1]}`."
        if project.is_second(path[1]) and not mesh:
            return ""
        return f"{said}{mesh}"
    # Each release reads the words; 5.24.0 refuses `--fsdp true`.
    settings = json.dumps({"version": 2, "reshard_after_forward": freed})
    return f"This argument alone selects FSDP1. Keep it, and add `--fsdp_config '{settings}'` to select FSDP2.{mesh}"


def _of_mesh(strategy: str) -> str:
    if not strategy.startswith("HYBRID"):
        return ""
    return f" Without a `parallelism_config` it shards over all nodes: {table.SIZES}."


def _setting(is_flag: bool, name: str, value: str) -> str:
    """A setting of FSDP2 as a flag or a variable, like what was found."""
    if is_flag:
        return f"--fsdp_{name} {value}"
    return f"FSDP_{name.upper()}={value}"
