"""Reflections with what the next layer sends back."""

import torch

from sparsedl_fl.search import SentBackReflection
from sparsedl_fl.search.columns_and_forward_pass import SampleCoordinates
from tests.sparsedl_fl.constraints.test_sent_back import problem_of


def run(batch_size, **settings):
    problem, columns = problem_of(batch_size)
    coordinates, generator = SampleCoordinates.of_problem(problem), torch.Generator().manual_seed(0)
    found = SentBackReflection(**settings).run(coordinates, problem.sent_back, 64, generator)
    return problem, columns, coordinates, found


def test_it_finds_several_columns_where_zeros_determine_none():
    problem, columns, _, found = run(33)
    nearest = (found.columns @ columns.T).abs().amax(dim=1)
    assert (nearest > 1 - 1e-9).sum() >= 3
    assert (nearest[problem.sent_back.proves(found)] > 1 - 1e-9).all()


def test_it_proposes_each_column_once():
    _, _, _, found = run(12)
    products = (found.columns @ found.columns.T).abs().fill_diagonal_(0)
    assert len(found.columns) > 1
    assert products.max() < 0.999


def test_known_columns_lead_to_others():
    problem, columns, coordinates, _ = run(12)
    known = coordinates.deflated_by(columns[:10])
    found = SentBackReflection().run(known, problem.sent_back, 64, torch.Generator().manual_seed(0))
    assert set((found.columns @ columns.T).abs().argmax(dim=1).tolist()) >= {10, 11}
