"""The probe explorer: its numbers by direct calls of probes, its sentence, a reader's own model."""

from __future__ import annotations

import gc
import itertools
import math
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import ipywidgets as ipw
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from course import pretrained, probes
from course.config import TransformerConfig
from course.tasks.winograd import (
    ADJECTIVE,
    CROSSED,
    CROSSER,
    DECIDING,
    LEAKY,
    REPAIRED,
    TEMPLATE,
    Winograd,
)
from course.transformer import Transformer
from course.widgets import ProbeExplorer
from course.widgets.probe import (
    CHANGES,
    HEAD,
    LOOK,
    LOOK_ALL,
    LOOKS,
    NOTHING,
    NOUNS,
    OTHER_KIND,
    PATCH_NOUNS,
    PATCH_OTHER_KIND,
    PATCHES,
    PLACES,
    read_prompt,
)
from tests.exploring import any_values, compute_of, handle, part, picture, spoken

ANY, compute = any_values(ProbeExplorer), compute_of(ProbeExplorer)
CONTROLS = ProbeExplorer.controls
START = {name: control.value for name, control in CONTROLS.items()}
MODEL, TASK, _ = pretrained.load("winograd")
MODEL = MODEL.double()
LONG = Winograd(
    nouns=["mmmmmmmmmmmmmmmmmm", "$anti$-establishment", *(f"noun-{i}" for i in range(14))],
    of_crosser=("unenthusiastic", "b1", "b2", "b3"),
    of_crossed=("impassable-looking", "c1", "c2", "c3"),
)


def text(x: str, y: str, a: str) -> str:
    return f"the {x} did not cross the {y} because it was too {a}, so the"


def slots(sentence: str) -> tuple[str, str, str]:
    words = sentence.replace(",", " ,").split()
    return words[CROSSER], words[CROSSED], words[ADJECTIVE]


def swapped(values: dict) -> str:
    """The other sentence, by words."""
    x, y, a = slots(values["sentence"])
    if values["change"] in (NOUNS, PATCH_NOUNS):
        return text(y, x, a)
    kinds = (TASK.of_crosser, TASK.of_crossed)
    own, other = kinds if a in kinds[0] else kinds[::-1]
    return text(x, y, other[own.index(a)])


def directly(values: dict) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities [V] before and after, and the map after, by calls of probes alone."""
    change, block, head = values["change"], values["block"] - 1, values["head"] - 1
    row, column = PLACES.index(values["position"]), PLACES.index(values["source"])
    tokens = TASK.encode(values["sentence"])[None]
    other = TASK.encode(swapped(values))[None]
    around = nullcontext()
    if change == HEAD:
        around = probes.ablate_head(MODEL, block, head)
    elif change == LOOK:
        around = probes.ablate_look(MODEL, block, row, column, head=head)
    elif change == LOOK_ALL:
        around = probes.ablate_look(MODEL, block, row, column)
    elif change in PATCHES:
        stream = probes.run(MODEL, other).streams[values["after"]]
        around = probes.patch(MODEL, stream, after=values["after"], position=row)
    with torch.no_grad():
        before = MODEL(tokens)[0, -1].softmax(-1)
        with around:
            read = other if change in (NOUNS, OTHER_KIND) else tokens
            after = MODEL(read)[0, -1].softmax(-1)
            maps = MODEL.attention_maps(read)
    return before.numpy(), after.numpy(), maps[block][0, head].numpy()


def same(arrays: dict, values: dict) -> None:
    before, after, weights = directly(values)
    assert np.abs(arrays["weights"] - weights).max() < 1e-12
    x, y, _ = slots(values["sentence"])
    assert arrays["nouns"] == [x, y]
    for got, p in ((arrays["before"], before), (arrays["after"], after)):
        two = [p[TASK.vocabulary.index(noun)] for noun in (x, y)]
        assert np.allclose(got, [*two, 1 - sum(two)], atol=1e-12)
    assert arrays["answer"] == [TASK.vocabulary[p.argmax()] for p in (before, after)]
    assert arrays["sure"] == pytest.approx([before.max(), after.max()], abs=1e-12)


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_at_every_block_and_head_is_the_call_of_probes(change: str) -> None:
    for block, head in itertools.product(CONTROLS["block"].grid(), CONTROLS["head"].grid()):
        values = START | {"change": change, "block": block, "head": head}
        same(compute(**values), values)


@pytest.mark.parametrize("change", [*LOOKS, *PATCHES])
def test_every_position_and_every_end_of_a_look_and_a_patch(change: str) -> None:
    ends = (PLACES[0], PLACES[CROSSER], PLACES[DECIDING])
    for position, other in itertools.product(PLACES, ends if change in LOOKS else (0, 1, 2)):
        values = START | {"change": change, "position": position}
        values |= {"source" if change in LOOKS else "after": other}
        same(compute(**values), values)


@given(ANY)
@settings(max_examples=40, deadline=None)
def test_any_state_is_the_call_of_probes(values) -> None:
    same(compute(**values), values)


def test_the_changes_differ_from_each_other_and_from_nothing() -> None:
    """Or the tests above would compare one thing with itself."""
    seen = {}
    for change in CHANGES:
        arrays = compute(change=change, block=2, head=2, after=1, source=PLACES[DECIDING - 1])
        seen[change] = tuple(np.round(arrays["after"], 6))
    assert len(set(seen.values())) == len(CHANGES)


def test_all_heads_of_a_look_are_more_than_one() -> None:
    sentence = text("dog", "river", "tired")
    one, every = (compute(sentence=sentence, change=c)["after"] for c in LOOKS)
    assert np.abs(one - every).max() > 0.05


def test_a_patch_after_the_last_block_is_the_other_sentence_whole() -> None:
    """By construction: a control."""
    for patch, swap in ((PATCH_NOUNS, NOUNS), (PATCH_OTHER_KIND, OTHER_KIND)):
        patched = compute(change=patch, after=2, position=PLACES[DECIDING])
        assert np.allclose(patched["after"], compute(change=swap)["after"], atol=1e-12)
        elsewhere = compute(change=patch, after=2, position=PLACES[ADJECTIVE])
        assert np.array_equal(elsewhere["after"], elsewhere["before"])
    word = compute(change=PATCH_OTHER_KIND, after=0, position=PLACES[ADJECTIVE])
    assert np.allclose(word["after"], compute(change=OTHER_KIND)["after"], atol=1e-12)
    assert word["answer"] == ["dog", "river"]


def test_a_look_ahead_has_no_weight_and_taking_it_away_does_nothing() -> None:
    ahead = compute(change=LOOK_ALL, position=PLACES[3], source=PLACES[9])
    assert ahead["given"] == 0 and np.array_equal(ahead["before"], ahead["after"])
    here = compute(change=LOOK, block=2, head=4)
    assert here["given"] == compute(block=2, head=4)["weights"][DECIDING, CROSSER] > 0.9
    assert here["weights"][DECIDING, CROSSER] == 0


def test_the_controls_are_those_of_the_stored_model_and_task() -> None:
    maps = MODEL.attention_maps(TASK.encode(START["sentence"])[None])
    assert CONTROLS["block"].grid() == list(range(1, len(maps) + 1))
    assert CONTROLS["head"].grid() == list(range(1, maps[0].shape[1] + 1))
    assert CONTROLS["after"].grid() == list(range(len(maps) + 1))
    assert TASK == REPAIRED and TASK.vocabulary == REPAIRED.vocabulary
    assert len(PLACES) == DECIDING + 1 and PLACES[DECIDING] == "14 the (decides)"
    for place, word in enumerate(TEMPLATE[: DECIDING + 1]):
        slot = {"X": "first noun", "Y": "second noun", "A": "adjective"}.get(word, word)
        assert PLACES[place].startswith(f"{place} {slot}")


def test_the_model_is_loaded_by_the_first_sentence_not_by_the_import() -> None:
    code = (
        "import course.widgets.probe as p\nload, calls = p.load, []\n"
        "p.load = lambda name: calls.append(name) or load(name)\nprint(calls)\n"
        "explorer = p.ProbeExplorer()\nexplorer.set_values(head=2)\nprint(calls)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["[]", "['winograd']"]


# ---------------------------------------------------------------------------------- the sentence


def lists(explorer: ProbeExplorer) -> list[str]:
    labels = ("First noun", "Second noun", "Adjective")
    return [part(explorer, ipw.Dropdown, label).value for label in labels]


def test_the_lists_write_the_sentence_and_the_sentence_sets_the_lists() -> None:
    explorer = ProbeExplorer()
    field = part(explorer, ipw.Text, "Sentence")
    assert lists(explorer) == ["dog", "river", "tired"]
    for label, word in (("First noun", "river"), ("Second noun", "cat"), ("Adjective", "steep")):
        part(explorer, ipw.Dropdown, label).value = word
    assert field.value == explorer.values["sentence"] == text("river", "cat", "steep")
    assert explorer.arrays["words"] == text("river", "cat", "steep").replace(",", " ,").split()
    field.value = "The fox did not cross the hill because it was too weak , so the hill waited ."
    assert lists(explorer) == ["fox", "hill", "weak"]
    assert field.value == explorer.values["sentence"] == text("fox", "hill", "weak")
    assert spoken(explorer, "alert") is None
    explorer.reset()
    assert field.value == START["sentence"] and lists(explorer) == ["dog", "river", "tired"]


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (text("unicorn", "dog", "tired"), "as word 2, after “the”, got 'unicorn', which is not in"),
        (text("dog", "cat", "tired").replace("cross", "see"), "expected 'cross' as word 5, after"),
        (text("dog", "cat", "river"), "as word 12, after “the dog did not cross the cat because"),
        ("the dog did not", "expected 15 words, up to “so the” (a comma is a word), got 4"),
        ("", "expected 1 to 18 words, got none"),
        ("<b>$x$</b>", "expected 'the' as word 1, at the beginning, got '<b>$x$</b>'"),
    ],
)
def test_a_sentence_that_cannot_be_is_kept_for_mending(typed: str, says: str) -> None:
    explorer = ProbeExplorer()
    seen, said = picture(explorer), explorer.status
    field = part(explorer, ipw.Text, "Sentence")
    field.value = typed
    alert = spoken(explorer, "alert")
    assert alert.startswith("Sentence: expected ") and says in alert
    assert alert.endswith(f"The picture stays at “{START['sentence']}”.")
    assert field.value == typed
    assert (picture(explorer) == seen).all() and explorer.status == said
    assert explorer.values["sentence"] == START["sentence"]
    field.value = text("dog", "cat", "wet")  # mended
    assert spoken(explorer, "alert") is None and explorer.values["sentence"] == field.value


def test_another_control_brings_back_the_sentence_that_holds() -> None:
    explorer = ProbeExplorer()
    field = part(explorer, ipw.Text, "Sentence")
    field.value = "nonsense"
    handle(explorer, CONTROLS["head"]).value = 2
    assert field.value == START["sentence"] and spoken(explorer, "alert") is None


def test_one_noun_cannot_stand_in_both_slots() -> None:
    explorer = ProbeExplorer()
    part(explorer, ipw.Dropdown, "First noun").value = "river"
    alert = spoken(explorer, "alert")
    assert "as word 7, after “the river did not cross the”, got 'river'." in alert
    assert explorer.arrays["nouns"] == ["dog", "river"]
    part(explorer, ipw.Dropdown, "Second noun").value = "cat"
    assert explorer.arrays["nouns"] == ["river", "cat"] and spoken(explorer, "alert") is None


def test_a_prompt_reads_back_as_itself() -> None:
    for sentence in CONTROLS["sentence"].grid():
        assert read_prompt(TASK, sentence) == sentence == text(*slots(sentence))


# ----------------------------------------------------------------------- what is idle, said, drawn


def test_a_control_is_idle_where_it_does_nothing_and_nowhere_else() -> None:
    ends = {"position": PLACES, "source": PLACES, "after": (0, 1, 2)}
    for change in CHANGES:
        idle = set(ProbeExplorer.idle(START | {"change": change}))
        for name, places in ends.items():
            # A position tells where one patches after block 1 or looks at the noun.
            moved = {tuple(compute(change=change, **{name: place})["after"]) for place in places}
            assert (len(moved) == 1) == (name in idle), (change, name)


def test_the_status_says_what_is_seen_and_what_changes() -> None:
    explorer = ProbeExplorer(block=2, head=4)
    row = explorer.arrays["weights"][DECIDING]
    assert row.argmax() == CROSSER
    seen = f"Block 2, head 4 puts {100 * row.max():.0f} % of the deciding row on “dog” (1)."
    p = explorer.arrays["before"][0]
    assert explorer.status == f"{seen} The answer is “dog” ({100 * p:.0f} %, right)."
    explorer.set_values(change=PATCH_OTHER_KIND)
    row, p = explorer.arrays["weights"][DECIDING], explorer.arrays["after"][1]
    assert explorer.status == (
        f"Block 2, head 4 puts {100 * row.max():.0f} % of the deciding row on "
        f"“{explorer.arrays['words'][row.argmax()]}” ({row.argmax()}). The answer is “dog” "
        "(99 %, right); with the patch at 14 after block 1 from the sentence with the adjective "
        f"swapped it changes from “dog” to “river” ({100 * p:.0f} %)."
    )
    explorer.set_values(change=NOUNS)
    assert explorer.status.endswith(
        "; with the nouns swapped it changes from “dog” to “river” (99 %, right)."
    )
    explorer.set_values(change=OTHER_KIND)
    assert "; with “wet” as the adjective it changes from “dog” to “river”" in explorer.status
    explorer.set_values(change=HEAD)
    stays = f"; without this head it stays “dog” ({100 * explorer.arrays['sure'][1]:.0f} %)."
    assert explorer.status.endswith(stays)
    explorer.set_values(change=LOOK)
    given = 100 * explorer.arrays["given"]
    assert f"without the look from 14 to 1 in this head ({given:.0f} % of row 14" in explorer.status
    explorer.set_values(change=LOOK_ALL)
    assert "without the look from 14 to 1 in all heads of the block (" in explorer.status


def test_a_wrong_answer_is_called_wrong() -> None:
    untrained = Transformer(MODEL.config, seed=3)
    said = [
        ProbeExplorer(untrained, TASK, sentence=text("dog", "cat", a)).status
        for a in ("tired", "wet")
    ]
    assert any(", wrong)." in status for status in said)
    for status, a in zip(said, ("tired", "wet"), strict=True):
        right = "dog" if a == "tired" else "cat"
        assert (", right)" in status) == (f"The answer is “{right}”" in status)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"change": NOUNS, "block": 1, "head": 4},
        {"change": HEAD, "head": 3},
        {"change": LOOK, "position": PLACES[11], "source": PLACES[6]},
        {"change": PATCH_OTHER_KIND, "position": PLACES[8], "after": 0},
        {"change": PATCH_NOUNS, "sentence": text("hill", "fox", "wide"), "block": 1},
    ],
)
def test_what_is_drawn_are_the_numbers_of_the_probes(values) -> None:
    explorer = ProbeExplorer()
    explorer.set_values(**values)
    values = explorer.values
    before, after, weights = directly(values)
    axes, _, bars = explorer.figure.axes
    shown = axes.images[0].get_array()
    assert (np.ma.getmaskarray(shown) == np.triu(np.ones((15, 15)), 1)).all()  # the future is grey
    assert np.allclose(shown.filled(0), np.tril(weights), atol=1e-12)
    written = [cell.get_text() for cell in axes.texts]
    assert [float(x or 0) for x in written] == np.round(100 * weights[DECIDING]).tolist()
    deciding, touched = axes.patches
    assert (deciding.get_xy(), deciding.get_width(), deciding.get_height()) == ((-0.5, 13.5), 15, 1)
    change = values["change"]
    row, column = PLACES.index(values["position"]), PLACES.index(values["source"])
    assert touched.get_visible() == (change in (HEAD, *LOOKS, *PATCHES))
    middle = touched.get_x() + touched.get_width() / 2, touched.get_y() + touched.get_height() / 2
    if change in PATCHES:
        assert middle == pytest.approx((7, row)) and touched.get_height() == pytest.approx(1.2)
    elif change in LOOKS:
        assert middle == (column, row) and touched.get_width() == touched.get_height() == 1
    elif change == HEAD:
        assert middle == (7, 7) and touched.get_width() == touched.get_height() == 15
    x, y, _ = slots(values["sentence"])
    assert [t.get_text() for t in bars.get_yticklabels()] == [x, y, "any other"]
    for container, p, turn in zip(bars.containers, (before, after), (0, 1), strict=True):
        two = [p[TASK.vocabulary.index(noun)] for noun in (x, y)]
        widths = [bar.get_width() for bar in container]
        assert np.allclose(widths, [*two, 1 - sum(two)], atol=1e-12)
        visible = {bar.get_visible() for bar in container}
        assert visible == {turn == 0 or change != NOTHING}
    ticks = [t.get_text() for t in axes.get_yticklabels()]
    read = swapped(values) if change in (NOUNS, OTHER_KIND) else values["sentence"]
    words = read.replace(",", " ,").split()
    assert ticks == [f"{word} {place}" for place, word in enumerate(words)]
    right = [t.get_text() for t in bars.texts if "✓" in t.get_text() and t.get_visible()]
    assert len(right) == (1 if change == NOTHING else 2)


def test_what_is_written_beside_a_bar() -> None:
    explorer = ProbeExplorer(change=OTHER_KIND)
    bars = explorer.figure.axes[2]
    beside = {(t.get_position()[1], t.get_text()) for t in bars.texts if "%" in t.get_text()}
    texts_of = {round(y, 2): words for y, words in beside}
    assert texts_of[-0.17].endswith("✓") and texts_of[1.17].endswith("✓")  # dog; then river
    assert not texts_of[0.17].endswith("✓") and not texts_of[0.83].endswith("✓")
    for part_of, shift in (("before", -0.17), ("after", 0.17)):
        for place, p in enumerate(explorer.arrays[part_of]):
            words = texts_of[round(place + shift, 2)]
            if p < 0.005:
                assert words.startswith("<1 %")
            elif p >= 0.995:
                assert words.startswith(">99 %")
            else:
                assert words.startswith(f"{100 * p:.0f} %")


def test_a_bar_alone_stands_at_its_label_and_two_stand_round_it() -> None:
    explorer = ProbeExplorer()
    bars = explorer.figure.axes[2]

    def middles(turn: int) -> list[float]:
        return [bar.get_y() + bar.get_height() / 2 for bar in bars.containers[turn]]

    assert middles(0) == pytest.approx([0, 1, 2])
    explorer.set_values(change=HEAD)
    assert np.add(middles(0), middles(1)) == pytest.approx([0, 2, 4])
    assert np.all(np.less(middles(0), middles(1)))


def test_words_in_the_picture_are_large_enough_inside_it_and_apart() -> None:
    model = Transformer(MODEL.config)
    for explorer in (ProbeExplorer(), ProbeExplorer(model, LONG)):
        for change in (NOTHING, PATCH_NOUNS):
            explorer.set_values(change=change)
            explorer.figure.draw_without_rendering()
            whole, boxes = explorer.figure.bbox, []
            for axes in explorer.figure.axes:
                ticks = [t for side in (axes.xaxis, axes.yaxis) for t in side.get_ticklabels()]
                names = (axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label)
                for words in (*axes.texts, *ticks, *names):
                    if words.get_text() and words.get_visible():
                        assert words.get_fontsize() >= 8
                        box = words.get_window_extent()
                        assert whole.x0 <= box.x0 and box.x1 <= whole.x1, words.get_text()
                        assert whole.y0 <= box.y0 and box.y1 <= whole.y1, words.get_text()
                        boxes.append((words.get_text(), box))
            for (one, a), (two, b) in itertools.combinations(boxes, 2):
                across, down = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
                assert across <= 1 or down <= 4, (one, two)
    assert explorer.size[0] * 96 <= 810  # a page of 800 pixels shows it nearly whole


# ------------------------------------------------------------------------------ a reader's model


def own(mixer: str = "softmax", task: Winograd = TASK, **changes) -> Transformer:
    sizes = dict(vocab_size=len(task), E=16, L=1, H=2, hidden=8, max_length=18)
    return Transformer(TransformerConfig(mixer=mixer, **sizes | changes), seed=2)


def test_a_readers_own_model_in_one_line_is_left_as_it_was() -> None:
    task = Winograd(
        nouns=("ship", "whale", "rock", "ice"), of_crosser=("old",), of_crossed=("hard",)
    )
    model = own(task=task, L=3, H=5, E=20).train()
    before = {name: p.clone() for name, p in model.state_dict().items()}
    explorer = ProbeExplorer(model, task, change=PATCH_NOUNS, after=3, block=3, head=5)
    assert part(explorer, ipw.Dropdown, "First noun").options == task.nouns
    assert handle(explorer, explorer.controls["block"]).max == 3
    assert handle(explorer, explorer.controls["head"]).max == 5
    explorer.set_values(sentence=text("ice", "rock", "hard"))
    tokens = task.encode(text("rock", "ice", "hard"))[None]
    with torch.no_grad():
        p = model.eval()(tokens)[0, -1].softmax(-1)
    wanted = [p[task.vocabulary.index(noun)].item() for noun in ("ice", "rock")]
    assert explorer.arrays["after"][:2] == pytest.approx(wanted, abs=1e-6)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]) and value.dtype == torch.float32
    assert not set(vars(model)) & {"forward", "embed", "decode"}
    with pytest.raises(ValueError, match="Sentence: expected .* as word 2"):
        explorer.set_values(sentence=START["sentence"])
    assert ProbeExplorer.controls is CONTROLS  # the stored model's are as they were
    assert ProbeExplorer().values == START


def test_a_model_and_a_task_that_do_not_belong_together() -> None:
    with pytest.raises(ValueError, match="task: expected one of 36 words, .* got 52"):
        ProbeExplorer(MODEL, LEAKY)
    for given_ in ((MODEL,), (None, TASK), (TASK, MODEL)):
        with pytest.raises(
            ValueError, match="model, task: expected a Transformer and the Winograd"
        ):
            ProbeExplorer(*given_)


@pytest.mark.parametrize(
    ("mixer", "task", "left_out"),
    [
        ("softmax", TASK, ()),
        ("softmax", LEAKY, (NOUNS, PATCH_NOUNS)),
        ("mean", TASK, (HEAD,)),
        ("conv", TASK, (HEAD, *LOOKS)),
        (("conv", "softmax"), TASK, ()),
        (("conv", "mean"), LEAKY, (NOUNS, PATCH_NOUNS, HEAD)),
    ],
)
def test_what_a_model_or_a_task_does_not_have_is_no_choice(mixer, task, left_out) -> None:
    L = 1 if isinstance(mixer, str) else len(mixer)
    explorer = ProbeExplorer(own(mixer, task, L=L), task)
    change = part(explorer, ipw.Dropdown, "Change")
    assert change.options == tuple(x for x in CHANGES if x not in left_out)
    explorer.set_values(block=L)
    for choice in change.options:
        change.value = choice
        assert spoken(explorer, "alert") is None and explorer.values["change"] == choice
    assert ProbeExplorer().controls["change"].options == CHANGES


def test_what_one_block_does_not_have_is_said_in_words() -> None:
    explorer = ProbeExplorer(own(("mean", "softmax"), L=2), TASK, block=1)
    part(explorer, ipw.Dropdown, "Change").value = HEAD
    assert spoken(explorer, "alert") == (
        "block: expected a mixer with heads, got MeanMixer. It stays at “nothing”."
    )


def test_no_copy_is_taken_inside_an_intervention() -> None:
    model = own()
    with (
        probes.ablate_position(model, 3, after=1),
        pytest.raises(RuntimeError, match="copy: expected a model outside of interventions"),
    ):
        ProbeExplorer(model, TASK)
    ProbeExplorer(model, TASK)


def test_a_model_that_has_no_answer_is_refused() -> None:
    for broken in (math.nan, math.inf):
        model = own()
        with torch.no_grad():
            model.output.weight[3, 2] = broken
        with pytest.raises(ValueError, match="model: expected finite logits, got nan or inf"):
            ProbeExplorer(model, TASK)


def test_explorers_in_several_threads_do_not_meet() -> None:
    """They share the stored model, which an intervention changes for a while."""
    changes = [HEAD, LOOK, PATCH_OTHER_KIND, NOTHING] * 25
    alone = {change: compute(change=change) for change in changes}
    every = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda change: compute(change=change), changes))
    finally:
        sys.setswitchinterval(every)
    for change, arrays in zip(changes, found, strict=True):
        for name in ("before", "after", "weights"):
            assert np.array_equal(arrays[name], alone[change][name]), (change, name)


def test_weights_below_zero_are_drawn_around_zero() -> None:
    explorer = ProbeExplorer(own("delta"), TASK)
    assert explorer.arrays["weights"].min() < 0
    image = explorer.figure.axes[0].images[0]
    assert image.get_clim() == (-1, 1) and image.get_cmap().name == "RdBu_r"
    plain = ProbeExplorer().figure.axes[0].images[0]
    assert plain.get_clim() == (0, 1) and plain.get_cmap().name == "cividis"


def test_a_closed_explorer_frees_its_copy_of_the_model() -> None:
    explorer = ProbeExplorer(own(), TASK)
    copy = weakref.ref(explorer.compute.args[0].model)
    explorer.close()
    gc.collect()
    assert copy() is None


def test_the_alt_text_has_the_numbers_drawn() -> None:
    explorer = ProbeExplorer(change=PATCH_OTHER_KIND)
    alt = explorer.alt(explorer.values, explorer.arrays)
    assert f"“{START['sentence']}”" in alt and explorer.status in alt
    p = explorer.arrays["after"]
    assert p[0] < 0.005 and 0.99 < p[1] < 0.995 and p[2] < 0.005
    assert f"after the change under 1 %, {100 * p[1]:.0f} % and under 1 %" in alt
    explorer.set_values(change=NOTHING)
    assert "after the change" not in explorer.alt(explorer.values, explorer.arrays)
