"""Run by test_diagnostics_processes.py in one process and in two: all callbacks of one model on 13 examples."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from hf_softlabel import SoftLabelConfig, VotesTrainer, load_model
from hf_softlabel.callbacks.diagnostics import HessianCallback, OODCallback, UncertaintyCallback
from hf_softlabel.data.synthetic import TONES, load_synthetic
from hf_softlabel.diagnostics.ood import OODSettings


def main(out: Path) -> None:
    data = load_synthetic("text", size=60)
    model, tokenizer = load_model("synthetic-bert", TONES, task="text")
    args = SoftLabelConfig(
        output_dir=str(out), use_cpu=True, per_device_eval_batch_size=3, report_to="none", disable_tqdm=True
    )
    trainer = VotesTrainer(
        model=model,
        args=args,
        train_dataset=data.select(range(20)),
        eval_dataset=data.select(range(20, 33)),
        processing_class=tokenizer,
    )
    outside = {"rest": trainer._prepare(data.select(range(33, 60)), tokenizer, "rest")}
    found = {
        "world_size": args.world_size,
        "uncertainty": UncertaintyCallback(trainer, slice_share=0.3).measure(),
        "hessian": HessianCallback(trainer, rtol=0.1, slice_share=0.3, max_hvps=60).measure(),
        "ood": OODCallback(trainer, outside, settings=OODSettings(knn_neighbours=3)).measure(),
    }
    (out / f"found-{args.process_index}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
