"""Which epoch's labels a trainer delivers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transformers import TrainerCallback

if TYPE_CHECKING:
    from ..trainer import VotesTrainer


class EpochCallback(TrainerCallback):
    """Tells the trainer which epoch has begun, on every process."""

    def __init__(self, trainer: VotesTrainer):
        self.trainer = trainer

    def on_epoch_begin(self, args, state, control, **kwargs):
        if self.trainer.streams:
            # Without a length `state.epoch` is the share of max_steps done, so the passes are counted instead.
            self.trainer.delivery_epoch += 1
            self.trainer.epoch_start = state.global_step - self.trainer.resumed_steps
            self.trainer.resumed_steps = 0
        else:
            self.trainer.delivery_epoch = int(state.epoch or 0)
        self.trainer.ledger.begin_epoch(self.trainer.delivery_epoch)
