"""What `hf-softlabel` and its sub-commands say of themselves."""

DESCRIPTION = "Learn from annotator votes: train, compare and measure."
EXAMPLES = """examples:
  hf-softlabel demo
  hf-softlabel train recipes/cifar10h/multipass.yaml --seed 3 --num_train_epochs 5
  accelerate launch --num_processes 4 -m hf_softlabel train recipes/cifar10h/multipass.yaml
  hf-softlabel doctor recipes/cifar10h/multipass.yaml
  hf-softlabel grid recipes/synthetic/grid.yaml --jobs 2
  hf-softlabel report runs/synthetic-grid
  hf-softlabel score --predictions preds.jsonl --votes chaosnli --subset mnli
"""
SCORE_DESCRIPTION = """Score predictions that any program made against annotators' votes. Beside each score stand its
references: the votes themselves (the entropy floor), a uniform prediction, the mean of the training votes when given,
one half of the annotators against the other (the human ceiling), and a 95% bootstrap interval. Of several files
on the same examples, the differences from the first have paired intervals."""
SCORE_EXAMPLES = """predictions are .jsonl, .parquet, .csv files or run directories. They have the examples' ids
(example_id, id or uid, or --id_column) and
  a list of numbers in a column `logits` or `probabilities`,
  what transformers.pipeline(..., top_k=None) returns: [{"label": ..., "score": ...}, ...],
  or a column per class, named by the class.

examples:
  hf-softlabel score --predictions runs/synthetic-sls-seed3
  hf-softlabel score --predictions preds.jsonl --votes chaosnli --subset mnli --id_column uid
  hf-softlabel score --predictions a.csv b.csv --votes votes.csv --label_columns against unsure for --plot figures
  hf-softlabel score --predictions preds.parquet --votes cifar10h --temperature 1.4 --json
"""
CALIBRATE_DESCRIPTION = """Fit temperature or vector scaling to votes (by soft NLL), and sets of classes that cover a
share of the annotators, on a calibration split that the model was not trained on. Writes scaling.json, for
`score --scaling`, and vote_coverage.json, for `score --vote_coverage`: sets of the predictions before any scaling."""
CALIBRATE_EXAMPLES = """examples:
  hf-softlabel calibrate --predictions calibration.jsonl --votes votes.parquet --output runs/mine/model
  hf-softlabel calibrate --predictions calibration.csv --votes chaosnli --subset snli --method vector --coverage 0.95
"""
DIAGNOSE_DESCRIPTION = """Measure finished runs: the Hessian's largest eigenvalue and trace (each with its error), OOD
detection, gradient variance under label sampling, and between runs linear CKA, the loss barrier with and without
re-estimated batch norm, and Grad-CAM stability, on examples that both held out. Adds to the runs' diagnostics.json."""
DIAGNOSE_EXAMPLES = """an OOD set is NAME=SOURCE[:SUBSET][#SPLIT]: a Hub id, a file or folder, or a data set of votes.

examples:
  hf-softlabel diagnose runs/synthetic-sls-seed3 --hessian_examples 200
  hf-softlabel diagnose runs/a runs/b --ood svhn=ufldl-stanford/svhn:cropped_digits cifar100=uoft-cs/cifar100
  hf-softlabel diagnose runs/nli --ood reviews=popquorn:politeness --ood_examples 1000 --no_hessian
"""
DOCTOR_DESCRIPTION = """Find the known traps before a training run does: votes that are dropped, a loss that is not the
soft cross-entropy or is scaled wrongly, an epoch that workers do not see, classes in another order, rows that are no
votes, missing counts, examples that are both trained on and held out, and fewer processes than asked for. A recipe is
tried for a batch or two on the CPU; nothing is written. Exit code 1 if anything is wrong, 2 if it cannot be read."""
DOCTOR_EXAMPLES = """For a recipe every key can be given as an option. For a `Trainer` of your own, in Python:
  for finding in hf_softlabel.examine_trainer(trainer): print(finding)

examples:
  hf-softlabel doctor recipes/synthetic/sls.yaml
  hf-softlabel doctor recipes/chaosnli/soft.yaml --subset snli --gradient_accumulation_steps 4
  hf-softlabel doctor recipes/synthetic/grid.yaml
  hf-softlabel doctor popquorn --subset offensiveness --json
  hf-softlabel doctor votes.csv --label_columns against unsure for
"""
GRID_DESCRIPTION = """Run every cell of a grid: a base recipe and axes (delivery, seed, votes_per_example, or any other
key). Several cells run at once and share out the machine's threads or GPUs. Cells that are done are skipped, cells
that were killed are started again and go on from their checkpoints, and a cell that fails does not stop the others: it
is reported at the end, with exit code 1. The same command goes on where an earlier one was stopped."""
GRID_EXAMPLES = """GRID.yaml holds
  recipe: ../cifar10h/small/soft.yaml      the base, relative to this file
  output_dir: runs/sweep                   default: runs/<folder>-<grid file>
  options: {num_train_epochs: 5}           for every cell; they win over the recipe
  axes: {delivery: [soft, sls], seed: [0, 1, 2]}
where axes may also be a list of such mappings (the cells of all of them), and have a list of recipes under `recipe`.
Every key of a recipe can be given as an option, which wins over all but the axes.

With --executor slurm the cells are jobs of one array, submitted through submitit; --jobs is how many run at once. A
cell that nears its time limit, or is preempted, is requeued and goes on from its checkpoint. --slurm takes timeout_min
(default: 240), cpus_per_task, gpus_per_node, mem_gb, and sbatch's own options as slurm_partition, slurm_account, ...

examples:
  hf-softlabel grid recipes/synthetic/grid.yaml --dry_run
  hf-softlabel grid recipes/synthetic/grid.yaml --jobs 2 --num_train_epochs 3
  hf-softlabel grid recipes/synthetic/grid.yaml --launcher "accelerate launch --num_processes 4"
  hf-softlabel grid recipes/synthetic/grid.yaml --executor slurm --slurm timeout_min=60 slurm_partition=gpu
"""
REPORT_DESCRIPTION = """Build a report from run directories alone, at any depth below RUNS_DIR: every table and figure
of both papers for which there are runs, ours beside the paper's figures, mean and SD over seeds, paired Wilcoxon tests
with Holm's correction, what this number of seeds can show at all, and a browser of the most ambiguous examples. Writes
report.html (one file that works without a network), report.md, tables/ (CSV, LaTeX, Markdown), figures/ (PNG, SVG) and
runs.csv. Cells of a grid that were not run are blank, and listed. An earlier report in the folder is replaced; what it
drew from predictions that are gone since is taken over, with a remark."""
REPORT_EXAMPLES = """examples:
  hf-softlabel report runs/paper-small-main
  hf-softlabel report runs --output_dir reports/all --title "Deliveries on CIFAR-10H"
  hf-softlabel report runs --wandb my-team/votes
"""
PUSH_DESCRIPTION = """Push a finished run to the Hub in one commit: the model, its tokenizer or image processor, the
fitted scaling and sets, metrics.json, and a card with the votes it was trained on, its scores with references and
intervals, a reliability diagram, how to use it, the data's licence and its limits. A new repository is private unless
--public is given. The run directory stays as it is."""
PUSH_EXAMPLES = """examples:
  hf-softlabel push runs/synthetic-sls-seed3 --repo my-name/textures
  hf-softlabel push runs/nli --repo my-team/nli-votes --public
"""
DATA_DESCRIPTION = """Data sets of votes, as the authors publish them or from any table. `build` writes one as Parquet,
with its classes' names, its splits and a data card, into a new folder. `show` prints what is in it: votes per example,
how much people disagree, and on which examples most. `push` publishes what `build` makes, or a built folder as it is,
in one commit; a new repository is private unless --public is given. load_votes("owner/name") reads it back."""
DATA_EXAMPLES = """Look at a data set's licence before you make it public: its card says what is known.

examples:
  hf-softlabel data show chaosnli --subset mnli --examples 10
  hf-softlabel data show votes.csv --label_columns against unsure for
  hf-softlabel data build popquorn --subset offensiveness --output_dir votes/offensiveness
  hf-softlabel data push cifar10h --repo my-name/cifar10h-votes
"""
TRAIN_HELP = """usage: hf-softlabel train RECIPE.yaml [--KEY VALUE ...] [--overwrite] [--keys]

Train the model of a recipe and write a run directory: config.yaml, metrics.json, history.jsonl, predictions.parquet,
model/, and DONE as the last. A run that was cut off goes on from its last whole checkpoint when it is started again.

RECIPE.yaml holds `key: value` lines. Every key can be given as an option, which wins over the recipe:
  --delivery NAME           soft, sls, multipass, deterministic_control, shuffled_sls, majority, label_smoothing,
                            mixup, posterior_sls
  --dataset NAME            cifar10h, chaosnli, popquorn, synthetic, table (with --subset, --sources)
  --votes_per_example K     train on K votes for each example, drawn from all
  --model NAME              resnet18, resnet34, or any Hub id or folder; --width for our ResNets
  --seed N                  split, subsample, initial weights, order of the data and label stream
  --output_dir DIR          default: runs/<folder>-<recipe>-seed<N>
  ... and every field of transformers.TrainingArguments.

  --overwrite               start anew where a run directory exists already
  --keys                    list every key with its default and meaning, and stop

examples:
  hf-softlabel train recipes/synthetic/sls.yaml
  hf-softlabel train recipes/cifar10h/small/multipass.yaml --seed 3 --num_train_epochs 5
  hf-softlabel train recipes/chaosnli/soft.yaml --sources ~/votes --votes_per_example 5
  accelerate launch --num_processes 4 -m hf_softlabel train recipes/cifar10h/multipass.yaml
"""
