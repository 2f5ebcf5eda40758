"""How long the product is, by folder, and whether that is within its budget: `make lines`."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("codemods", "fsdp_migrate", "runtime")
MOST = {"codemods": 8_000, "product": 25_000, "tests and fixtures": 30_000}
MODULE = 400


def modules(path: Path) -> dict[Path, int]:
    """The lines of each module at or below a path."""
    files = [path] if path.is_file() else path.rglob("*.py")
    return {file: len(file.read_text("utf-8").splitlines()) for file in files}


def main() -> int:
    """Prints the counts; 1 if one is above its budget."""
    product = {file: n for name in FOLDERS for file, n in modules(ROOT / name).items()}
    folders: dict[Path, int] = {}
    for file, count in product.items():
        folder = file.parent.relative_to(ROOT)
        folders[folder] = folders.get(folder, 0) + count
    for folder, count in sorted(folders.items()):
        print(f"{count:7,}  {folder}")
    tests = {file: n for name in ("tests", "fixtures") for file, n in modules(ROOT / name).items()}
    codemods = modules(ROOT / "codemods")
    sums = {
        name: sum(counted.values())
        for name, counted in zip(MOST, (codemods, product, tests), strict=True)
    }
    long = {file: n for file, n in (product | tests).items() if n > MODULE}
    for name, count in sums.items():
        print(f"{count:7,}  {name}, of at most {MOST[name]:,}")
    for file, count in sorted(long.items()):
        print(f"{count:7,}  {file.relative_to(ROOT)}, of at most {MODULE}")
    return int(bool(long) or any(count > MOST[name] for name, count in sums.items()))


if __name__ == "__main__":
    sys.exit(main())
