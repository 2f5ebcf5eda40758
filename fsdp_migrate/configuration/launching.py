"""FSDP1 as a command line sets it: flags of Accelerate and transformers, their environment variables, verl's overrides.

A shell is no language to rewrite by pattern: each place is reported with the text to write.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from fsdp_migrate.configuration.table import (
    FLAGS,
    LOCAL,
    REMOVED,
    SIZES,
    VERL,
    options_of,
    reshards,
    strategy_of,
)

_WORD = re.compile(r"[fF][sS][dD][pP]")
_END = re.compile(r"\n(?<!\\\n)(?<!\\\r\n)")  # no backslash before it
_FLAG = re.compile(
    r"(?<![\w-])(?:--(?P<flag>use_fsdp|fsdp(?:_\w+)?)\b(?:(?:=|[ \t]+)(?P<value>\"[^\"\n]*\"|'[^'\n]*'|[^\s\\'\"-]\S*))?"
    r"|(?P<variable>ACCELERATE_USE_FSDP|FSDP_[A-Z_]+)=(?P<set>\"[^\"\n]*\"|[^\s;&]*))"
)
_COMMENT = re.compile(r"(?:^|\s)#")
_SECOND = re.compile(r"(?i)fsdp_version[=\"',\s-]+2\b|[\"']version[\"']\s*:\s*2")
_EXPORTED = re.compile(r"export(?<!\wexport)\s+FSDP_VERSION=[\"']?2")
_STRATEGY = re.compile(r"\b([\w.]*strategy)=[\"']?(?:\$\{\w+:-[\"']?)?fsdp\b(?![\w.])", re.I)
# Some word that only a script or a configuration for verl has.
OF_VERL = re.compile(r"actor_rollout_ref|\bverl\b|ppo_m(?:ini|icro)_batch|param_offload")


@dataclass(frozen=True)
class Line:
    """A place in a script, and the message about it."""

    code: str
    start: int
    end: int
    message: str


def launches(text: str, is_script: bool = True) -> Iterator[Line]:
    """What sets FSDP1 in a shell script, or in a workflow, whose steps hold commands in pieces."""
    for start, end in _commands(text):
        for pattern in (_FLAG, _STRATEGY):
            for found in pattern.finditer(text, start, end):
                line = text[text.rfind("\n", 0, found.start()) + 1 : found.start()]
                if _COMMENT.search(line):
                    continue
                if pattern is _STRATEGY and OF_VERL.search(text):
                    said = f"selects FSDP1 in verl: write {found[1]}=fsdp2"
                    yield Line(VERL, found.start(), found.end(), said)
                elif pattern is _FLAG and not _is_second(text, start, end, is_script):
                    said = _said(found, text[start:end])
                    last = found.end("flag") if found["flag"] == "use_fsdp" else found.end()
                    if said:
                        yield Line(FLAGS, found.start(), last, said)


def _is_second(text: str, start: int, end: int, is_script: bool) -> bool:
    """Whether a command is for version 2: by its own flags, or by what a script exports, or a workflow sets anywhere."""
    whole = _EXPORTED.search(text) if is_script else _SECOND.search(text)
    return bool(whole or _SECOND.search(text, start, end))


def _commands(text: str) -> Iterator[tuple[int, int]]:
    """Where the commands are that mention FSDP, with the lines that backslashes join."""
    end = 0
    while found := _WORD.search(text, end):
        before = text.rfind("\n", end, found.start())
        while text.endswith(("\\", "\\\r"), end, max(before, end)):
            before = text.rfind("\n", end, before)
        start, last = max(before + 1, end), _END.search(text, found.end())
        end = last.start() if last else len(text)
        yield start, end


def _said(found: re.Match[str], command: str) -> str:
    name = (found["flag"] or found["variable"].removeprefix("ACCELERATE_")).lower()
    value = (found["value"] or found["set"] or "").strip("\"'")
    name = name.removeprefix("fsdp_")
    flag = "--fsdp_{} {}" if found["flag"] else "FSDP_{}={}"

    def written(setting: str, to: str) -> str:
        return flag.format(setting if found["flag"] else setting.upper(), to)

    if name == "use_fsdp" and value.lower() not in ("false", "0"):
        whole = "" if "state_dict_type" in command.lower() else " and "
        return f"FSDP1 by default: add {written('version', '2')}" + (
            whole and whole + written("state_dict_type", "FULL_STATE_DICT")
        )
    if name == "version" and value == "1":
        return f"write {written('version', '2')}"
    if name == "fsdp":
        return _options(value)
    if name in REMOVED:
        return f"leave it out: {REMOVED[name]}"
    if name == "state_dict_type" and value.upper() in ("LOCAL_STATE_DICT", "2"):
        return LOCAL
    strategy = (
        strategy_of(value) if name in ("sharding_strategy", "reshard_after_forward") else None
    )
    if strategy == "NO_SHARD":
        return "NO_SHARD is DistributedDataParallel: --multi_gpu, and no flag or variable of FSDP"
    if strategy is None:
        return ""
    said = f"write {written('reshard_after_forward', str(reshards(strategy)).lower())}"
    return f"{said} and a parallelism_config: {SIZES}" if "HYBRID" in strategy else said


def _options(value: str) -> str:
    """transformers' `--fsdp "full_shard auto_wrap"`."""
    words = options_of(value)
    if not words:
        return ""
    strategies = [name for word in words if (name := strategy_of(word))] or ["FULL_SHARD"]
    if strategies[0] == "NO_SHARD":
        return "NO_SHARD is DistributedDataParallel: leave --fsdp and --fsdp_config out"
    settings = {"version": 2, "reshard_after_forward": reshards(strategies[0])}
    if "offload" in words:
        settings["cpu_offload"] = True
    said = f"write --fsdp --fsdp_config '{json.dumps(settings)}', or these settings in the file that it names"
    return f"{said}, and a parallelism_config: {SIZES}" if "HYBRID" in strategies[0] else said
