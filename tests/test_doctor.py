"""`hf-softlabel doctor` as a user runs it: on recipes, grids and tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from doctor_trainers import distributions

from hf_softlabel.cli import main
from hf_softlabel.doctor import examine_grid, examine_recipe

ROOT = Path(__file__).parents[1]
SYNTHETIC = sorted(path.name for path in (ROOT / "recipes/synthetic").glob("*.yaml") if path.name != "grid.yaml")


def test_a_streamed_recipe_is_not_wrong(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert examine_recipe("recipes/synthetic/text.yaml", ["--streaming", "true", "--max_steps", "9"]) == []


@pytest.mark.parametrize("recipe", SYNTHETIC)
def test_no_shipped_recipe_is_wrong(recipe, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert {finding.name for finding in examine_recipe(f"recipes/synthetic/{recipe}")} <= {"tied_votes"}


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ("chaosnli/soft.yaml", ["--model", "synthetic-bert", "--max_length", "32"]),
        ("chaosnli/multipass.yaml", ["--model", "synthetic-bert", "--max_length", "32", "--subset", "snli"]),
        ("popquorn/posterior_sls.yaml", ["--model", "synthetic-bert", "--max_length", "32"]),
        ("popquorn/soft.yaml", ["--model", "synthetic-bert", "--max_length", "32", "--eval_annotators", "0.5"]),
        ("cifar10h/sls.yaml", ["--width", "0.125", "--gradient_accumulation_steps", "2"]),
    ],
)
def test_no_recipe_on_real_votes_is_wrong(recipe, words, sources, monkeypatch):
    monkeypatch.chdir(ROOT)
    found = examine_recipe(f"recipes/{recipe}", words)
    assert {finding.name for finding in found} <= {"tied_votes"}


def doctor(capsys, *words) -> tuple[int, dict]:
    code = main(["doctor", *map(str, words), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_recipe_with_a_delivery_that_needs_counts(tmp_path, texts, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [
        {"text": row["text"], "votes": p} for row, p in zip(texts["train"], distributions(texts["train"]), strict=True)
    ]
    Path("votes.jsonl").write_text("\n".join(map(json.dumps, rows)))
    Path("mine.yaml").write_text("dataset: table\nsources: votes.jsonl\nmodel: synthetic-bert\ndelivery: multipass\n")
    code, report = doctor(capsys, "mine.yaml")
    assert code == 1 and [f["name"] for f in report["findings"] if f["severity"] == "wrong"] == ["counts_missing"]
    for words in (["--delivery", "sls"], ["--votes_per_example", "5"]):
        code, report = doctor(capsys, "mine.yaml", *words)
        assert code == 0 and report["wrong"] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.yaml", "votes.jsonl"]  # nothing was written
    code, report = doctor(capsys, "votes.jsonl")
    assert code == 0 and "counts_missing" in [f["name"] for f in report["findings"]]


def test_a_table_with_bad_rows(tmp_path, capsys):
    path = tmp_path / "votes.csv"
    path.write_text("text,a,b\none,0.5,0.5\ntwo,0.5,0.7\nthree,1.0,0.0\nfour,0.9,0.0\n")
    code, report = doctor(capsys, path, "--label_columns", "a", "b")
    first, second = report["findings"]
    assert (code, report["wrong"], first["name"]) == (1, 1, "unnormalised_votes") and "rows 1, 3" in first["where"]
    assert (second["name"], second["severity"]) == ("tied_votes", "note") and "rows 0" in second["where"]
    path.write_text("text,a,b\none,2,3\ntwo,4,1\n")
    assert doctor(capsys, path, "--label_columns", "a", "b") == (0, {"target": str(path), "wrong": 0, "findings": []})


def test_ids_that_two_splits_share(tmp_path, capsys):
    folder = tmp_path / "data"
    folder.mkdir()
    for split, ids in (("train", [1, 2, 3]), ("test", [3, 4])):
        rows = [{"text": f"{split} {i}", "votes": [i, 1], "example_id": i} for i in ids]
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    code, report = doctor(capsys, folder)
    assert code == 1 and report["findings"][0]["name"] == "common_examples"
    assert "example_id 3" in report["findings"][0]["where"]


def test_what_cannot_be_read_has_exit_code_2(tmp_path, capsys):
    path = tmp_path / "votes.csv"
    path.write_text("text,a,b\none,2,3\n")
    twice = tmp_path / "twice.csv"
    twice.write_text("example_id,text,a,b\n1,one,2,3\n1,two,2,3\n")
    for words in (
        ["nothing.csv"],
        [str(twice), "--label_columns", "a", "b"],
        [str(path), "--label_columns", "a", "c"],
        ["nothing.yaml"],
        [str(tmp_path / "x/y.yaml")],
    ):
        assert main(["doctor", *words]) == 2
        captured = capsys.readouterr()
        assert captured.err.splitlines()[-1].startswith("hf-softlabel: error: ") and captured.out == ""
    assert main(["doctor", "--subset", "text", str(ROOT / "recipes/synthetic/sls.yaml")]) == 2
    assert "The recipe comes first" in capsys.readouterr().err


def test_a_person_can_read_it(tmp_path, capsys):
    path = tmp_path / "votes.csv"
    path.write_text("text,a,b\none,0.5,0.7\ntwo,0.4,0.6\n")
    assert main(["doctor", str(path), "--label_columns", "a", "b"]) == 1
    assert capsys.readouterr().out == (
        "wrong  1 of 2 rows of votes are neither counts nor a distribution: they sum to 1.2, so they would "
        "weigh more\n"
        "       or less than the others in the loss.\n"
        "       where: train split, rows 0\n"
        "       fix:   divide each row by its sum, or store counts as integers; remove rows without votes\n"
        f"{path}: 1 wrong, 0 notes.\n"
    )


def test_a_grid_is_examined_in_the_first_cell_of_each_recipe(tmp_path, texts, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [
        {"text": row["text"], "votes": p} for row, p in zip(texts["train"], distributions(texts["train"]), strict=True)
    ]
    Path("votes.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for name, delivery in (("one", "soft"), ("two", "multipass")):
        recipe = f"dataset: table\nsources: votes.jsonl\nmodel: synthetic-bert\ndelivery: {delivery}\n"
        Path(f"{name}.yaml").write_text(recipe)
    before = sorted(path.name for path in tmp_path.iterdir())
    grid = tmp_path / "grid.yml"
    grid.write_text("axes:\n  recipe: [one.yaml, two.yaml]\n  seed: [5, 6]\n")
    code, report = doctor(capsys, grid)
    examined = [f for f in report["findings"] if f["name"] == "grid"]
    assert [f["where"] for f in examined] == ["cell one-seed5", "cell two-seed5"]
    assert "A grid of 4 cells: one-seed5 was examined" in examined[0]["what"]
    (finding,) = [f for f in report["findings"] if f["severity"] == "wrong"]
    assert code == 1 and finding["name"] == "counts_missing" and finding["where"].startswith("cell two-seed5: train")
    # A delivery that needs counts is tried although the first cell can do without.
    grid.write_text("recipe: one.yaml\naxes:\n  delivery: [soft, sls, multipass]\n  seed: [5]\n")
    _, report = doctor(capsys, grid)
    assert [f["where"][:19] for f in report["findings"] if f["name"] == "counts_missing"] == ["cell multipass-seed"]
    grid.write_text("axes:\n  recipe: [one.yaml, two.yaml]\n  seed: [5, 6]\n")
    # Options are for every cell.
    code, report = doctor(capsys, grid, "--votes_per_example", "5")
    assert (code, report["wrong"]) == (0, 0)
    grid.unlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == before  # no run directory, and no grid.json


def test_the_shipped_grid_is_not_wrong(monkeypatch):
    monkeypatch.chdir(ROOT)
    found = examine_grid("recipes/synthetic/grid.yaml")
    assert {finding.name for finding in found} <= {"grid", "tied_votes"}


def test_a_grid_that_cannot_be_examined_says_in_which_cell(tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text("dataset: table\nsources: nothing.csv\nmodel: synthetic-bert\n")
    grid = tmp_path / "grid.yaml"
    grid.write_text("recipe: mine.yaml\naxes:\n  seed: [3]\n")
    assert main(["doctor", str(grid)]) == 2
    assert f"hf-softlabel: error: {grid}, cell seed3: " in capsys.readouterr().err
    grid.write_text("recipe: mine.yaml\naxes:\n  sead: [3]\n")
    assert main(["doctor", str(grid)]) == 2
    assert "unknown key 'sead' in axes" in capsys.readouterr().err
