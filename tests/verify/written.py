"""Runs and verdicts that are written down by hand."""

from fsdp_migrate.verify.compare import compare
from fsdp_migrate.verify.records import Rank, Run
from fsdp_migrate.verify.verdict import Verdict


def rank(losses: list[float], number: int = 0, micro: int = 1, lr: float = 0.1) -> Rank:
    steps = [index // micro + 1 for index in range(len(losses))]
    count = max(steps, default=0)
    return Rank(
        rank=number,
        losses=losses,
        loss_steps=steps,
        squares=[float(step) for step in range(1, count + 1)],
        learning_rates=[[lr]] * count,
        backend="gloo",
    )


def run(*losses: list[float], **how: float) -> Run:
    return Run([rank(one, number, **how) for number, one in enumerate(losses)], seconds=1.0)  # type: ignore[arg-type]


def verdict(one: Run, other: Run, tolerance: float = 1e-6) -> Verdict:
    compared = vars(compare(one, other, tolerance)).values()
    return Verdict(*compared, tolerance, "gloo", {"w": 0.0}, one, other)
