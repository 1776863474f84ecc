"""The judge catches what it is there for: planted false greens, wrong samples, labels and token ids."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sparsedl_fl.audit import Verdict
from tests.hostile.judge import judged, shown_tokens, standing_out
from tests.hostile.tables import is_wrong, written
from tests.hostile.truth import Truth, recorded

B, N = 8, 30


@pytest.fixture
def truth():
    fed = np.random.default_rng(0).standard_normal((B, N))
    labels = np.arange(B)
    return Truth([{"fc": fed}], 1, frozenset([3, 5, 7]), frozenset(labels.tolist()), labels)


def layer_of(inputs, certified=False, *, errors=1e-3, rank=B, largest=20, labels=-1):
    """Return a layer of an audit with these candidates."""
    k = len(inputs)
    batch = SimpleNamespace(
        inputs=inputs,
        certified=np.full(k, certified),
        errors=np.full(k, errors),
        labels=np.broadcast_to(labels, k),
    )
    inverter = SimpleNamespace(inputs_=inputs, batch_size_=rank)
    return SimpleNamespace(name="fc", batch=batch, inverter=inverter, row=SimpleNamespace(largest_batch=largest))


def result_of(layer, verdict=Verdict.NOT_RECOVERED, **found):
    return SimpleNamespace(layers=(layer,), verdict=verdict, reason="", **found)


def strangers():
    return np.random.default_rng(1).standard_normal((B, N))


def near(truth, n_near):
    """Return candidates of which some are a twentieth of the spread off a sample, and the others far away."""
    found = strangers()
    found[:n_near] = truth.runs[0]["fc"][:n_near] + 0.05 * np.random.default_rng(2).standard_normal((n_near, N))
    return found


def test_green_is_right_where_an_attack_in_range_has_nothing_in_its_hands(truth):
    found = judged(result_of(layer_of(strangers())), truth)
    assert found.is_green
    assert found.is_tried
    assert not found.is_false_green
    assert found.in_hand == 0


@pytest.mark.parametrize("n_near", [1, 3, 8])
def test_a_green_verdict_over_samples_in_hand_is_false(truth, n_near):
    found = judged(result_of(layer_of(near(truth, n_near))), truth)
    assert found.in_hand == n_near / B
    assert found.is_false_green


def test_candidates_count_wherever_they_are_kept(truth):
    layer = layer_of(near(truth, 2))
    layer.batch = None
    assert judged(result_of(layer), truth).in_hand == 2 / B


def test_one_candidate_near_to_the_mean_of_alike_samples_is_none_of_them(truth):
    fed = 100 + truth.runs[0]["fc"]
    truth.runs[0]["fc"] = fed
    assert judged(result_of(layer_of(fed.mean(axis=0, keepdims=True))), truth).in_hand == 0


def test_green_where_nothing_in_range_was_tried_is_false(truth):
    assert judged(result_of(layer_of(strangers(), largest=B - 1)), truth).is_false_green
    layer = layer_of(strangers())
    layer.inverter = layer.batch = None
    assert judged(result_of(layer), truth).is_false_green


def test_green_where_token_ids_are_plain_is_false(truth):
    grad = torch.zeros(10, 4)
    grad[[3, 7]] = 1e-9
    found = judged(result_of(layer_of(strangers())), truth, grad)
    assert found.n_tokens == 2
    assert found.is_false_green
    assert shown_tokens(grad + 1e-3, truth) == set()  # noise in every row shows none
    grad[[3, 7]] = 1.0
    assert standing_out(grad + 1e-3, truth) == {3, 7}


@pytest.mark.parametrize("verdict", [Verdict.OUT_OF_RANGE, Verdict.PARTLY, Verdict.RECOVERED])
def test_no_other_verdict_reassures(truth, verdict):
    assert not judged(result_of(layer_of(near(truth, 8)), verdict), truth).is_false_green


@pytest.mark.parametrize(("size", "n_wrong"), [(0.0, 0), (2e-3, 0), (1e-2, B)])
def test_certified_inputs_further_off_than_said_are_wrong(truth, size, n_wrong):
    off = size * np.sign(strangers())
    found = judged(result_of(layer_of(truth.runs[0]["fc"] + off, True), Verdict.RECOVERED), truth)
    assert found.n_certified == B
    assert found.n_wrong == n_wrong


def test_features_that_move_while_a_client_trains_come_back_as_a_mean(truth):
    first = truth.runs[0]["fc"]
    truth.runs.append({"fc": first + 0.2 * strangers()})
    for share, n_wrong in ((0.0, 0), (0.35, 0), (1.0, 0), (1.5, B)):
        found = first + share * (truth.runs[1]["fc"] - first)
        assert judged(result_of(layer_of(found, True), Verdict.RECOVERED), truth).n_wrong == n_wrong


def test_green_after_an_attack_on_fewer_inputs_than_there_are_is_weak(truth):
    found = judged(result_of(layer_of(strangers()[:1], rank=1)), truth)
    assert found.is_tried
    assert not found.is_whole
    assert "attacked for fewer inputs than there are" in written([record_of(found)])[0]


def test_an_input_of_a_layer_that_never_ran_is_wrong(truth):
    layer = layer_of(truth.runs[0]["fc"], True)
    layer.name = "other"
    assert judged(result_of(layer, Verdict.RECOVERED), truth).n_wrong == B


def test_labels_and_token_ids_that_no_record_has_are_wrong(truth):
    layer = layer_of(truth.runs[0]["fc"], True, labels=np.roll(np.arange(B), 1))
    assert judged(result_of(layer, Verdict.RECOVERED), truth).n_wrong_labels == B
    layer = layer_of(truth.runs[0]["fc"], True, labels=np.arange(B))
    found = judged(result_of(layer, Verdict.RECOVERED, tokens=(3, 4), labels_present={1: 2, 9: None}), truth)
    assert (found.n_wrong_labels, found.n_wrong_tokens, found.n_tokens_said) == (1, 1, 2)


def test_likely_candidates_unlike_every_sample_are_counted(truth):
    like = SimpleNamespace(layer="fc", values=2 * truth.runs[0]["fc"][3] + 1, correlation=0.99)
    unlike = SimpleNamespace(layer="fc", values=strangers()[0], correlation=0.99)
    found = judged(result_of(layer_of(strangers()), Verdict.PARTLY, likely=(like, unlike)), truth)
    assert (found.n_likely, found.n_unlike) == (2, 1)


def test_the_truth_holds_masks_of_dropout_and_attention_projections():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 50), torch.nn.Dropout(0.5), torch.nn.Linear(50, 2))
    truth = Truth()
    with recorded(model, truth):
        model(torch.ones(3, 6))
    assert 0.2 < np.mean(truth.fed("2")[0] == 0) < 0.8
    attention, truth = torch.nn.MultiheadAttention(4, 2), Truth()
    x = torch.randn(5, 3, 4)
    with recorded(attention, truth):
        attention(x, x, x)
    assert truth.fed("in_proj_")[0].shape == truth.fed("out_proj")[0].shape == (15, 4)


def record_of(found, **extra):
    parts = {"network": "a", "client": "b", "wire": "c", "refusal": "", "traceback": "", "seconds": 1.0}
    return parts | vars(found) | extra


def test_the_table_names_what_is_wrong(truth):
    good = record_of(judged(result_of(layer_of(strangers())), truth))
    assert written([good])[1]
    green = record_of(judged(result_of(layer_of(near(truth, 2))), truth))
    raised = record_of(judged(result_of(layer_of(strangers())), truth), traceback="...\nKeyError: 'fc'")
    text, is_right = written([good, green, raised])
    assert not is_right
    assert [is_wrong(record) for record in (good, green, raised)] == [False, True, True]
    assert "false green (25% and 0 token ids in hand)" in text
    assert "KeyError: 'fc'" in text
