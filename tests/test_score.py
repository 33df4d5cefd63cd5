"""`hf-softlabel score` as a user runs it: tables, JSON, references, intervals, differences, pictures and errors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from datasets import Dataset, DatasetDict
from scipy.special import softmax

from hf_softlabel.cli import main
from hf_softlabel.data.votes import votes_features
from hf_softlabel.metrics import references, score_votes
from hf_softlabel.metrics.summary import NAMES as SCORES
from hf_softlabel.scaling import Scaling

pytestmark = pytest.mark.filterwarnings("ignore::hf_softlabel.metrics.UndefinedScoreWarning")
NAMES = ["against", "unsure", "for"]
N = 60
IDS = np.arange(N) + 1000
RNG = np.random.default_rng(0)
VOTES = np.stack([RNG.multinomial(10, p) for p in RNG.dirichlet([0.7] * 3, N)])
LOGITS = (0.3 * VOTES + RNG.normal(size=(N, 3))).round(3)
WIDE = ["--votes", "votes.csv", "--label_columns", *NAMES]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A working folder with a wide table of votes, and predictions."""
    monkeypatch.chdir(tmp_path)
    texts = [f"text {i}" for i in IDS]
    wide = {"example_id": IDS, "uid": [f"u{i}" for i in IDS], "text": texts, **dict(zip(NAMES, VOTES.T, strict=True))}
    pd.DataFrame(wide).to_csv("votes.csv", index=False)
    write("a.jsonl", LOGITS)
    write("b.jsonl", LOGITS + np.random.default_rng(1).normal(scale=0.3, size=LOGITS.shape))
    return tmp_path


def write(name: str, values: np.ndarray, ids=IDS, column: str = "logits", id_column: str = "example_id") -> str:
    lines = [{id_column: i, column: row} for i, row in zip(np.asarray(ids).tolist(), values.tolist(), strict=True)]
    Path(name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return name


def score(capsys, *words, resamples: int = 0) -> dict:
    """What --json prints: nothing else on the stream, and no NaN, which is not JSON."""
    code = main(["score", "--json", "--resamples", str(resamples), *map(str, words)])
    out, err = capsys.readouterr()
    assert code == 0, err
    return json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def values(scored: dict, number: int = 0) -> dict[str, float]:
    return {name: entry["value"] for name, entry in scored["predictions"][number]["scores"].items()}


def table(capsys, *words, resamples: int = 0) -> str:
    assert main(["score", "--resamples", str(resamples), *map(str, words)]) == 0
    return capsys.readouterr().out


def refused(capsys, *words) -> str:
    """The one line of the error; nothing is on the other stream."""
    assert main(["score", "--resamples", "0", *map(str, words)]) == 2
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if line.startswith("hf-softlabel: error: ")]
    assert len(lines) == 1 and out == "" and "Traceback" not in err
    return lines[0].removeprefix("hf-softlabel: error: ")


def test_the_numbers_are_those_of_the_library(folder, capsys):
    found = score(capsys, "--predictions", "a.jsonl", *WIDE, "--ordinal")
    assert values(found) == pytest.approx(score_votes(LOGITS, VOTES, from_logits=True, ordinal=True), abs=1e-12)
    assert list(values(found)) == list(SCORES)
    assert (found["examples"], found["examples_with_votes"], found["classes"]) == (N, N, NAMES)
    assert found["hard_label"] == "majority" and found["differences"] == []
    for key, expected in references(VOTES, ordinal=True).items():
        defined = {name: value for name, value in expected.items() if not np.isnan(value)}
        assert {k: v for k, v in found["references"][key].items() if v is not None} == pytest.approx(defined)
    assert found["references"]["uniform"]["entropy_correlation"] is None and "train_mean" not in found["references"]
    assert "wasserstein" not in values(score(capsys, "--predictions", "a.jsonl", *WIDE))


def test_any_form_and_any_order_of_rows_and_classes_gives_the_same_scores(folder, capsys):
    expected = values(score(capsys, "--predictions", "a.jsonl", *WIDE))
    q, order = softmax(LOGITS, axis=1), np.random.default_rng(2).permutation(N)
    other = [2, 0, 1]
    frame = pd.DataFrame({"example_id": IDS, **{f"prob_{name}": q[:, k] for k, name in enumerate(NAMES)}})
    frame.iloc[order, [0, 3, 1, 2]].to_csv("shuffled.csv", index=False)
    pipeline = [
        {"uid": f"u{i}", "scores": [{"label": NAMES[k], "score": row[k]} for k in np.argsort(-row)]}
        for i, row in zip(IDS[order], q[order], strict=True)
    ]
    pd.DataFrame(pipeline).to_parquet("pipeline.parquet")
    write("lists.jsonl", LOGITS[order][:, other], IDS[order])
    classes = ["--classes", *(NAMES[k] for k in other)]
    for words in (["shuffled.csv"], ["pipeline.parquet"], ["lists.jsonl", *classes]):
        assert values(score(capsys, "--predictions", *words, *WIDE)) == pytest.approx(expected, abs=1e-9), words
    assert values(score(capsys, "--predictions", "lists.jsonl", *WIDE)) != pytest.approx(expected, abs=1e-3)


def test_ids_of_integers_and_strings_meet(folder, capsys):
    expected = values(score(capsys, "--predictions", "a.jsonl", *WIDE))
    write("strings.jsonl", LOGITS[::-1], [str(i) for i in IDS[::-1]])
    assert values(score(capsys, "--predictions", "strings.jsonl", *WIDE)) == pytest.approx(expected)
    assert refused(capsys, "--predictions", write("f.jsonl", LOGITS, [f"{i}.0" for i in IDS]), *WIDE).startswith(
        "f.jsonl has predictions on 60 example(s) that votes.csv does not have: 1000.0, 1001.0"
    )
    huge = (2**63 - 1 - np.arange(N)).tolist()  # as floats they would all be one
    pd.DataFrame({"id": huge, **dict(zip(NAMES, VOTES.T, strict=True))}).to_csv("huge.csv", index=False)
    write("h.jsonl", LOGITS[::-1], huge[::-1], id_column="id")
    wide = ["--votes", "huge.csv", "--label_columns", *NAMES]
    assert values(score(capsys, "--predictions", "h.jsonl", *wide)) == pytest.approx(expected)
    pd.DataFrame({"id": IDS + 0.0, **dict(zip(NAMES, VOTES.T, strict=True))}).to_csv("float.csv", index=False)
    write("i.jsonl", LOGITS, id_column="id")
    message = refused(capsys, "--predictions", "i.jsonl", "--votes", "float.csv", "--label_columns", *NAMES)
    assert "float.csv: the ids must be integers or strings" in message


@pytest.mark.parametrize("kind", ["integers", "strings"])
def test_long_tables_by_their_items(folder, capsys, kind):
    items = IDS if kind == "integers" else np.array([f"tweet {i}" for i in IDS])
    long = [(items[i], NAMES[k]) for i in range(N) for k in range(3) for _ in range(VOTES[i, k])]
    pd.DataFrame(long, columns=["tweet", "answer"]).sample(frac=1, random_state=0).to_csv("long.csv", index=False)
    write("l.jsonl", LOGITS, items, id_column="tweet")
    words = ["--votes", "long.csv", "--item_column", "tweet", "--label_column", "answer", "--class_names", *NAMES]
    found = score(capsys, "--predictions", "l.jsonl", *words, "--id_column", "tweet")
    assert values(found) == pytest.approx(score_votes(LOGITS, VOTES, from_logits=True), abs=1e-12)


def test_votes_without_a_prediction_are_counted_and_said(folder, capsys):
    write("part.jsonl", LOGITS[:40], IDS[:40])
    found = score(capsys, "--predictions", "part.jsonl", *WIDE)
    assert (found["examples"], found["examples_with_votes"]) == (40, N)
    assert values(found) == pytest.approx(score_votes(LOGITS[:40], VOTES[:40], from_logits=True), abs=1e-12)
    head = table(capsys, "--predictions", "part.jsonl", *WIDE).splitlines()[0]
    assert head == (
        "40 examples (20 more have votes but no prediction), 3 classes, 10 votes each; "
        "hard label: majority of the votes"
    )


def test_the_table(folder, capsys):
    text = table(capsys, "--predictions", "a.jsonl", *WIDE, resamples=20)
    lines = text.splitlines()
    assert lines[0].endswith("; 95% intervals from 20 resamples of the examples")
    titles = "a.jsonl score 95% interval own votes uniform human half calibrated"
    assert " ".join(lines[2].split()) == titles
    cells = {line[:25].strip(): line[25:].split() for line in lines[3:21]}
    expected, compared = score_votes(LOGITS, VOTES, from_logits=True), references(VOTES)
    assert cells["soft NLL ↓"][0] == f"{expected['soft_nll']:.4f}"
    assert cells["soft NLL ↓"][3:] == [f"{compared[key]['soft_nll']:.4f}" for key in ("floor", "uniform", "human")]
    assert cells["accuracy ↑"][0] == f"{expected['accuracy']:.4f}" and "Brier uncertainty" in cells
    assert cells["entropy correlation ↑"][3:5] == ["1.0000", "-"]
    arrows = {name: ("↓" in line, "↑" in line) for name, line in zip(SCORES, lines[3:21], strict=False)}
    assert arrows["soft_nll"] == (True, False) and arrows["accuracy"] == (False, True)
    assert '"-" is undefined (entropy correlation: a constant prediction has none).' in text
    plain = table(capsys, "--predictions", "a.jsonl", *WIDE)
    assert "interval" not in plain and "[" not in plain


def test_temperature_divides_logits_and_sharpens_probabilities_alike(folder, capsys):
    expected = score_votes(LOGITS / 1.7, VOTES, from_logits=True)
    write("p.jsonl", softmax(LOGITS, axis=1), column="probabilities")
    for name in ("a.jsonl", "p.jsonl"):
        found = values(score(capsys, "--predictions", name, *WIDE, "--temperature", 1.7))
        assert found == pytest.approx(expected, abs=1e-9)
    both = score(capsys, "--predictions", "a.jsonl", "p.jsonl", *WIDE, "--temperature", 1.7, 1)
    assert values(both) == pytest.approx(expected, abs=1e-9)
    assert values(both, 1) == pytest.approx(score_votes(LOGITS, VOTES, from_logits=True), abs=1e-9)


def test_scaling_from_a_file_and_from_a_folder(folder, capsys):
    scaling = Scaling((0.5, 1.0, 2.0), (0.1, -0.3, 0.2), 10)
    Path("model").mkdir()
    scaling.save("model")
    expected = score_votes(scaling(LOGITS), VOTES, from_logits=True)
    for source in ("model", "model/scaling.json"):
        found = values(score(capsys, "--predictions", "a.jsonl", *WIDE, "--scaling", source))
        assert found == pytest.approx(expected, abs=1e-12)
    write("p.jsonl", softmax(LOGITS, axis=1), column="probabilities")
    assert "fitted on logits, but p.jsonl holds probabilities" in refused(
        capsys, "--predictions", "p.jsonl", *WIDE, "--scaling", "model"
    )
    assert "There is no file none.json" in refused(capsys, "--predictions", "a.jsonl", *WIDE, "--scaling", "none.json")


def split_dataset(folder: Path, columns: dict) -> str:
    """A saved data set of the splits `train` (the first 20 rows) and `test`."""
    whole = Dataset.from_dict(columns, features=votes_features(NAMES))
    rows = {"train": range(20), "test": range(20, N)}
    DatasetDict({name: whole.select(chosen) for name, chosen in rows.items()}).save_to_disk(folder / "data")
    return str(folder / "data")


def test_train_mean_from_the_train_split_or_another_table(folder, capsys):
    gold = VOTES.argmax(1)
    data = split_dataset(folder, {"votes": VOTES, "example_id": IDS, "label": gold})
    mean = (VOTES[:20] / 10).mean(0)
    expected = references(VOTES[20:], mean, gold[20:])["train_mean"]["soft_nll"]
    write("test.jsonl", LOGITS[20:], IDS[20:])
    for words, available in (([], N), (["--split", "test"], 40)):
        found = score(capsys, "--predictions", "test.jsonl", "--votes", data, *words)
        assert found["references"]["train_mean"]["soft_nll"] == pytest.approx(expected), words
        assert (found["examples"], found["examples_with_votes"]) == (40, available)
        assert found["hard_label"] == "gold"
    # Examples of the train split are scored too: its mean would know them.
    assert "train_mean" not in score(capsys, "--predictions", "a.jsonl", "--votes", data)["references"]
    assert "has no split 'dev', only train, test" in refused(
        capsys, "--predictions", "a.jsonl", "--votes", data, "--split", "dev"
    )
    assert "(test) does not have: 1000" in refused(
        capsys, "--predictions", "a.jsonl", "--votes", data, "--split", "test"
    )
    pd.read_csv("votes.csv").iloc[:20].to_csv("train.csv", index=False)
    found = score(capsys, "--predictions", "a.jsonl", *WIDE, "--train_votes", "train.csv")
    assert found["references"]["train_mean"]["soft_nll"] == pytest.approx(
        references(VOTES, mean)["train_mean"]["soft_nll"]
    )
    # Of a table with a train split, that alone is meant.
    found = score(capsys, "--predictions", "test.jsonl", "--votes", data, "--train_votes", data)
    assert found["references"]["train_mean"]["soft_nll"] == pytest.approx(expected)
    assert "train mean" in table(capsys, "--predictions", "test.jsonl", "--votes", data)


def run_directory(name: str, logits: np.ndarray, names: list[str], votes: np.ndarray = VOTES) -> Path:
    """What `hf-softlabel train` leaves, as far as scores need it."""
    run = Path(name)
    (run / "model").mkdir(parents=True)
    (run / "model" / "config.json").write_text(json.dumps({"id2label": dict(enumerate(names))}))
    columns = {"example_id": IDS, "logits": list(logits), "votes": list(votes), "label": votes.argmax(1)}
    pd.DataFrame(columns).to_parquet(run / "predictions.parquet")
    (run / "metrics.json").write_text(json.dumps({"train_mean": [0.6, 0.3, 0.1]}))
    line = {"soft_nll": 1.0, "kl": 0.5, "accuracy": 0.4, "entropy_correlation": None}
    (run / "history.jsonl").write_text("".join(json.dumps({"step": i, "epoch": i, **line}) + "\n" for i in (1, 2)))
    return run


def test_a_run_directory_holds_all_that_is_needed(folder, capsys):
    run_directory("run", LOGITS, NAMES)
    found = score(capsys, "--predictions", "run")
    assert values(found) == pytest.approx(score_votes(LOGITS, VOTES, VOTES.argmax(1), from_logits=True), abs=1e-12)
    assert found["hard_label"] == "gold" and found["classes"] == NAMES
    expected = references(VOTES, np.array([0.6, 0.3, 0.1]), VOTES.argmax(1))["train_mean"]["soft_nll"]
    assert found["references"]["train_mean"]["soft_nll"] == pytest.approx(expected)
    # Its model says in which order its classes are, and so is its train mean.
    order = [2, 0, 1]
    run_directory("turned", LOGITS[:, order], [NAMES[k] for k in order], VOTES[:, order])
    turned = score(capsys, "--predictions", "turned", *WIDE)
    assert values(turned)["soft_nll"] == pytest.approx(values(found)["soft_nll"])
    expected = references(VOTES, np.array([0.3, 0.1, 0.6]))["train_mean"]["soft_nll"]
    assert turned["references"]["train_mean"]["soft_nll"] == pytest.approx(expected)
    assert score(capsys, "--predictions", "turned")["classes"] == [NAMES[k] for k in order]
    assert "turned has the classes for, against, unsure, run against, unsure, for: say --votes" in refused(
        capsys, "--predictions", "run", "turned"
    )
    run_directory("german", LOGITS, ["dagegen", "unsicher", "dafür"])
    assert "german has the classes dagegen, unsicher, dafür, the votes against" in refused(
        capsys, "--predictions", "german", *WIDE
    )
    named = score(capsys, "--predictions", "german", *WIDE, "--classes", *NAMES)
    assert values(named)["soft_nll"] == pytest.approx(values(found)["soft_nll"])


def test_a_difference_is_the_second_minus_the_first_with_a_paired_interval(folder, capsys):
    # The bootstrap draws the same examples of both, so that rows in another order must be matched first.
    rows = np.random.default_rng(3).permutation(N)
    b = LOGITS + np.random.default_rng(1).normal(scale=0.3, size=LOGITS.shape)
    write("b.jsonl", b[rows], IDS[rows])
    found = score(capsys, "--predictions", "a.jsonl", "b.jsonl", *WIDE, resamples=200)
    (difference,) = found["differences"]
    assert (difference["name"], difference["minus"]) == ("b.jsonl", "a.jsonl")
    for name, entry in difference["scores"].items():
        assert entry["value"] == pytest.approx(values(found, 1)[name] - values(found)[name], abs=1e-12), name
    nll = [-(VOTES / 10 * (z - np.log(np.exp(z).sum(1, keepdims=True)))).sum(1) for z in (LOGITS, b)]
    low, high = difference["scores"]["soft_nll"]["interval"]
    error = (nll[1] - nll[0]).std() / N**0.5
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.25)
    ends = [found["predictions"][i]["scores"]["soft_nll"]["interval"] for i in (0, 1)]
    unpaired = np.hypot(*(end[1] - end[0] for end in ends))
    assert high - low < unpaired / 2
    text = table(capsys, "--predictions", "a.jsonl", "b.jsonl", *WIDE, resamples=20)
    assert "[1] a.jsonl\n[2] b.jsonl\n" in text and "\nb.jsonl - a.jsonl\n" in text


def test_the_same_predictions_differ_by_nothing_at_all(folder, capsys):
    Path("copy").mkdir()
    write("copy/a.jsonl", LOGITS)
    found = score(capsys, "--predictions", "a.jsonl", "copy/a.jsonl", *WIDE, resamples=20)
    for name, entry in found["differences"][0]["scores"].items():
        expected = {"value": 0.0} if name == "brier_miscalibration" else {"value": 0.0, "interval": [0.0, 0.0]}
        assert entry == expected, name
    text = table(capsys, "--predictions", "copy/a.jsonl", "a.jsonl", *WIDE, resamples=20)
    assert "a.jsonl - copy/a.jsonl" in text and "-0.0000" not in text
    assert " better\n" not in text and " worse\n" not in text


def test_a_difference_that_its_interval_settles_has_a_verdict(folder, capsys):
    write("wrong.jsonl", -LOGITS)
    # The uncertainty is a fact about the votes, the same in all but for rounding, which must not show as -0.
    pairs = [("a.jsonl", "wrong.jsonl"), ("wrong.jsonl", "a.jsonl"), ("b.jsonl", "a.jsonl"), ("a.jsonl", "b.jsonl")]
    for pair in pairs:
        assert "-0.0000" not in table(capsys, "--predictions", *pair, *WIDE, resamples=5)
    text = table(capsys, "--predictions", "a.jsonl", "wrong.jsonl", *WIDE, resamples=20).split("wrong.jsonl - a")[1]
    verdicts = {line[:25].strip(): line.split(" ")[-1] for line in text.splitlines()}
    assert verdicts["soft NLL ↓"] == verdicts["accuracy ↑"] == "worse"
    text = table(capsys, "--predictions", "wrong.jsonl", "a.jsonl", *WIDE, resamples=20).split("a.jsonl - wrong")[1]
    verdicts = {line[:25].strip(): line.split(" ")[-1] for line in text.splitlines()}
    assert verdicts["soft NLL ↓"] == verdicts["accuracy ↑"] == "better" != verdicts["Brier uncertainty"]


def test_probability_0_where_somebody_voted(folder, capsys, recwarn):
    q = softmax(LOGITS, axis=1)
    row = int(np.flatnonzero((VOTES > 0).all(1))[0])
    q[row] = [0.0, 0.4, 0.6]
    write("z.jsonl", q, column="probabilities")
    found = score(capsys, "--predictions", "z.jsonl", "a.jsonl", "z.jsonl", *WIDE, resamples=20)
    entry = found["predictions"][0]["scores"]["soft_nll"]
    assert entry["value"] is None and entry["interval"][1] is None and "probability 0" in entry["undefined"]
    less, same = (difference["scores"]["kl"] for difference in found["differences"])
    assert less["value"] is None and "probability 0" in less["undefined"]
    assert same["value"] is None and same["undefined"] == "infinite in both" and same["interval"] == [None, None]
    assert found["predictions"][0]["scores"]["soft_brier"].keys() == {"value", "interval"}
    text = table(capsys, "--predictions", "z.jsonl", "a.jsonl", "z.jsonl", *WIDE, resamples=20)
    cells = next(line for line in text.splitlines() if line.startswith("soft NLL")).split()
    assert cells[3] == "inf" and cells[5] == "inf]"
    assert '"inf": infinite, for a class that somebody voted for has probability 0.' in text
    assert '"-" is undefined (soft NLL: infinite in both).' in text
    scaled = values(score(capsys, "--predictions", "z.jsonl", *WIDE, "--temperature", 2))
    assert scaled["soft_nll"] is None and scaled["soft_brier"] is not None
    assert not [warning for warning in recwarn if warning.category is RuntimeWarning]


def test_distributions_have_no_human_half(folder, capsys):
    pd.DataFrame({"example_id": IDS, **dict(zip(NAMES, VOTES.T / 10, strict=True))}).to_csv("votes.csv", index=False)
    text = table(capsys, "--predictions", "a.jsonl", *WIDE)
    assert text.startswith("60 examples, 3 classes, distributions; ") and "calibrated" not in text
    assert text.splitlines()[2].split() == ["a.jsonl", "score", "own", "votes", "uniform"]


def test_pictures(folder, capsys):
    run_directory("run", LOGITS, NAMES)
    assert main(["score", "--predictions", "run", "--resamples", "0", "--plot", "one", "--json"]) == 0
    out, err = capsys.readouterr()
    json.loads(out)
    names = {"reliability", "reliability_smooth", "entropy_histogram", "examples", "validation_curves"}
    files = {path.name for path in Path("one").iterdir()}
    assert files == {f"{name}.{kind}" for name in names | {"entropy_scatter"} for kind in ("png", "pdf")}
    assert "12 pictures in one" in err and all(path.stat().st_size > 1000 for path in Path("one").iterdir())
    assert main(["score", "--predictions", "a.jsonl", "b.jsonl", *WIDE, "--resamples", "0", "--plot", "two"]) == 0
    stems = {path.stem for path in Path("two").iterdir()}
    assert stems == names - {"validation_curves"} | {"entropy_scatter_1", "entropy_scatter_2"}
    capsys.readouterr()
    assert "--plot votes.csv is a file" in refused(capsys, "--predictions", "run", "--plot", "votes.csv")
