"""Every command and every piece of Python in the documentation."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from hf_softlabel import load_votes
from hf_softlabel.cli import _parser, main
from hf_softlabel.cli_help import (
    CALIBRATE_EXAMPLES,
    DATA_EXAMPLES,
    DIAGNOSE_EXAMPLES,
    DOCTOR_EXAMPLES,
    EXAMPLES,
    GRID_EXAMPLES,
    PUSH_EXAMPLES,
    REPORT_EXAMPLES,
    SCORE_EXAMPLES,
    TRAIN_HELP,
)
from hf_softlabel.config import parse_recipe, recipe_keys
from hf_softlabel.data.synthetic import load_synthetic
from hf_softlabel.experiments.grid import read_grid

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "recipes/README.md")


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.S)


def commands() -> list[str]:
    lines = [line for page in PAGES for block in blocks(page, "bash") for line in block.splitlines()]
    helps = (
        EXAMPLES,
        TRAIN_HELP,
        DOCTOR_EXAMPLES,
        GRID_EXAMPLES,
        REPORT_EXAMPLES,
        PUSH_EXAMPLES,
        DATA_EXAMPLES,
        SCORE_EXAMPLES,
        CALIBRATE_EXAMPLES,
        DIAGNOSE_EXAMPLES,
    )
    lines += [line.strip() for line in "".join(helps).splitlines()]
    return sorted({line for line in lines if re.match(r"(OMP_NUM_THREADS=1 )?(hf-softlabel|accelerate) ", line)})


@pytest.mark.parametrize("command", [c for c in commands() if re.search(" (train|doctor) .*(?<!mine).yaml", c)])
def test_every_training_command_names_a_recipe_and_options_that_exist(command, monkeypatch):
    monkeypatch.chdir(ROOT)
    words = shlex.split(command)
    for path in (word for word in words if word.startswith("recipes/")):
        assert Path(path).is_file(), path
    rest = words[words.index("train" if "train" in words else "doctor") + 1 :]
    if rest[0].endswith("grid.yaml"):
        assert read_grid(rest[0], rest[1:]).cells
    else:
        parse_recipe(rest[0], rest[1:])


@pytest.mark.parametrize("command", [c for c in commands() if "hf-softlabel grid " in c])
def test_every_grid_command_names_a_grid_and_options_that_exist(command, monkeypatch):
    monkeypatch.chdir(ROOT)
    parser, _ = _parser()
    options, words = parser.parse_known_args(shlex.split(command)[1:])
    assert read_grid(options.grid, words).cells


@pytest.mark.parametrize("command", [c for c in commands() if not re.search(" train | grid |yaml", c)])
def test_every_other_command_has_options_that_exist(command):
    parser, _ = _parser()
    assert parser.parse_args(shlex.split(command)[1:]).command == shlex.split(command)[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A working folder with the files that the documentation speaks of."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "recipes").symlink_to(ROOT / "recipes")
    texts = load_synthetic("text", size=30)["text"][:]
    rows = [f"{text},{i % 3 + 1},{i % 2},{i % 5}" for i, text in enumerate(texts)]
    (folder / "votes.csv").write_text("\n".join(["question,against,unsure,for", *rows]) + "\n")
    answers = [f"{text},{'yes' if (i + who) % 3 else 'no'},{who}" for i, text in enumerate(texts) for who in range(3)]
    share = [(0.2 + i % 5 / 10, 0.3, 0.5 - i % 5 / 10) for i in range(len(texts))]
    lines = [f"{i},{a:.1f},{b:.1f},{c:.1f}" for i, (a, b, c) in enumerate(share)]
    (folder / "a.csv").write_text("\n".join(["example_id,against,unsure,for", *lines]) + "\n")
    logits = [json.dumps({"example_id": i, "logits": [a, c, b]}) for i, (a, b, c) in enumerate(share)]
    (folder / "b.jsonl").write_text("\n".join(logits) + "\n")
    (folder / "annotations.csv").write_text("\n".join(["tweet,answer,who", *answers]) + "\n")
    return folder


def test_the_readme_from_top_to_bottom(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    ten_lines, tables, doctor, scores, metrics, diagnostics, reload = blocks("README.md", "python")
    assert len([line for line in ten_lines.splitlines() if line.strip()]) <= 11
    names: dict = {}
    exec(ten_lines, names)
    assert re.search(r"0\.\d+ [0-9a-f]{16}", capsys.readouterr().out)
    exec(tables, {"load_votes": load_votes})
    exec(doctor, names)
    assert "wrong" not in capsys.readouterr().out
    bash = [c for block in blocks("README.md", "bash") for c in block.splitlines()]
    for command in (c for c in bash if "sls.yaml" in c):
        assert main([*shlex.split(command)[1:], "--disable_tqdm", "true"]) == 0
    exec(reload, {})
    exec(scores, {})
    assert Path("reliability.png").exists() and Path("reliability.pdf").exists()
    capsys.readouterr()
    exec(metrics, {})
    assert re.fullmatch(r"\{'soft_nll': 0\.9\d+, 'entropy_correlation': -?1\.0\}\n", capsys.readouterr().out)
    exec(diagnostics, {})
    shown = "hf-softlabel (score|calibrate|diagnose|doctor|data (show|build))"
    for command in (c for c in bash if re.match(shown, c)):
        assert main(shlex.split(command)[1:]) == 0, command
    assert "cover" in capsys.readouterr().out and Path("diagnostics/diagnostics.json").exists()
    assert Path("figures/validation_curves.png").exists() and Path("calibration/scaling.json").exists()


@pytest.mark.slow
def test_the_grid_and_the_report_of_the_readme(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    grid, report = next(block for block in blocks("README.md", "bash") if " grid " in block).splitlines()
    # Two of its six epochs: what is shown is the same.
    assert main([*shlex.split(grid)[1:], "--num_train_epochs", "2"]) == 0
    assert len(list(Path("runs/synthetic-grid").glob("*/DONE"))) == 6
    assert main(shlex.split(report)[1:]) == 0
    assert "with 2 paired seeds none could" in capsys.readouterr().out
    page = Path("runs/synthetic-grid/report/report.html").read_text()
    assert "Majority vote" in page and "data:image/png" in page


def test_the_recipe_for_ones_own_votes_trains(folder, monkeypatch):
    monkeypatch.chdir(folder)
    text, diagnostics, grid = blocks("recipes/README.md", "yaml")
    Path("sweep.yaml").write_text(grid)
    assert len(read_grid("sweep.yaml").cells) == 18
    assert yaml.safe_load(diagnostics).keys() <= set(recipe_keys())
    values = yaml.safe_load(text)
    assert values["model"] == "FacebookAI/roberta-base"  # out of reach here
    Path("mine.yaml").write_text(text.replace(values["model"], "synthetic-bert"))
    assert main(["train", "mine.yaml", "--num_train_epochs", "1", "--disable_tqdm", "true"]) == 0
    assert Path("runs/mine-seed42/DONE").exists()
    long = {**yaml.safe_load(Path("mine.yaml").read_text()), "sources": "annotations.csv", "text_columns": ["tweet"]}
    del long["label_columns"]
    long |= {"item_column": "tweet", "label_column": "answer", "annotator_column": "who", "output_dir": "runs/long"}
    Path("long.yaml").write_text(yaml.safe_dump(long))
    assert main(["train", "long.yaml", "--num_train_epochs", "1", "--disable_tqdm", "true"]) == 0


def test_the_tables_name_every_recipe_folder_and_delivery():
    from hf_softlabel.delivery import DELIVERIES

    readme, recipes = ((ROOT / page).read_text() for page in PAGES)
    for delivery in DELIVERIES:
        assert f"| `{delivery}` |" in readme
    for path in (ROOT / "recipes").iterdir():
        if path.is_dir():
            assert f"| `{path.name}/` |" in recipes
