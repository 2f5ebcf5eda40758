"""States of an optimizer that a program keeps in memory are the same under FSDP2; what a file holds is not (FSDP336)."""

from pathlib import Path

import pytest

from .programs import analysed

HEAD = """\
import copy
import io

import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


"""
MAIN = """\
def main(kept):
    model = FSDP(build(), use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters())
"""
CLASS = """\
class Best:
    def __init__(self, model, optimizer):
        self.model, self.optimizer, self.best = model, optimizer, None

    def keep(self):
        states = self.model.state_dict(), self.optimizer.state_dict()
        self.best = copy.deepcopy(states)

    def restore(self):
        self.model.load_state_dict(self.best[0])
        self.optimizer.load_state_dict(self.best[1])


"""
FUNCTIONS = """\
def snapshot(model, optimizer):
    return copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())


def restore(model, optimizer, kept):
    model.load_state_dict(kept[0])
    optimizer.load_state_dict(kept[1])


"""
DICTIONARY = """\
def keep(best, optimizer, step):
    best["optimizer"] = copy.deepcopy(optimizer.state_dict())
    best["step"] = step


def restore(best, optimizer):
    optimizer.load_state_dict(best["optimizer"])


"""
BUFFER = f"""\
{MAIN}    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    buffer.seek(0)
    optimizer.load_state_dict(torch.load(buffer))
"""
BEST = f"""\
{MAIN}    best = {{"model": model.state_dict(), "optimizer": copy.deepcopy(optimizer.state_dict())}}
    optimizer.load_state_dict(best["optimizer"])
    torch.save(best["model"], "best.pt")
"""
KEPT = {
    "a class": f"{CLASS}{MAIN}    best = Best(model, optimizer)\n",
    "functions": f"{FUNCTIONS}{MAIN}    restore(model, optimizer, snapshot(model, optimizer))\n",
    "a dictionary": f"{DICTIONARY}{MAIN}    keep({{}}, optimizer, 1)\n    restore({{}}, optimizer)\n",
    "a buffer": BUFFER,
    "the model alone is saved": BEST,
    "a loop": f"""\
{MAIN}    for x in data():
        loss = model(x).sum()
        if loss < 1:
            kept = {{"optimizer": copy.deepcopy(optimizer.state_dict()), "loss": loss.item()}}
        loss.backward()
        optimizer.step()
    optimizer.load_state_dict(kept["optimizer"])
""",
}
LOOKED_UP = ('best.get("optimizer")', 'best.pop("optimizer", None)', 'dict(best).get("optimizer")')
KEPT |= {
    each: f"""\
{MAIN}    best = {{"model": model.state_dict(), "optimizer": optimizer.state_dict()}}
    model.load_state_dict(torch.load("first.pt"))
    optimizer.load_state_dict({each})
"""
    for each in LOOKED_UP
}
KEPT["a list"] = f"""\
{MAIN}    states = [optimizer.state_dict()]
    model.load_state_dict(torch.load("first.pt"))
    optimizer.load_state_dict(states.pop())
"""
OTHERS = {
    "looked up in a file": f"""\
{MAIN}    best = torch.load("best.pt")
    optimizer.load_state_dict(best.get("optimizer"))
""",
    "looked up, or of a file": f"""\
{MAIN}    best = {{"optimizer": optimizer.state_dict()}}
    optimizer.load_state_dict(best.get("optimizer", torch.load("best.pt")))
""",
    "saved": f"""\
{CLASS}{MAIN}    best = Best(model, optimizer)
    best.keep()
    torch.save(best.best, "best.pt")
""",
    "loaded": KEPT["a class"].replace("optimizer, None", 'optimizer, torch.load("best.pt")'),
    "bytes of a buffer": f"{BUFFER}    send(buffer.getvalue())\n",
    "a buffer that is sent": f"{BUFFER}    upload(buffer)\n",
    "the optimizer is saved": BEST.replace('save(best["model"]', 'save(best["optimizer"]'),
    "all is saved": BEST.replace('save(best["model"]', "save(best"),
    "open": KEPT["functions"].replace("snapshot(model, optimizer))", "kept)"),
}


def found(folder: Path, program: str) -> set[int]:
    return {
        each.line
        for each in analysed(folder, HEAD + program).findings
        if each.code == "FSDP336" and "optimizer." in each.construct
    }


@pytest.mark.parametrize("program", KEPT.values(), ids=KEPT)
def test_states_that_stay_in_memory_are_not_reported(tmp_path: Path, program: str) -> None:
    assert not found(tmp_path, program)


@pytest.mark.parametrize("program", OTHERS.values(), ids=OTHERS)
def test_states_that_a_file_holds_are_reported(tmp_path: Path, program: str) -> None:
    assert found(tmp_path, program)
