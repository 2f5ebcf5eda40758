"""What is switched off stays as it is, and the rest of the file goes on to work."""

import pytest

from fsdp_migrate.settings import Options

from ..fuzz.checks import FSDP, run

CALL = "model = FSDP(model)"
OPTION = "from torch.distributed.fsdp import CPUOffload\n"

SILENCED = {
    "every code": f"{CALL}  # fsdp-migrate: ignore\n",
    "its code": f"{CALL}  # fsdp-migrate: ignore[FSDP002]\n",
    "several codes, in any case": f"{CALL}  # noqa # fsdp-migrate: ignore[fsdp002, FSDP018]\n",
    "below a form feed": f"x = 1\n\x0c\ny = 2\n{CALL}  # fsdp-migrate: ignore[FSDP002]\n",
    "below other line ends of Unicode": f"x = 'a\x0bb\x1cc'\n{CALL}  # fsdp-migrate: ignore\n",
}


@pytest.mark.parametrize("text", SILENCED.values(), ids=SILENCED)
def test_a_comment_silences_its_line(text: str) -> None:
    line = text[: text.index("# fsdp-migrate")].count("\n") + 2
    outcome = run(FSDP + text)
    assert "FSDP002" not in outcome.codes
    assert text.splitlines()[-1] in outcome.after
    assert line in {f.line for f in run(FSDP + text.partition("#")[0] + "\n").report.findings}
    assert "fsdp_migrate.runtime import FullyShardedDataParallel as FSDP" in outcome.after


def test_a_comment_for_another_code_silences_nothing() -> None:
    outcome = run(f"{FSDP}{CALL}  # fsdp-migrate: ignore[FSDP999]\n")
    assert "FSDP002" in outcome.codes
    (unused,) = outcome.report.manual
    assert unused.code == "FSDP099"
    assert "no rule has the code FSDP999" in unused.message
    comment = "# fsdp-migrate: ignore[FSDP207]\n"
    for text in (
        f"{FSDP}{CALL}  {comment}",
        f"x = 1  {comment}",
        f"{FSDP}# fsdp-migrate: ignore\n{CALL}\n",
    ):
        assert "FSDP099" in run(text).codes
        assert "FSDP099" not in run(text, Options("bridge")).codes
    assert "FSDP099" not in run(f"text = '{comment[:-1]}'\n").codes


@pytest.mark.parametrize("text", SILENCED.values(), ids=SILENCED)
@pytest.mark.parametrize("options", [Options(), Options(ignore=frozenset({"FSDP002"}))])
def test_a_comment_that_silences_is_not_reported(text: str, options: Options) -> None:
    assert "FSDP099" not in run(FSDP + text, options).codes


def test_an_import_that_is_silenced_stays_torch_s() -> None:
    outcome = run(f"{FSDP.rstrip()}  # fsdp-migrate: ignore[FSDP001]\n{OPTION}")
    assert FSDP.rstrip() in outcome.after
    assert "from fsdp_migrate.runtime import CPUOffload" in outcome.after


def test_a_program_that_stays_on_fsdp1_has_no_findings() -> None:
    """Its import and its constructor are silenced: the runtime serves none of its options."""
    text = f"{FSDP.rstrip()}, CPUOffload  # fsdp-migrate: ignore\noffload = CPUOffload(True)\n"
    call = "model = FSDP(  # fsdp-migrate: ignore\n    model,\n    cpu_offload=offload,\n)\n"
    outcome = run(text + call)
    assert outcome.report.findings == []
    assert outcome.after == text + call
    assert "FSDP201" in run(FSDP + OPTION + text.splitlines()[1] + "\n" + call).codes


@pytest.mark.parametrize(
    ("options", "codes"),
    [
        (Options(select=frozenset({"FSDP001"})), {"FSDP001"}),
        (Options(ignore=frozenset({"FSDP002", "FSDP018"})), {"FSDP001"}),
        (Options("bridge", select=frozenset({"FSDP999"})), set()),
    ],
)
def test_codes_that_are_asked_for(options: Options, codes: set[str]) -> None:
    outcome = run(f"{FSDP}{CALL}\n", options)
    assert outcome.codes == codes
    assert outcome.changed == ("FSDP001" in codes)
