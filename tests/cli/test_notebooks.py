"""Notebooks: their cells are one module, and nothing but the lines that change is written."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsdp_migrate.notebooks import Notebook

Cli = Callable[..., Any]

CELLS: list[dict[str, Any]] = [
    {"cell_type": "markdown", "metadata": {}, "source": ["# FSDP\n", "from torch import é"]},
    {
        "cell_type": "code",
        "execution_count": 3,
        "metadata": {"tags": ["source"]},
        "outputs": [{"output_type": "stream", "name": "stdout", "text": ["source: FSDP(model)\n"]}],
        "source": [
            "%load_ext autoreload\n",
            "!pip install torch \\\n",
            "    numpy\n",
            "files = !ls\n",
            "import torch\n",
            "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n",
            "from torch.distributed.fsdp import MixedPrecision",
        ],
    },
    {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {},
        "outputs": [],
        "source": "%%writefile train.py\nmodel = FSDP(model)",
    },
    {
        "cell_type": "code",
        "execution_count": 4,
        "metadata": {},
        "outputs": [],
        "source": [
            "%%time\n",
            "é = torch.nn.Linear(2, 2)\n",
            "model = FSDP(é, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16))\n",
            "model?\n",
            "if model:\n",
            "    %timeit model(x)\n",
            "print(model, \"a\\tb\")  # \u00e9\n",
        ],
    },
    {"cell_type": "code", "metadata": {}, "outputs": [], "source": []},
    {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {},
        "outputs": [],
        "source": "%%writefile train.yaml\n# fsdp:\n#   enable_fsdp: True\nmodel: x",
    },
]  # fmt: skip
NOTEBOOK = {
    "cells": CELLS,
    "metadata": {"language_info": {"name": "python"}, "source": "FSDP"},
    "nbformat": 4,
    "nbformat_minor": 5,
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "as Jupyter writes it": {"indent": 1, "ensure_ascii": False},
    "escaped": {"indent": 2},
    "on one line": {},
    "tight": {"separators": (",", ":")},
    "tight, escaped, over lines": {"indent": 0, "separators": (",", ":")},
    "tabs": {"indent": "\t", "ensure_ascii": False},
}


@pytest.fixture(params=LAYOUTS)
def notebook(request: pytest.FixtureRequest, folder: Path) -> Path:
    file = folder / "a b.ipynb"
    file.write_text(json.dumps(NOTEBOOK, **LAYOUTS[request.param]) + "\n", "utf-8")
    return file


def test_cells_are_migrated_and_all_else_stays(real_cli: Cli, notebook: Path) -> None:
    before = notebook.read_text("utf-8")
    result = real_cli(".")
    assert (result.code, result.err) == (0, "")
    (apart,) = (line for line in result.text.splitlines() if "%%writefile" in line)
    assert "Not rewritten, because this cell writes a file" in apart
    assert apart.endswith("(cell 3, line 1)")
    after = notebook.read_text("utf-8")
    cells = json.loads(after)["cells"]
    imports = CELLS[1]["source"]
    assert cells[1]["source"][:5] == imports[:5]
    assert cells[1]["source"][5:] == [
        "from fsdp_migrate.runtime import like_fsdp1\n",
        "from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard",
    ]
    model = cells[3]["source"]
    assert model[0] == "%%time\n"
    assert "mp_policy=MixedPrecisionPolicy(" in "".join(model)
    assert model[-4:] == CELLS[3]["source"][-4:]
    for cell, old in zip(cells, CELLS, strict=True):
        assert {**cell, "source": 0} == {**old, "source": 0}
    assert [cells[number] for number in (0, 2, 4, 5)] == [CELLS[number] for number in (0, 2, 4, 5)]
    layout = next(k for k in LAYOUTS.values() if json.dumps(NOTEBOOK, **k) + "\n" == before)
    document = {**NOTEBOOK, "cells": cells}
    assert after == json.dumps(document, **layout) + "\n", "the file's own layout"
    assert "1 use of FSDP1 in 1 file: 1 needs you" in real_cli(".").text
    assert notebook.read_text("utf-8") == after


def test_findings_are_where_the_line_is_in_the_file(real_cli: Cli, folder: Path) -> None:
    text = json.dumps(NOTEBOOK, **LAYOUTS["escaped"])
    (folder / "x.ipynb").write_text(text)
    document = json.loads(real_cli("check", "x.ipynb", "--format", "json").text)
    by_code = {finding["code"]: finding for finding in document["findings"]}
    found = by_code["FSDP002"]
    line = text.split("\n")[found["line"] - 1]
    assert line[found["column"] - 1 :].startswith("FSDP(\\u00e9, mixed")
    assert line[found["end_column"] - 1 :] == '\\n",'
    assert found["message"].endswith("(cell 4, line 3)")
    imported = next(f for f in document["findings"] if f["code"] == "FSDP001")
    assert '"from torch' in text.split("\n")[imported["line"] - 1]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"cells": [{"cell_type": "FSDP"', "is no notebook that can be read"),
        ('{"cells": [{"cell_type": "code", "source": "FSDP ("}]}', "cell 1 is not changed"),
        ('{"cells":[],"FSDP":1}', ""),
        ('["FSDP"]', ""),
        ('{"FSDP": 1}', ""),
        ('{"cells": [{"cell_type": "code", "source": "%%bash\\nls $FSDP"}]}', ""),
        ('{"cells": [], "metadata": {"kernelspec": {"language": "R"}}, "x": "FSDP"}', ""),
    ],
)
def test_other_files_stay(real_cli: Cli, folder: Path, text: str, says: str) -> None:
    (folder / "x.ipynb").write_text(text)
    result = real_cli(".")
    assert result.code == (2 if says else 0)
    assert says in result.err
    assert (folder / "x.ipynb").read_text() == text


def test_a_notebook_imports_the_copy_of_the_runtime(real_cli: Cli, folder: Path) -> None:
    (folder / "x.ipynb").write_text(json.dumps(NOTEBOOK, indent=1))
    assert real_cli(".", "--form", "bridge", "--vendor", "fsdp2").code == 0
    text = (folder / "x.ipynb").read_text()
    assert "from fsdp2 import MixedPrecision" in text
    assert real_cli(".", "--form", "bridge").code == 0
    assert (folder / "x.ipynb").read_text() == text
    assert (folder / "fsdp2" / "bridge.py").exists()


def test_cells_that_would_be_damaged_are_refused() -> None:
    notebook = Notebook(json.dumps(NOTEBOOK))
    program = notebook.program
    assert notebook.written(program) == json.dumps(NOTEBOOK)
    with pytest.raises(ValueError, match="the magic of cell 4 would not be its first line"):
        notebook.written(program.replace("None  # fsdp-migrate: magic %%time", "import os\n\\g<0>"))
    with pytest.raises(ValueError, match="mixed up"):
        notebook.written(program.replace("# fsdp-migrate: cell 4\n", ""))


BY_HAND = """\
{"nbformat":4,"nbformat_minor":5,  "metadata":{}, "scale":1e5,
\t"cells":[{"cell_type":"code", "outputs":[], "metadata":{},
\t\t"source":[ "x = \\u0022a\\u0022\\n" , "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\\n",
\t\t           "model = FSDP(model)  # \\ud83d\\ude00" ]  },
  {"cell_type":"code","source":"a=1\\u000amodel\\/1\\nFSDP(net)","metadata":{}}]
}
"""
MIGRATED = """\
{"nbformat":4,"nbformat_minor":5,  "metadata":{}, "scale":1e5,
\t"cells":[{"cell_type":"code", "outputs":[], "metadata":{},
\t\t"source":[ "x = \\u0022a\\u0022\\n" , "from torch.distributed.fsdp import fully_shard\\n"@"@(model)  # \\ud83d\\ude00" ]  },
  {"cell_type":"code","source":"a=1\\u000amodel\\/1\\nfully_shard(net)","metadata":{}}]
}
"""


def test_any_layout_keeps_what_does_not_change(real_cli: Cli, folder: Path) -> None:
    """Written by hand: two separators, numbers and escapes that `json.dumps` writes otherwise, CRLF."""
    for end in ("\n", "\r\n"):
        (folder / "x.ipynb").write_text(BY_HAND, newline=end)
        assert real_cli(".", "--form", "torch").code == 0
        text = (folder / "x.ipynb").read_bytes().decode()
        assert text == MIGRATED.replace("@(", "fully_shard(").replace("@", " , ").replace("\n", end)


def test_a_finding_counts_the_characters_as_they_are_written(real_cli: Cli, folder: Path) -> None:
    (folder / "x.ipynb").write_text(BY_HAND)
    document = json.loads(real_cli("check", "x.ipynb", "--format", "json").text)
    lines = BY_HAND.splitlines()
    wrapped = [found for found in document["findings"] if found["code"] == "FSDP002"]
    assert [lines[each["line"] - 1][each["column"] - 1 :][:9] for each in wrapped] == [
        "FSDP(mode",
        "FSDP(net)",
    ]
