"""Run by test_hessian_processes.py in one process and in two, each with its own part of 13 examples."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hf_softlabel.diagnostics.hessian import hessian_summary

EXAMPLES = 13


def main(out: Path) -> None:
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Linear(12, 9), nn.Tanh(), nn.Linear(9, 3)
    )
    x = torch.randn(EXAMPLES, 4)
    votes = torch.randint(0, 5, (EXAMPLES, 3)) + 1
    # Uneven on purpose, in number and in size: of two processes the first has 5 + 2 + 1 examples, the other 5.
    batches = list(zip(x.split([5, 5, 2, 1]), votes.split([5, 5, 2, 1]), strict=True))
    if accelerator.num_processes == 2:
        model = accelerator.prepare(model)
        assert isinstance(model, DistributedDataParallel)
        batches = [batches[0], *batches[2:]] if accelerator.is_main_process else [batches[1]]
    # What was drawn before must not matter: the processes' generators are never the same in a training.
    torch.manual_seed(100 + accelerator.process_index)
    found = hessian_summary(model, batches, seed=3, reduce=lambda t: accelerator.reduce(t, "sum"))
    result = {"world_size": accelerator.num_processes, "summary": asdict(found)}
    (out / f"found{accelerator.process_index}.json").write_text(json.dumps(result))
    accelerator.end_training()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
