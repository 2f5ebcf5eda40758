"""How long the product is, by folder, and which modules are longer than they should be: `make lines`."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("codemods", "fsdp_migrate", "runtime", "tests")
MODULE = 400


def modules(folder: Path) -> dict[Path, int]:
    """The lines of each module below a folder."""
    return {file: len(file.read_text("utf-8").splitlines()) for file in folder.rglob("*.py")}


def main() -> None:
    """Prints the lines of each folder, of each part of the product, and of the long modules."""
    long: dict[Path, int] = {}
    for name in FOLDERS:
        counted = modules(ROOT / name)
        folders: dict[Path, int] = {}
        for file, count in counted.items():
            folder = file.parent.relative_to(ROOT)
            folders[folder] = folders.get(folder, 0) + count
            if count > MODULE:
                long[file] = count
        for folder, count in sorted(folders.items()):
            print(f"{count:7,}  {folder}")
        print(f"{sum(counted.values()):7,}  {name} in all\n")
    print(f"Modules of more than {MODULE} lines:")
    for file, count in sorted(long.items()):
        print(f"{count:7,}  {file.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
