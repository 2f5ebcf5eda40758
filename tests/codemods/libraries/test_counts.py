"""A count of parameters that is only printed changes what is printed; any other may change what is trained."""

from pathlib import Path

import pytest

from fsdp_migrate.findings import Severity

from ..programs import analysed

PROGRAM = """\
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from transformers.trainer_pt_utils import get_model_param_count

plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
accelerator = Accelerator(fsdp_plugin=plugin)
model, optimizer = accelerator.prepare(model, optimizer)
{}
"""


@pytest.mark.parametrize(
    ("line", "severity"),
    [
        ('logger.info(f"  Parameters = {get_model_param_count(model):,}")', Severity.PRINTS),
        ("print(get_model_param_count(model))", Severity.PRINTS),
        ("metrics.log(get_model_param_count(model))", Severity.SILENT),
        ("count = get_model_param_count(model)", Severity.SILENT),
    ],
)
def test_a_count(line: str, severity: Severity, tmp_path: Path) -> None:
    program = analysed(tmp_path, PROGRAM.format(line))
    (found,) = (each for each in program.findings if each.message.startswith("This now counts"))
    assert found.severity is severity
