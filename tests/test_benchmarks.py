"""The benchmarks' frame, and each benchmark at a small scale: what it writes, never how long it takes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from allocations import allocate, allocate_beside_16, allocate_less_and_less

from benchmarks import labels, measure, table
from benchmarks.__main__ import main
from benchmarks.measure import MEMORY, Alternation, Row, alternate, growth, memory, peak_memory

ROOT = Path(__file__).parents[1]
FIELDS = {"name", "peer", "ratio", "unit", "target", "spread", "sizes", "seconds", "checked", "met", "versions"}
FIELDS |= {"machine"}


@pytest.fixture
def benchmarks(capfd):
    """`python -m benchmarks` within this process; returns its exit code and what it printed, also by new processes."""

    def run(*words: str | float | Path) -> tuple[int, str, str]:
        try:
            code = main([*map(str, words)])
        except SystemExit as end:
            code = end.code
        return code, *capfd.readouterr()

    return run


# The frame.


@pytest.mark.parametrize(
    "target, ratio, met",
    [
        (">= 20", 20.0, True),
        (">= 20", 19.99, False),
        ("<= 1.02", 1.02, True),
        ("<= 1.02", 1.03, False),
        (None, 1, None),
    ],
)
def test_a_row_knows_whether_it_meets_its_target(target, ratio, met):
    row = Row("a", "b", ratio, "times as fast", target)
    assert row.met is met
    assert row.as_json()["met"] is met


def test_a_target_of_another_form_is_an_error():
    with pytest.raises(KeyError):
        Row("a", "b", 1.0, "times as fast", "> 20").as_json()


def test_rows_keep_the_versions_of_the_peers():
    row = Row("a", "b", 1.0, "times as fast", packages=("scikit-learn",)).as_json()
    assert set(row) == FIELDS
    assert set(row["versions"]) == {"python", "hf_softlabel", "torch", "transformers", "numpy", "scikit-learn"}


def test_a_ratio_is_the_median_of_the_rounds_in_the_direction_of_its_unit():
    times = Alternation(ours=[1.0, 2.0, 4.0], theirs=[3.0, 4.0, 40.0])
    faster = times.row("a", "b", "times as fast", ">= 3")
    assert (faster.ratio, faster.spread, faster.met) == (3.0, (2.0, 10.0), True)
    assert faster.seconds == {"ours": 2.0, "peer": 4.0}
    longer = times.row("a", "b", "times as long")
    assert longer.ratio == pytest.approx(1 / 3) and longer.spread == (0.1, 0.5)
    with pytest.raises(KeyError):
        times.row("a", "b", "times as good")


def test_both_run_in_turn_and_begin_in_turn():
    order = []
    times = alternate(lambda: order.append("ours"), lambda: order.append("theirs"), rounds=3)
    assert order == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]
    assert len(times.ours) == len(times.theirs) == 3 and min(times.ours + times.theirs) >= 0


def test_growth_is_the_exponent_between_a_size_and_ten_times_it():
    made, now = [], [0.0]

    def work(n):
        made.append(n)
        return lambda: now.__setitem__(0, now[0] + n**2)

    row = growth("a", work, 30, rounds=2, clock=lambda: now[0])
    assert sorted(made) == [30, 300]
    assert row.ratio == pytest.approx(2) and row.spread == pytest.approx((2, 2))
    assert row.sizes == {"from": 30, "to": 300} and row.unit == "exponent of the growth" and row.met is None


def test_peak_memory_is_that_of_the_work_alone():
    assert 60 << 20 < peak_memory(allocate, 64) < 80 << 20


def test_memory_that_does_not_grow_is_fixed():
    row = memory("a", "b", allocate_less_and_less, 64, sizes={})
    assert row.ratio == 0 and row.sizes["fixed MB"] == pytest.approx(33.6, abs=4)


def test_the_table_of_memory_tells_what_grows_from_what_does_not():
    row = memory("a", "b", allocate_beside_16, 64, sizes={"examples": 64})
    # A MB for each example, and 16 for any number of them.
    assert row.unit == MEMORY and row.ratio == pytest.approx(1 << 20, rel=0.05)
    assert row.sizes["examples"] == 64 and row.sizes["fixed MB"] == pytest.approx(16.8, abs=4)


def test_one_round_has_no_spread():
    assert Alternation([2.0], [3.0]).row("a", "b", "times as fast").spread is None


def test_a_row_says_what_machine_ran_it():
    machine = Row("a", "b", 1.0, "times as fast").as_json()["machine"]
    assert machine["processor"] and machine["cores"] >= 1 and machine["load"] >= 0


def test_a_missing_peer_is_named_with_what_installs_it():
    with pytest.raises(
        ModuleNotFoundError, match=r"no_such_peer.*pip install --no-deps --requirement benchmarks/requirements.txt"
    ):
        measure.peer("no_such_peer")
    assert measure.peer("json") is json


def test_the_table_has_a_line_for_each_row_in_the_order_of_the_names(tmp_path):
    first = Row("labels", "lists", 1234.5, "times as fast", ">= 50", (1000.0, 2000.0), {"examples": 1000000})
    second = Row("batch", "step", 0.0123, "times as long", "<= 0.01", checked="equal")
    third = Row("memory", "bank", 2.05, "times as much")
    fourth = Row("store", "files", 3000.0, MEMORY, sizes={"images": 20_000})
    (tmp_path / "b.json").write_text(json.dumps([first.as_json()]))
    (tmp_path / "a.json").write_text(json.dumps([second.as_json(), fourth.as_json(), third.as_json()]))
    text = table.markdown(tmp_path, ("b", "a", "absent"))
    ratios, peaks = text.split("## Memory")
    lines = [line for line in ratios.splitlines() if line.startswith("| ")][1:]
    assert lines == [
        "| labels | lists | 1,234 times as fast (1,000 to 2,000) | >= 50 | met | examples 1,000,000 |  |",
        "| batch | step | 0.0123 times as long | <= 0.01 | **missed** |  | equal |",
        "| memory | bank | 2.05 times as much | reported |  |  |  |",
    ]
    assert [line for line in peaks.splitlines() if line.startswith("| ")] == [
        "| what | beyond | MB per million examples | sizes |",
        "| store | files | 3,000 | images 20,000 |",
    ]
    (tmp_path / "a.json").unlink()
    assert "## Memory" not in table.markdown(tmp_path, ("b", "a"))


def test_the_labels_benchmark_notices_wrong_labels():
    votes = labels.counts(50)
    for make in (labels.from_lists, labels.from_arrays, labels.from_permuted):
        first, sequences = (torch.as_tensor(x).long() for x in make(votes)())
        labels.check_voted_for(first, votes)
        labels.check_each_vote_once(sequences, votes)
        assert not torch.equal(sequences, sequences.sort(1).values), "not shuffled"
        row, wrong = (votes == 0).nonzero()[0].tolist()
        first[row] = sequences[row, 0] = wrong
        with pytest.raises(AssertionError, match="nobody voted for"):
            labels.check_voted_for(first, votes)
        with pytest.raises(AssertionError, match="each vote once"):
            labels.check_each_vote_once(sequences, votes)


# The command.


@pytest.mark.parametrize(
    "words, message",
    [(["nonsense"], "there is no benchmark 'nonsense'"), (["labels", "--scale", "0.01"], "give --output")],
)
def test_wrong_words_are_refused(benchmarks, words, message):
    code, _, said = benchmarks(*words)
    assert code == 2 and message in said


def old_results(folder: Path, name: str) -> Path:
    """The rows and the table of an earlier run."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps([Row("an old row", "b", 1.0, "times as fast").as_json()]))
    (folder / "README.md").write_text(table.markdown(folder, [name]))
    assert "an old row" in (folder / "README.md").read_text()
    return path


def test_a_crash_leaves_no_old_row_and_is_no_missed_target(benchmarks, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_SOFTLABEL_SOURCES", str(tmp_path / "absent"))
    path = old_results(tmp_path, "hessian")
    code, _, said = benchmarks("hessian", "--scale", 0.01, "--output", tmp_path)
    assert code == 2 and "set HF_SOFTLABEL_SOURCES" in said
    assert not path.exists() and "an old row" not in (tmp_path / "README.md").read_text()


def checked_rows(name: str, folder: Path) -> list[dict]:
    rows = json.loads((folder / f"{name}.json").read_text())
    for row in rows:
        assert set(row) == FIELDS and math.isfinite(row["ratio"])
        assert f"| {row['name']} | {row['peer']} |" in (folder / "README.md").read_text()
    return rows


def targets(rows: list[dict]) -> list[str]:
    return [row["target"] for row in rows if row["target"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, scale, expected",
    [
        ("scores", 0.002, [">= 10"]),
        ("imports", 0.1, ["<= 1.0", "<= 0.5"]),
        ("report", 0.01, []),
        ("grid", 0.05, [">= 1.6"]),
    ],
)
def test_a_benchmark_writes_its_rows(benchmarks, name, scale, expected, tmp_path):
    if name == "scores":
        pytest.importorskip("netcal", reason="netcal is no dependency: `make bench` installs it")
    code, _, said = benchmarks(name, "--scale", scale, "--output", tmp_path)
    assert code in (0, 1), said
    rows = checked_rows(name, tmp_path)
    assert targets(rows) == expected and any(row["seconds"] for row in rows)
    # A missed target, and only that, is exit code 1.
    assert code == any(row["met"] is False for row in rows)


@pytest.mark.slow
def test_several_benchmarks_make_one_table_and_one_that_crashes_stops_no_other(benchmarks, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_SOFTLABEL_SOURCES", str(tmp_path / "absent"))
    monkeypatch.chdir(ROOT)  # where new processes find the benchmarks
    path = old_results(tmp_path, "hessian")
    code, printed, _ = benchmarks("hessian", "knn", "labels", "--scale", 0.005, "--output", tmp_path)
    assert code == 2 and "hessian CRASHED" in printed and not path.exists()
    assert "2/3 knn" in printed and "3/3 labels" in printed
    assert targets(checked_rows("knn", tmp_path)) == [">= 1", ">= 1"]
    assert targets(checked_rows("labels", tmp_path)) == [">= 50", ">= 20", ">= 20", "<= 1.1"]
    text = (tmp_path / "README.md").read_text()
    assert text.index("| multipass labels") < text.index("| KNN scores") and "an old row" not in text
