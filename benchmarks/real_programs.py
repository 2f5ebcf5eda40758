"""Public training programs under `verify`, in each form of the migration.

    pip install -r benchmarks/real_programs.txt
    python benchmarks/real_programs.py FOLDER [--only NAME...] [--form FORM...] [--results FILE] [--page] [of verify]

FOLDER holds clones, or will: `--clone` fetches what it lacks. A program downloads nothing: what it would fetch is stood
in for (`standins/`), and an edit in a copy, where there is one, makes the model small or names what torch no longer has.
Each run adds a line of JSON to the results as soon as it is over, and is not made again; --page prints them as a table
and runs nothing. What came out is in docs/results/real-programs.md.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from by_hand import STANDINS, emulation, measured, torchrun
from programs import CLONES, PROGRAMS, RELEASES, Edit, Real

from fsdp_migrate.codemods.constructor import construction
from fsdp_migrate.discover import discover
from fsdp_migrate.engine import analyse
from fsdp_migrate.report import Report
from fsdp_migrate.settings import FORMS, Options

RANKS = 2  # of a run by hand, as of verify
# How findings name constructor calls: the others of this code are about assignments that go with a call.
CALLS = {
    construction.DIRECT,
    construction.SUBCLASS,
    construction.PARTIAL,
    construction.ENABLE_WRAP,
    construction.WRAP,
}

# What of a repository is fetched: its text, not its data, which JSON is but for open_lm's models.
TEXT = "*.py", "*.yaml", "*.toml", "*.md", "*.rst", "**/model_configs/*.json"


def clone(name: str, folder: Path) -> None:
    """Fetch a release, or the text files of a repository at its commit, unless the folder is there.

    pip and git say what they cannot.
    """
    if (folder / name).is_dir():
        return
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / name
        if name in RELEASES:
            install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
            commands = [[*install, str(made), RELEASES[name]]]
        else:
            repository, commit = CLONES[name]
            url = f"https://github.com/{repository}"
            git = ["git", "-C", str(made)]
            commands = [
                ["git", "init", "--quiet", str(made)],
                [*git, "remote", "add", "origin", url],
                [*git, "fetch", "--quiet", "--depth=1", "--filter=blob:none", "origin", commit],
                [*git, "sparse-checkout", "set", "--no-cone", *TEXT],
                [*git, "checkout", "--quiet", commit],
            ]
        if not any(subprocess.run(each, check=False).returncode for each in commands):
            made.rename(folder / name)


def edited(place: Path, real: Real, scratch: Path) -> Path:
    """The program's folder; a copy, where it has an edit, is made from a page, or gets a checkpoint.

    Raises SystemExit where the clone has not got the text to edit.
    """
    if real.made:
        (scratch / "program.py").write_text(
            real.made((place / real.entry).read_text("utf-8")), "utf-8"
        )
        return scratch
    if not real.edits and not real.before:
        return place / real.folder
    folder = scratch / (real.folder or real.repository)
    shutil.copytree(place / real.folder, folder, ignore=shutil.ignore_patterns(".git"))
    edit(folder, real.edits)
    return folder


def edit(folder: Path, edits: tuple[Edit, ...]) -> None:
    """Edit a program. Raises SystemExit where the text to edit is not there."""
    for path, before, after in edits:
        text = (folder / path).read_text("utf-8")
        if before not in text:
            raise SystemExit(f"{folder / path} has no line {before!r}")
        (folder / path).write_text(text.replace(before, after), "utf-8")


def train(real: Real, folder: Path) -> None:
    """Run the original in its folder. Raises SystemExit where it fails."""
    with tempfile.TemporaryDirectory() as scratch:
        paths = [emulation(Path(scratch), RANKS), STANDINS, *(folder / path for path in real.paths)]
        measured(torchrun(RANKS, real.entry, *real.before), folder, paths)


def migration(report: Report) -> dict[str, Any]:
    """What the tool does to a program's folder: constructor calls by form, findings by action, changed lines."""
    calls: Counter[str] = Counter()
    for finding in report.findings:
        if finding.code == construction.CONSTRUCTOR.code and finding.construct in CALLS:
            calls[finding.action.value] += 1
    lines = 0
    for change in report.changes:
        before, after = (text.decode().splitlines() for text in (change.before, change.after))
        lines += sum(line[0] in "+-" for line in difflib.unified_diff(before, after, n=0)) - 2
    actions = Counter(finding.action.value for finding in report.findings)
    by_hand = Counter(each.code for each in report.findings if each.action.value == "manual")
    return {"calls": calls, "lines": lines, "findings": actions, "by hand": by_hand}


def run(name: str, form: str, folder: Path, options: list[str]) -> dict[str, Any]:
    """One program in one form: what the migration does, and what `verify` says."""
    real = PROGRAMS[name]
    if real.before:
        train(real, folder)
    report = analyse(discover([folder], root=folder), Options(form))
    paths = [STANDINS, *(folder / path for path in real.paths), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, filter(None, paths)))}
    with tempfile.TemporaryDirectory() as scratch:
        verdict = Path(scratch) / "verdict.json"
        how = ["--form", form, "--device", "cpu", "--emulate", *options, "--json", str(verdict)]
        entry = "program.py" if real.made else real.entry
        command = [sys.executable, "-m", "fsdp_migrate", "verify", str(folder), "--entry", entry]
        if real.by_hand:
            migrated = Path(scratch) / folder.name
            shutil.copytree(folder, migrated)
            for change in report.changes:
                (migrated / change.path.relative_to(folder)).write_bytes(change.after)
            edit(migrated, real.by_hand)
            how += ["--migrated", str(migrated)]
        command += [*how, *real.options, "--", *real.arguments]
        begun = time.monotonic()
        done = subprocess.run(
            command,
            env=environment,
            check=False,
            cwd="/",
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        said = done.stdout.strip().splitlines()
        text = verdict.read_text("utf-8") if verdict.exists() else ""
    return {
        "program": name,
        "form": form,
        "status": done.returncode,
        "seconds": round(time.monotonic() - begun),
        "migration": migration(report),
        "last": said[-1] if said else "",
        "said": said[-60:],
        "verify": json.loads(text) if text else None,  # nothing where a program failed
    }


def runs_of(results: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The runs that a file of results has, the last one of each program and form."""
    if not results.exists():
        return {}
    lines = map(json.loads, results.read_text("utf-8").splitlines())
    return {(line["program"], line["form"]): line for line in lines}


# Actions of findings, as the page names them.
ACTIONS = {"rewrite": "plain", "runtime": "runtime", "manual": "by hand"}


def by_action(counts: dict[str, int]) -> str:
    return ", ".join(f"{counts[key]} {name}" for key, name in ACTIONS.items() if key in counts)


def verdict_of(line: dict[str, Any]) -> str:
    """What `verify` found, in a cell."""
    found = line["verify"]
    if found is None:
        return str(line["last"]).removeprefix("fsdp-migrate verify: ")
    if not found["equal"]:
        causes = [f"{cause['title']}. {cause['advice']}" for cause in found["causes"][:1]]
        return "; ".join([line["last"], *causes])
    losses = max(map(len, found["original"]["losses"]), default=0)
    how = "bitwise equal" if found["bitwise"] else f"within {found['max_abs_loss_diff']:.1g}"
    norms, parameters = (
        "not compared" if apart is None else f"within {apart:.1g}" if apart else "equal"
        for apart in (found["max_rel_grad_norm_diff"], found["max_abs_param_diff"])
    )
    parts = [f"{losses} losses {how}", f"gradient norms {norms}", f"last parameters {parameters}"]
    printed = len(found["printed"])
    differ = f"{printed} printed line{' differs' if printed == 1 else 's differ'}"
    return ", ".join([*parts, differ] if printed else parts)


def page(runs: dict[tuple[str, str], dict[str, Any]]) -> str:
    """The runs as a table."""
    titles = "program", "form", "constructors", "lines", "findings", "verdict", "seconds", "memory"
    rows = [f"| {' | '.join(titles)} |", "|---|---|---|---:|---|---|---:|---:|"]
    for name in PROGRAMS:
        for form in FORMS:
            if line := runs.get((name, form)):
                made, found = line["migration"], line["verify"]
                both = [found[which] for which in ("original", "migrated")] if found else []
                peaks = [run["peak_memory_bytes"] for run in both]
                cells = [
                    f"{name}: {PROGRAMS[name].shows}",
                    form,
                    by_action(made["calls"]),
                    str(made["lines"]),
                    " ".join([by_action(made["findings"]), *made["by hand"]]),
                    verdict_of(line).replace("|", "\\|"),
                    ", ".join(f"{run['seconds']:.0f}" for run in both),
                    f"{peaks[1] / peaks[0]:.2f}" if peaks and peaks[0] else "",
                ]
                rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="clones by the name of the repository")
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, default=[*PROGRAMS], metavar="NAME")
    parser.add_argument("--form", nargs="+", choices=FORMS, default=[*FORMS])
    parser.add_argument("--results", type=Path, default=Path("real_programs.jsonl"))
    parser.add_argument("--clone", action="store_true", help="fetch the clones that are missing")
    parser.add_argument("--page", action="store_true", help="print the table of the results alone")
    options, of_verify = parser.parse_known_args()
    if options.clone:
        options.folder.mkdir(parents=True, exist_ok=True)
        for name in options.only:
            clone(PROGRAMS[name].repository, options.folder)
    for form in () if options.page else options.form:
        for name in options.only:
            place = options.folder.resolve() / PROGRAMS[name].repository
            if (name, form) in runs_of(options.results) or not place.is_dir():
                continue
            with tempfile.TemporaryDirectory() as scratch:
                folder = edited(place, PROGRAMS[name], Path(scratch))
                line = run(name, form, folder, of_verify)
            with options.results.open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps(line)}\n")
            print(f"{name}, {form}: {line['last']}", file=sys.stderr)
    runs = runs_of(options.results)
    print(page(runs))
    return int(any(line["status"] for line in runs.values()))


if __name__ == "__main__":
    sys.exit(main())
