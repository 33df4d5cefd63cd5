"""Pushes of [`VotesTrainer`]: what `Trainer` would push of a run, but with our card and nothing of this machine.

`Trainer` uploads its whole output directory, in which a run has its configuration, with the paths of the data, and a
pickle of all arguments.
"""

from __future__ import annotations

import json
import logging
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_hub import CommitInfo, CommitOperationAdd, HfApi
from transformers import PreTrainedModel, Trainer
from transformers.trainer_utils import HubStrategy, SaveStrategy
from transformers.utils import PushInProgress

from ..checkpoint import write_text_atomically
from ..data.errors import VotesError
from ..preparation import peft_types
from .data_facts import hub_id
from .push import (
    CARD_NAME,
    OWN_REPOSITORY,
    checkpoint_files,
    hub_errors,
    model_files,
    open_repository,
    own_repository,
    trouble,
)

logger = logging.getLogger(__name__)


class HubPushes(Trainer):
    """[`Trainer`] whose pushes hold the model's files and a card."""

    push_in_progress: PushInProgress | None = None

    def init_hf_repo(self, token: str | None = None) -> None:
        self._refuse_unloadable()
        if not self.is_world_process_zero():
            return
        args = self.args
        token = token or args.hub_token
        name = args.hub_model_id or Path(args.output_dir).absolute().name
        with hub_errors(name, token):
            consent = "set hub_private_repo: false to push to it"
            private = args.hub_private_repo is not False
            address, info = open_repository(HfApi(token=token), name, private, consent)
        there = {item.rfilename for item in info.siblings or ()} - {".gitattributes"}
        if there and own_repository(Path(args.output_dir)) != address.repo_id:
            raise VotesError(
                f"{address.repo_id} exists and holds files that this run has not pushed: set another hub_model_id, or "
                "train without push_to_hub and replace them with `hf-softlabel push RUN --overwrite`."
            )
        # A resumed run finds its own repository again.
        mark = Path(args.output_dir) / OWN_REPOSITORY
        mark.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomically(mark, json.dumps({"repository": address.repo_id}))
        self.hub_model_id, self.push_in_progress = address.repo_id, None

    def _refuse_unloadable(self) -> None:
        """Refuse what others could not load from the Hub."""
        model = self.accelerator.unwrap_model(self.model)
        if isinstance(model, peft_types()):
            base = model.active_peft_config.base_model_name_or_path
            if hub_id(base) is None:
                raise VotesError(
                    f"An adapter is pushed without its base model, and {base or 'this one'} is not on the Hub: push "
                    "the base first and load it from there, or push model.merge_and_unload()."
                )
        elif not isinstance(model, PreTrainedModel):
            raise VotesError("push_to_hub is for models of transformers: others could not load this one.")

    def _push_begins(self) -> None:
        if self.args.trackio_static_space_id is None:
            # trackio would make a Space of its own, which nobody has asked for.
            self.args.trackio_static_space_id = False
        self.callback_handler.on_push_begin(self.args, self.state, self.control)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Too early: `Trainer` calls it before a checkpoint is whole. See `push_checkpoint`."""

    def push_checkpoint(self, checkpoint: Path) -> None:
        """Push the model of a whole checkpoint while the training goes on, if `hub_strategy` says so.

        The checkpoint must not be removed before `_finish_current_push`.
        """
        args = self.args
        if not self.is_world_process_zero() or args.hub_strategy == HubStrategy.END:
            return
        self._push_begins()
        step = args.save_strategy == SaveStrategy.STEPS
        place = f"step {self.state.global_step}" if step else f"epoch {int(self.state.epoch)}"
        files = model_files(checkpoint)
        if args.hub_strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
            folder = "last-checkpoint" if args.hub_strategy == HubStrategy.CHECKPOINT else checkpoint.name
            files |= {f"{folder}/{name}": content for name, content in checkpoint_files(checkpoint).items()}
        job = self._commit(files, f"Training in progress, {place}", args.hub_token, args.hub_revision, future=True)
        self.push_in_progress = PushInProgress([job])

    def _finish_current_push(self) -> None:
        super()._finish_current_push()
        pushes, self.push_in_progress = self.push_in_progress, None
        for job in pushes.jobs if pushes is not None else ():
            if job.exception() is not None:
                # The training is worth more than this push, and the last one brings everything.
                logger.warning(trouble(self.hub_model_id, job.exception(), self.args.hub_token))

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
    ) -> CommitInfo | Any:
        """Push the model, its processor and a card with scores of the eval set. To be called on all processes.

        The repository is `hub_model_id`, private unless `hub_private_repo` is False. For a run of a recipe,
        `push_to_hub: true` and `hf-softlabel push` say more, since they know the data.
        """
        token = token or self.args.hub_token
        self._refuse_unloadable()
        self._push_begins()
        if self.hub_model_id is None:
            self.init_hf_repo(token)
        sets = self.eval_dataset
        held_out = next(iter(sets.values())) if isinstance(sets, dict) else sets
        prediction = None if held_out is None else self.predict(held_out, metric_key_prefix="eval")
        digest = self.ledger.digest()
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        files = model_files(Path(self.args.output_dir)) | self._card_files(prediction, digest)
        self._finish_current_push()
        with hub_errors(self.hub_model_id, token):
            return self._commit(files, commit_message, token, revision or self.args.hub_revision, not blocking)

    def _commit(
        self, files: dict[str, bytes | str], message: str | None, token: str | None, revision: str | None, future: bool
    ) -> CommitInfo | Any:
        operations = [CommitOperationAdd(name, content) for name, content in files.items()]
        return HfApi(token=token).create_commit(
            self.hub_model_id, operations, commit_message=message, revision=revision, run_as_future=future
        )

    def _card_files(self, prediction: Any, digest: str) -> dict[str, bytes]:
        """The card and its picture. `prediction` is of the held-out examples, if there are any."""
        from ..figures import reliability_diagram
        from ..figures.style import render
        from ..predictions import Predictions
        from ..score import Examples, score_files
        from .card import RELIABILITY_NAME, ModelFacts, task_of, write_card
        from .data_facts import data_facts

        model, args = self.accelerator.unwrap_model(self.model), self.args
        adapter = model.active_peft_config.peft_type.value if isinstance(model, peft_types()) else None
        architecture = type(model.get_base_model() if adapter else model).__name__
        names = [name for _, name in sorted(model.config.id2label.items())]
        origin = model.config.name_or_path
        config = {
            **args.to_dict(),
            "delivery": self.delivery.name,
            "dataset": "table",
            "model": origin or architecture,
            "from_scratch": not origin,
        }
        scored, picture = None, {}
        if prediction is not None:
            votes, ids, gold_label = prediction.label_ids
            logits = np.asarray(prediction.predictions, np.float64)
            own = Predictions("this model", ids, logits, True, "example_id", votes, gold_label)
            scored = score_files([own], Examples(votes, gold_label, names, len(votes), None), args.ordinal)
            diagram = reliability_diagram((self.delivery.name, logits, votes, True))
            picture = {RELIABILITY_NAME: render(diagram, "png")}
        facts = ModelFacts(
            repo_id=self.hub_model_id,
            config=config,
            metrics={
                "train_examples": None if self.streams or self.train_dataset is None else len(self.train_dataset),
                "epochs": self.state.epoch or 0,
                "seed": args.seed,
                "world_size": args.world_size,
                "ledger_digest": digest,
                "versions": {"hf_softlabel": version("hf_softlabel")},
                "model_hub_id": hub_id(origin),
            },
            scored=scored,
            names=names,
            task=task_of(architecture, self.text_columns),
            data=data_facts("table"),
            scaling=None,
            sets=None,
            code=adapter is None and "auto_map" in model.config.to_dict(),
            adapter=adapter,
        )
        return {**picture, CARD_NAME: write_card(facts).encode()}
