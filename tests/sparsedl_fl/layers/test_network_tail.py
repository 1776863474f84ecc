"""The rest of the network: from the model, as a view, as a proof, and the labels it shows."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.activations import Identity
from sparsedl_fl.certify.constraint_criteria import BySubspace, ByTail, ByTailAndSubspaces
from sparsedl_fl.constraints import Stacked
from sparsedl_fl.constraints.problem import LayerProblem
from sparsedl_fl.layers.layer_gradient import RestOfNetwork
from sparsedl_fl.simulation import client_gradient

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

N, WIDTH, B = 60, 80, 10


def seeded(make, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def draw(b=B, n=N, seed=0, n_labels=10):
    generator = torch.Generator().manual_seed(seed)
    return 1.5 * torch.randn((b, n), generator=generator), torch.randint(n_labels, (b,), generator=generator)


def alone(given):
    """Leave nothing but the layer's own gradient."""
    return replace(given, next_weight_grad=None, next_weight=None, behind=())


def check_whole(inverter, inputs, labels):
    true = inputs.double().flatten(1).numpy()
    distances = np.sqrt(((inverter.inputs_[:, None] - true[None]) ** 2).mean(axis=2))
    own = distances.argmin(axis=1)
    assert inverter.recovered_.all(), inverter.status_
    assert sorted(own) == list(range(len(true)))
    assert (distances.min(axis=1) < 10 * inverter.uncertainty_).all()
    np.testing.assert_array_equal(inverter.labels_, labels.numpy()[own])


def plain(activation, n_hidden=2, n_classes=10):
    sizes = [N, *[WIDTH] * n_hidden]
    layers = [part for a, b in zip(sizes[:-1], sizes[1:], strict=True) for part in (nn.Linear(a, b), activation())]
    return nn.Sequential(*layers, nn.Linear(WIDTH, n_classes))


class Mixed(nn.Module):
    """A module that shows nothing of what it runs: functional calls, a convolution, normalisation, dropout."""

    def __init__(self):
        super().__init__()
        self.first, self.convolution = nn.Linear(N, 96), nn.Conv2d(6, 8, 3)
        self.norm, self.head, self.dropout = nn.LayerNorm(32), nn.Linear(32, 10), nn.Dropout(0.4)
        self.scale = nn.BatchNorm2d(8)

    def forward(self, x):
        y = functional.silu(self.first(x)).view(len(x), 6, 4, 4)
        y = functional.gelu(self.scale(self.convolution(y)))
        return self.head(self.dropout(self.norm(y.flatten(1))))


class Around(nn.Module):
    """What the layer computes is added to what it is fed."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(N, N), nn.Linear(N, 10)

    def forward(self, x):
        return self.head(x + functional.gelu(self.first(x)))


def focal(outputs, labels):
    """A loss of one's own."""
    right = functional.log_softmax(outputs, dim=1).gather(1, labels[:, None])
    return (-((1 - right.exp()) ** 2) * right).mean()


class TestBatches:
    @pytest.mark.parametrize("activation", [nn.GELU, nn.SiLU, nn.ELU, nn.Softplus, nn.Tanh, nn.Sigmoid])
    def test_come_back_with_labels_from_one_layer_alone(self, activation):
        inputs, labels = draw()
        model = seeded(lambda: plain(activation))
        given = alone(LayerGradient.from_model(model, client_gradient(model, inputs, labels)))
        inverter = GradientInverter(random_state=0).fit(given)
        check_whole(inverter, inputs, labels)
        assert set(inverter.evidence_) == {"rest of the network"}
        assert "the model up to its loss" in inverter.status_

    @pytest.mark.parametrize("activation", [nn.LeakyReLU, nn.GELU])
    def test_ask_for_no_more_evidence_than_can_add(self, activation, monkeypatch):
        """Spans say all behind straight pieces, the rest of the network does elsewhere."""

        def asked(*_):
            raise AssertionError("asked for more")

        monkeypatch.setattr(ByTail if activation is nn.LeakyReLU else BySubspace, "prove", asked)
        monkeypatch.setattr(ByTailAndSubspaces, "prove", asked)
        inputs, labels = draw()
        model = seeded(lambda: plain(activation))
        given = LayerGradient.from_model(model, client_gradient(model, inputs, labels))
        check_whole(GradientInverter(random_state=0).fit(given), inputs, labels)

    @pytest.mark.parametrize(("n_hidden", "n_classes"), [(1, 10), (6, 10), (2, 40)])
    def test_come_back_whatever_the_depth_and_the_classes(self, n_hidden, n_classes):
        inputs, labels = draw(n_labels=n_classes)
        model = seeded(lambda: plain(nn.GELU, n_hidden, n_classes))
        given = alone(LayerGradient.from_model(model, client_gradient(model, inputs, labels)))
        check_whole(GradientInverter(random_state=0).fit(given), inputs, labels)

    def test_come_back_through_functions_convolutions_and_normalisation(self):
        inputs, labels = draw()
        model = seeded(Mixed).eval()
        gradients = client_gradient(model, inputs, labels)
        given = LayerGradient.from_model(model.train(False), gradients, "first")
        check_whole(GradientInverter(random_state=0).fit(alone(given)), inputs, labels)

    @pytest.mark.parametrize("loss", ["mse", nn.CrossEntropyLoss(label_smoothing=0.1), focal])
    def test_come_back_with_other_losses(self, loss):
        def client_loss(outputs, labels):
            if loss != "mse":
                return loss(outputs, labels)
            return (outputs - functional.one_hot(labels, 10)).square().mean()

        inputs, labels = draw()
        model = seeded(lambda: plain(nn.GELU))
        gradients = client_gradient(model, inputs, labels, client_loss)
        given = alone(LayerGradient.from_model(model, gradients, loss=loss))
        check_whole(GradientInverter(random_state=0).fit(given), inputs, labels)

    def test_come_back_with_two_labels_and_one_output(self):
        inputs, labels = draw(n_labels=2)
        model = seeded(lambda: plain(nn.GELU, n_classes=1))

        def client_loss(outputs, labels):
            return functional.binary_cross_entropy_with_logits(outputs[:, 0], labels.float())

        given = alone(LayerGradient.from_model(model, client_gradient(model, inputs, labels, client_loss)))
        check_whole(GradientInverter(random_state=0).fit(given), inputs, labels)

    def test_show_labels_behind_relu_too(self):
        inputs, labels = draw()
        model = seeded(lambda: plain(nn.ReLU))
        inverter = GradientInverter(random_state=0).fit(
            LayerGradient.from_model(model, client_gradient(model, inputs, labels))
        )
        check_whole(inverter, inputs, labels)

    @pytest.mark.parametrize("loss", ["mse", nn.CrossEntropyLoss(label_smoothing=0.3)])
    def test_of_another_loss_than_told_certify_nothing(self, loss):
        inputs, labels = draw()
        model = seeded(lambda: plain(nn.GELU))
        given = LayerGradient.from_model(model, client_gradient(model, inputs, labels), loss=loss)
        inverter = GradientInverter(random_state=0).fit(alone(given))
        assert not inverter.recovered_.any()
        assert (inverter.labels_ == -1).all()

    def test_of_another_network_behind_certify_nothing(self):
        inputs, labels = draw()
        model, other = seeded(lambda: plain(nn.GELU)), seeded(lambda: plain(nn.GELU), seed=1)
        given = alone(LayerGradient.from_model(model, client_gradient(model, inputs, labels)))
        inverter = GradientInverter(random_state=0).fit(replace(given, rest=other[1:]))
        assert not inverter.recovered_.any()
        assert inverter.status_.startswith("0 of 10 inputs certified")


class TestHeads:
    @pytest.mark.parametrize(("b", "n_classes"), [(1, 10), (4, 10), (12, 60), (25, 60)])
    def test_give_features_and_labels_away(self, b, n_classes):
        features, labels = draw(b, 40, n_labels=n_classes)
        head = seeded(lambda: nn.Linear(40, n_classes))
        given = LayerGradient.from_model(head, client_gradient(head, features, labels))
        assert given.activation == "softmax"
        check_whole(GradientInverter(random_state=0).fit(given), features, labels)

    def test_with_several_inputs_of_one_class(self):
        features, _ = draw(12, 40)
        labels = torch.tensor([3] * 5 + [7] * 4 + [50] * 3)
        head = seeded(lambda: nn.Linear(40, 60))
        given = LayerGradient.from_model(head, client_gradient(head, features, labels))
        check_whole(GradientInverter(random_state=0).fit(given), features, labels)

    def test_need_no_more_than_their_name(self):
        features, labels = draw(6, 40, n_labels=30)
        head = seeded(lambda: nn.Linear(40, 30))
        gradients = client_gradient(head, features, labels)
        given = LayerGradient(head.weight, head.bias, gradients["weight"], gradients["bias"], activation="softmax")
        check_whole(GradientInverter(random_state=0).fit(given), features, labels)

    def test_beyond_half_of_the_classes_say_so(self):
        features, labels = draw(7, 40)
        head = seeded(lambda: nn.Linear(40, 10))
        given = LayerGradient.from_model(head, client_gradient(head, features, labels))
        with pytest.warns(UserWarning, match="of the classes of a head"):
            inverter = GradientInverter(random_state=0, batch_size=7).fit(given)
        assert not inverter.recovered_.any()


class TestFromModel:
    def test_a_path_around_the_layer_leaves_no_rest(self):
        inputs, labels = draw()
        model = seeded(Around)
        given = LayerGradient.from_model(model, client_gradient(model, inputs, labels), "first")
        assert given.rest is None

    def test_normalisation_in_training_mode_leaves_no_rest(self):
        inputs, labels = draw()
        model = seeded(Mixed)
        gradients = client_gradient(model, inputs, labels)
        assert LayerGradient.from_model(model.train(), gradients, "first").rest is None
        assert LayerGradient.from_model(model.eval(), gradients, "first").rest is not None

    def test_wrapped_models_have_the_same_rest(self):
        inputs, labels = draw()
        model = seeded(Mixed).eval()
        wrapped = nn.DataParallel(model) if torch.cuda.is_available() else nn.ModuleDict({"module": model})
        wrapped.forward = model.forward
        given = LayerGradient.from_model(wrapped, client_gradient(model, inputs, labels), "first")
        z = torch.randn((3, 96), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        expected = LayerGradient.from_model(model, client_gradient(model, inputs, labels), "first").rest.outputs(z)
        torch.testing.assert_close(given.rest.outputs(z), expected)

    def test_the_rest_is_a_copy(self):
        inputs, labels = draw()
        model = seeded(Mixed).eval()
        given = LayerGradient.from_model(model, client_gradient(model, inputs, labels), "first")
        z = torch.ones((2, 96), dtype=torch.float64)
        before = given.rest.outputs(z)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        torch.testing.assert_close(given.rest.outputs(z), before)

    def test_what_follows_a_layer_without_an_activation_is_in_the_rest(self):
        model = nn.Sequential(nn.Linear(N, 70), nn.LayerNorm(70), nn.GELU(), nn.Linear(70, 10))
        inputs, labels = draw()
        given = LayerGradient.from_model(model, client_gradient(model, inputs, labels))
        assert given.activation == Identity()
        check_whole(GradientInverter(random_state=0).fit(given), inputs, labels)


class TestRestOfNetwork:
    def test_refuses_what_is_none(self):
        with pytest.raises(TypeError, match="module must be"):
            RestOfNetwork(lambda z: z)
        with pytest.raises(ValueError, match="loss must be one of"):
            RestOfNetwork(nn.Identity(), loss="hinge")
        with pytest.raises(TypeError, match="loss must be a name"):
            RestOfNetwork(nn.Identity(), loss=3)

    @pytest.mark.parametrize(
        ("module", "message"),
        [
            (nn.Linear(7, 3), "does not take outputs"),
            (nn.Flatten(0), "one row for each input"),
            (nn.Softmax(dim=0), "mixes the inputs"),
        ],
    )
    def test_a_layer_refuses_what_does_not_fit(self, module, message):
        model = nn.Linear(N, WIDTH)
        inputs, _ = draw()
        arrays = [model.weight, model.bias, torch.ones(WIDTH, N), torch.ones(WIDTH)]
        with pytest.raises(ValueError, match=message):
            LayerGradient(*arrays, activation="gelu", rest=module)

    def test_gradients_are_those_of_the_loss(self):
        model = seeded(lambda: plain(nn.Tanh)).double()
        rest = RestOfNetwork(model[1:])
        z = torch.randn((4, WIDTH), dtype=torch.float64, requires_grad=True)
        labels = torch.tensor([0, 3, 3, 9])
        (expected,) = torch.autograd.grad(functional.cross_entropy(model[1:](z), labels, reduction="sum"), z)
        torch.testing.assert_close(rest.gradients(z, labels).detach(), expected)
        assert rest.n_labels(WIDTH) == 10


class TestView:
    @pytest.fixture
    def problem(self):
        inputs, labels = draw()
        model = seeded(lambda: plain(nn.GELU))
        return LayerProblem.of(LayerGradient.from_model(model, client_gradient(model, inputs, labels)))

    @pytest.fixture(params=["rest", "together"])
    def constraint(self, problem, request):
        return problem.tail if request.param == "rest" else Stacked((problem.subspaces, problem.tail))

    def places(self, problem, n=5):
        return torch.from_numpy(problem.forward.typical(problem.factors.singular_values, n))

    def test_gradient_is_that_of_half_the_cost(self, problem, constraint):
        z = self.places(problem)
        constraint, step = constraint.settled(z), 1e-5
        direction = torch.randn(z.shape, dtype=z.dtype, generator=torch.Generator().manual_seed(1))
        by_differences = (constraint.at(z + step * direction).cost - constraint.at(z - step * direction).cost) / (
            4 * step
        )
        torch.testing.assert_close(
            (constraint.at(z).gradient * direction).sum(dim=1), by_differences, rtol=1e-5, atol=1e-10
        )

    def test_curve_is_the_square_of_what_changes(self, problem, constraint):
        z = self.places(problem)
        here = constraint.settled(z).at(z)
        one, two = (torch.randn(z.shape, dtype=z.dtype, generator=torch.Generator().manual_seed(i)) for i in (1, 2))
        torch.testing.assert_close((here.curve(one) * two).sum(dim=1), (here.curve(two) * one).sum(dim=1))
        assert ((here.curve(one) * one).sum(dim=1) > 0).all()

    @pytest.mark.parametrize("goes_back_at_once", [True, False])
    def test_many_changes_of_one_place_are_those_of_its_copies(self, problem, goes_back_at_once, monkeypatch):
        z, grad = self.places(problem, 1), torch.autograd.grad

        def one_by_one(*args, is_grads_batched=False, **options):
            if is_grads_batched:
                raise RuntimeError("no rule for many at once")
            return grad(*args, **options)

        if not goes_back_at_once:
            monkeypatch.setattr(torch.autograd, "grad", one_by_one)
        changes = torch.randn((4, z.shape[1]), dtype=z.dtype, generator=torch.Generator().manual_seed(1))
        copies = problem.tail.at(z.expand(4, -1)).jvp(changes)
        torch.testing.assert_close(problem.tail.at(z).jvp(changes), copies)

    def test_labels_follow_the_inputs_they_were_settled_for(self, problem):
        z = self.places(problem, 6)
        settled = problem.tail.settled(z)
        index = torch.tensor([4, 1])
        torch.testing.assert_close(settled.of_some(index).at(z[index]).cost, settled.at(z).cost[index])

    def test_what_is_typical_is_no_proof(self, problem):
        here = problem.tail.at(self.places(problem, 40))
        assert not here.is_inside.any()
        assert not here.is_proof.any()


def test_a_head_in_a_coarse_number_format_certifies_nothing():
    features, labels = draw(6, 40, n_labels=30)
    head = seeded(lambda: nn.Linear(40, 30))
    gradients = {name: tensor.half() for name, tensor in client_gradient(head, features, labels).items()}
    inverter = GradientInverter(random_state=0).fit(LayerGradient.from_model(head, gradients))
    assert not inverter.recovered_.any()
