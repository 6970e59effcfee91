"""``course bench widgets``: every explorer measured, what is sent counted, no browser no goal."""

from __future__ import annotations

import json

import ipywidgets as ipw
import pytest

from course.bench import browser
from course.bench import widgets as bench
from course.cli import main
from course.widgets import ChunkExplorer, ProbeExplorer, RowExplorer, Slider


@pytest.fixture
def two(monkeypatch):
    kinds = {"RowExplorer": RowExplorer, "ChunkExplorer": ChunkExplorer}
    monkeypatch.setattr(bench, "explorers", lambda: kinds)
    return kinds


def test_every_explorer_has_a_slider_to_move() -> None:
    kinds = bench.explorers()
    assert len(kinds) >= 12
    for kind in kinds.values():
        name = bench.moved(kind)
        assert isinstance(kind.controls[name], Slider)
        assert name not in kind.idle({n: c.value for n, c in kind.controls.items()})
    assert bench.moved(RowExplorer) == "temperature" and bench.moved(ProbeExplorer) == "head"


def test_what_is_sent_is_counted_and_the_counter_goes_again() -> None:
    usual = ipw.Widget._send
    explorer = RowExplorer()
    with bench.counted() as sent:
        explorer.set_values(temperature=2.0)
    assert ipw.Widget._send is usual
    assert sum(text.count("data:image/png") for text in sent) == 1
    assert sum(map(len, sent)) > 4 / 3 * 10_000


def test_every_goal_has_its_value_and_its_line(two, monkeypatch) -> None:
    hands = {name: {"rate": 20.0 + i, "delay": 0.05 * i} for i, name in enumerate(two)}
    monkeypatch.setattr(browser, "missing", lambda: None)
    monkeypatch.setattr(browser, "drag", lambda sliders: {name: hands[name] for name in sliders})
    found = bench.bench_widgets(repeats=1)
    assert found == json.loads(json.dumps(found))
    assert set(found["goals"]) == set(bench.GOALS) and set(found["kernel"]) == set(two)
    for one in found["kernel"].values():
        assert one["pictures"] == 1 and one["bytes"] > 20_000
        assert 0 < one["draw"] < one["move"] < 5
    assert found["goals"]["slowest_rate"]["value"] == 20.0
    assert found["goals"]["latest"]["value"] == 50.0
    text = bench.report(found)
    for label, _, _ in bench.GOALS.values():
        assert sum(line.startswith(label) for line in text.splitlines()) == 1
    assert "RowExplorer" in text and "20.0" in text and "not dragged" not in text


def test_without_a_browser_one_line_says_why(two, monkeypatch, capsys) -> None:
    monkeypatch.setattr(browser, "find_spec", lambda name: None if name == "playwright" else 1)
    assert browser.missing() == "playwright is not installed"
    monkeypatch.setattr(browser, "find_spec", lambda name: 1)
    monkeypatch.setattr(browser, "find_browser", lambda: None)
    assert browser.missing().startswith("no Chromium found")
    assert main(["bench", "widgets", "--repeats", "1"]) == 0
    said = capsys.readouterr().out
    assert "not dragged in a browser: no Chromium found" in said
    assert "pictures a second" not in said and "pictures sent a move" in said


def test_repeats_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="repeats: expected a whole number"):
        bench.bench_widgets(repeats=0)
