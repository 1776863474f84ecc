"""Texts of a batch, with their tokens in order."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from paper.models.sentences import sentence_classifier
from sparsedl_fl.audit import Sentence, Verdict, audit_model, recover_text
from sparsedl_fl.audit.text import reach_of_text

VOCABULARY = 60


def texts(*shape, seed=0):
    return torch.randint(1, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def sent(model, ids, labels=None):
    labels = torch.arange(len(ids)) % 4 if labels is None else labels
    parameters = dict(model.named_parameters())
    found = torch.autograd.grad(cross_entropy(model(ids), labels), list(parameters.values()))
    return dict(zip(parameters, found, strict=True))


@pytest.fixture(scope="module")
def model():
    return sentence_classifier(VOCABULARY, width=64, random_state=0)


def test_a_text_comes_back_with_its_label_and_the_replay(model):
    ids = texts(1, 10)
    found = recover_text(model, sent(model, ids, torch.tensor([2])), torch.ones_like(ids))
    assert found.is_complete
    assert [(one.tokens, one.label) for one in found.sentences] == [(tuple(ids[0].tolist()), 2)]
    assert found.replay.is_match
    assert found.sentences[0].p_value < 1e-3


def test_texts_of_a_batch_are_told_apart(model):
    ids = texts(2, 6)
    found = recover_text(model, sent(model, ids), torch.ones_like(ids))
    assert {one.tokens for one in found.sentences} == {tuple(row) for row in ids.tolist()}
    assert found.is_complete


def test_without_the_embedding_s_gradient_the_vocabulary_is_tried(model):
    ids, gradients = texts(1, 8, seed=1), sent(model, texts(1, 8, seed=1))
    gradients.pop("words.weight")
    found = recover_text(model, gradients, torch.ones_like(ids))
    assert [one.tokens for one in found.sentences] == [tuple(ids[0].tolist())]
    assert found.pairs.n_candidates == VOCABULARY * 8


def test_texts_longer_than_the_example(model):
    ids = texts(1, 14, seed=2)
    found = recover_text(model, sent(model, ids), torch.ones((1, 4), dtype=torch.long))
    assert [one.tokens for one in found.sentences] == [tuple(ids[0].tolist())]


def test_a_model_of_texts_of_one_length(model):
    class OneLength(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, ids):
            assert ids.shape[1] in (1, 6)
            return self.inner(ids.expand(-1, 6))

    ids, one_length = texts(2, 6), OneLength()
    ids[1, 4:] = ids[0, 4:]  # fewer tokens at the last positions, where a shorter text might end
    found = recover_text(one_length, sent(one_length, ids), torch.ones_like(ids))
    assert {one.tokens for one in found.sentences} == {tuple(row) for row in ids.tolist()}


def test_a_batch_beyond_the_width_is_out_of_range(model):
    ids = texts(8, 12)
    found = recover_text(model, sent(model, ids), torch.ones_like(ids))
    assert found.n_certified == 0
    assert str(found).startswith("OUT OF RANGE")


def test_noise_certifies_nothing(model):
    ids = texts(1, 8)
    gradients = {name: part + 0.1 * torch.randn_like(part) for name, part in sent(model, ids).items()}
    assert recover_text(model, gradients, torch.ones_like(ids)).n_certified == 0


def test_an_audit_has_the_texts(model):
    ids = texts(1, 8)
    audit = audit_model(model, sent(model, ids), example=torch.ones_like(ids), layers=["blocks.0.query"])
    assert audit.verdict is Verdict.RECOVERED
    assert [one.tokens for one in audit.sentences] == [tuple(ids[0].tolist())]
    assert audit.replay.is_match
    hidden, shown = audit.to_dict()["text"], audit.to_dict(show_samples=True)["text"]
    assert hidden["sentences"][0]["tokens"] == []
    assert shown["sentences"][0]["tokens"] == ids[0].tolist()
    page = audit.to_html(show_samples=True, vocabulary={token: f"word{token}" for token in range(VOCABULARY)})
    assert " ".join(f"word{token}" for token in ids[0].tolist()) in page


def test_inspection_says_whether_the_order_shows(model):
    reach = reach_of_text(model, torch.ones((1, 8), dtype=torch.long))
    assert str(reach) == (
        "order of tokens: yes, up to 56 different tokens and positions in a batch, by layer 'blocks.0.query'"
    )
    assert reach_of_text(torch.nn.Linear(3, 2), torch.ones(1, 3)) is None


def test_an_example_that_is_no_text_is_an_error(model):
    with pytest.raises(ValueError, match="example must be token ids"):
        recover_text(model, sent(model, texts(1, 8)), torch.ones(1, 8))


def test_words_that_go_on_are_joined():
    assert Sentence((1, 2, 9)).in_words({1: "re", 2: "##cover"}) == "recover 9"
