"""Which releases of a library a project takes, in each way of saying so."""

from pathlib import Path

import pytest

from fsdp_migrate.pins import Pins, Release, pins_in


@pytest.mark.parametrize(
    ("file", "text", "low", "high"),
    [
        ("requirements.txt", "torch==2.8\ntransformers==4.57.1\n", (4, 57, 1), (4, 57, 1, 1)),
        ("requirements-dev.txt", "transformers[torch]>=4.46,<5.0.0  # a\n", (4, 46), (5,)),
        ("requirements.txt", "transformers ~= 4.57.1\n", (4, 57, 1), (4, 58)),
        ("requirements.txt", "transformers~=4.57\n", (4, 57), (5,)),
        ("requirements.txt", "Transformers<=5.9\n", (), (5, 9, 1)),
        ("requirements.txt", "transformers>4.57.1 , !=5.1\n", (4, 57, 1, 1), None),
        ("requirements.txt", "transformers==4.57.*\n", (4, 57), (4, 58)),
        ("pyproject.toml", 'dependencies = ["accelerate", "transformers>=5.10"]\n', (5, 10), None),
        ("pyproject.toml", 'dependencies = ["transformers (>=5.10,<6)"]\n', (5, 10), (6,)),
        ("pyproject.toml", '[tool.poetry.dependencies]\ntransformers = "^4.40.1"\n', (4, 40, 1), (5,)),
        ("pyproject.toml", '[tool.poetry.dependencies]\ntransformers = "^0.3.1"\n', (0, 3, 1), (0, 4)),
        ("pyproject.toml", '[tool.poetry.dependencies]\ntransformers = {version = "~4.40.1"}\n', (4, 40, 1), (4, 41)),
        ("pyproject.toml", "[tool.poetry.dependencies]\ntransformers = '4.57.1'\n", (4, 57, 1), (4, 57, 1, 1)),
        ("Pipfile", '[packages]\ntransformers = "==4.57.1"\n', (4, 57, 1), (4, 57, 1, 1)),
        ("setup.py", "setup(install_requires=['transformers>=4.30'])\n", (4, 30), None),
        ("setup.cfg", "install_requires =\n    transformers <5\n", (), (5,)),
        ("environment.yml", "dependencies:\n  - transformers=4.57\n", (4, 57), (4, 58)),
        ("Dockerfile", "RUN pip install transformers==4.57.1 \\\n", (4, 57, 1), (4, 57, 1, 1)),
        ("install.sh", "pip install transformers==4.57.1 accelerate==1.10\n", (4, 57, 1), (4, 57, 1, 1)),
        ("uv.lock", '[[package]]\nname = "transformers"\nversion = "5.24.0"\n', (5, 24), (5, 24, 0, 1)),
        ("poetry.lock", '[[package]]\nname = "transformers"\nversion = "4.57.1"\n', (4, 57, 1), (4, 57, 1, 1)),
        (
            "Pipfile.lock",
            '{"default": {"transformers": {"hashes": ["a"], "index": "pypi", "version": "==4.57.1"}}}',
            (4, 57, 1),
            (4, 57, 1, 1),
        ),
    ],
)  # fmt: skip
def test_a_limit_is_read(file: str, text: str, low: Release, high: Release | None) -> None:
    (pin,) = pins_in(Path(file), text, "transformers")
    assert (pin.low, pin.high) == (low, high)
    assert str((low or high or ())[0]) in text.splitlines()[pin.line - 1]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("requirements.txt", "transformers\n"),
        ("requirements.txt", "# transformers==4.57.1\n"),
        ("requirements.txt", "sentence-transformers==4.57.1\nvision.transformers==1\n"),
        ("requirements.txt", "transformers-stream==0.1\n"),
        ("requirements.txt", "transformers @ git+https://host/transformers.git@main\n"),
        ("setup.py", "import transformers\nversion = transformers.__version__\n"),
        ("pyproject.toml", '[tool.poetry.dependencies]\ntransformers = "*"\n'),
        ("uv.lock", '[[package]]\nname = "accelerate"\nversion = "1.5"\n'),
    ],
)
def test_what_limits_nothing_is_no_pin(file: str, text: str) -> None:
    assert list(pins_in(Path(file), text, "transformers")) == []


def test_spellings_of_a_name_are_one() -> None:
    (pin,) = pins_in(Path("requirements.txt"), "llm_foundry==0.22\n", "llm-foundry")
    assert pin.low == (0, 22)


def test_the_nearest_folder_says_it_and_a_lock_exactly(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "examples").mkdir()
    file = tmp_path / "examples" / "train.py"
    assert Pins().releases(file, "transformers").said == ""
    (tmp_path / "requirements.txt").write_text("transformers>=4.40\n")
    (tmp_path / "requirements-test.txt").write_text("transformers>=4.46,<5\n")
    either = Pins().releases(file, "transformers")
    assert (either.low, either.high) == ((4, 40), None)
    assert not either.all_before((5,))
    assert either.said == "transformers>=4.46,<5 of requirements-test.txt:1 and others"
    (tmp_path / "uv.lock").write_text('name = "transformers"\nversion = "4.57.1"\n')
    locked = Pins().releases(file, "transformers")
    assert locked.all_before((5,))
    assert locked.all_since((4, 57))
    assert locked.said == "transformers==4.57.1 of uv.lock:2"
    (tmp_path / "examples" / "requirements.txt").write_text("accelerate\ntransformers==5.24.0\n")
    near = Pins().releases(file, "transformers")
    assert near.said == "transformers==5.24.0 of requirements.txt:2"
    assert near.all_since((5, 10))


def test_no_folder_above_the_project_is_read(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("transformers==4.57.1\n")
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text("[project]\n")
    assert Pins().of(project / "train.py", "transformers") == []


def test_scripts_and_images_of_the_run_say_it_without_a_repository(tmp_path: Path) -> None:
    project = tmp_path / "project"
    settings = project / "configs" / "fsdp.yaml"
    (project / "docker").mkdir(parents=True)
    (tmp_path / "install.sh").write_text("pip install accelerate==1.10\n")
    pins = Pins([project / "train.py", settings])
    assert pins.of(settings, "accelerate") == []
    (project / "docker" / "Dockerfile").write_text("RUN pip install 'accelerate==0.34.2'\n")
    image = Pins([project / "train.py", settings]).releases(settings, "accelerate")
    assert image.said == "accelerate==0.34.2 of Dockerfile:1"
    (project / "docker" / "Dockerfile").unlink()
    (project / "install.sh").write_text("conda activate x\npip install accelerate==0.33.0\n")
    script = Pins([project / "train.py", settings]).releases(settings, "accelerate")
    assert script.said == "accelerate==0.33.0 of install.sh:2"
    assert script.all_before((1, 6))
