"""Joins a process group, and leaves."""

import torch.distributed as dist
from task import launch

if __name__ == "__main__":

    def main() -> None:
        dist.init_process_group("gloo")
        dist.barrier()

    launch(main)
