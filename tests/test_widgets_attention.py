"""The explorer of attention: symmetry of one role, masks, any sentence, its words."""

from __future__ import annotations

import ipywidgets as ipw
import numpy as np
import pytest

from course.widgets import AttentionExplorer
from course.widgets.attention import CAUSAL, FREE, ONE_ROLE, TWO_ROLES, embed, fixed_normal
from tests.exploring import Marks, compute_of, page, part, spoken

attend = compute_of(AttentionExplorer)


HEADS = range(1, 5)


@pytest.mark.parametrize("head", HEADS)
def test_one_role_is_symmetric_to_the_bit_two_roles_are_not(head: int) -> None:
    scores = attend(head=head)["scores"]
    assert np.array_equal(scores, scores.T)
    two = attend(head=head, roles=TWO_ROLES)["scores"]
    assert np.abs(two - two.T).max() > 1


@pytest.mark.parametrize("head", HEADS)
def test_with_one_role_and_equal_lengths_every_word_likes_itself_best(head: int) -> None:
    equal = attend(head=head, equal=True)["scores"]
    assert (equal.argmax(1) == np.arange(10)).all()
    assert np.allclose(equal.diagonal(), 16 * 0.25)
    two = attend(head=head, equal=True, roles=TWO_ROLES)["scores"]
    assert (two.argmax(1) == np.arange(10)).sum() <= 4


def test_with_unequal_lengths_some_word_likes_another_better() -> None:
    selfish = [(attend(head=h)["scores"].argmax(1) == np.arange(10)).sum() for h in HEADS]
    assert min(selfish) < 10


@pytest.mark.parametrize("look", [CAUSAL, FREE])
@pytest.mark.parametrize("scale", [0.0, 0.25, 1.0])
def test_weights_are_the_softmax_of_the_visible_scores(look: str, scale: float) -> None:
    arrays = attend(look=look, scale=scale, roles=TWO_ROLES)
    scores, T = arrays["scores"], 10
    for t in range(T):
        seen = range(t + 1) if look == CAUSAL else range(T)
        e = np.exp([scores[t, i] - max(scores[t, j] for j in seen) for i in seen])
        assert np.allclose(arrays["weights"][t, : len(seen)], e / e.sum(), atol=1e-12)
        assert (arrays["weights"][t, len(seen) :] == 0).all()
        assert arrays["visible"][t].sum() == len(seen)


def test_the_mask_cuts_weights_never_scores_and_scale_zero_is_the_mean() -> None:
    assert np.array_equal(attend(look=CAUSAL)["scores"], attend(look=FREE)["scores"])
    mean = np.tri(10) / np.arange(1, 11)[:, None]
    assert np.allclose(attend(scale=0.0)["weights"], mean)


def test_a_word_is_its_spelling_wherever_it_stands() -> None:
    scores = attend(sentence="the dog saw The dog, again", roles=TWO_ROLES)["scores"]
    assert np.allclose(scores[0], scores[3]) and np.allclose(scores[:, 1], scores[:, 4])
    assert not np.allclose(scores[0], scores[1])


def test_vectors_are_normal_fixed_and_the_same_on_every_machine() -> None:
    x = fixed_normal("a large sample", 200, 100).numpy()
    assert abs(x.mean()) < 0.03 and abs(x.std() - 1) < 0.03
    assert fixed_normal("word cat", 2).tolist() == pytest.approx(
        PINNED, abs=1e-9
    )  # from SHA-3 alone: no generator whose stream could change
    lengths = embed(["my", "cat", "lay", "on", "the", "mat", "because", "it"]).norm(dim=-1)
    assert lengths.max() > 1.3 * lengths.min()


PINNED = [-0.2087083291, 0.9519567703]


@pytest.mark.parametrize(
    ("typed", "came"), [("word " * 200, "200"), ("w " * 41, "41"), ("", "none"), (" \t ", "none")]
)
def test_sentences_of_a_wrong_length_get_a_sentence(typed: str, came: str) -> None:
    explorer = AttentionExplorer()
    field = part(explorer, ipw.Text, "Sentence")
    kept = field.value
    field.value = typed
    assert spoken(explorer, "alert") == (
        f"Sentence: expected 1 to 40 words, got {came}. It stays at “{kept}”."
    )
    assert field.value == kept and explorer.values["sentence"] == kept


@pytest.mark.parametrize(
    "sentence",
    ["one", "$ $$ \\frac{", "<img src=x onerror=y> & “q”", "猫 💥 ñ", "w " * 40, "x" * 500],
)
def test_any_sentence_can_be_drawn(sentence: str) -> None:
    explorer = AttentionExplorer(sentence="a b")
    explorer.set_values(sentence=sentence)
    assert explorer.png().startswith(b"\x89PNG")
    assert spoken(explorer, "status") == explorer.status  # escaped once, not twice
    seen = Marks(page(explorer)).seen
    assert "onerror" not in {name for _, attributes in seen for name in attributes}


def test_the_status_counts_what_is_drawn() -> None:
    explorer = AttentionExplorer(roles=ONE_ROLE, equal=True)
    assert "differ by 0; 10 of 10 words score themselves highest" in explorer.status
    explorer.set_values(roles=TWO_ROLES)
    scores = explorer.arrays["scores"]
    assert f"by up to {np.abs(scores - scores.T).max():.2f}" in explorer.status
    best = explorer.arrays["weights"][-1]
    assert f"{best.max():.2f}, to" in explorer.status
