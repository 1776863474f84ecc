import torch

from paper.models.vision import vgg
from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.simulation import client_gradient

SMALL = ((4, 4), (8,))


def test_vgg16_has_the_shapes_of_torchvision():
    with torch.device("meta"):
        model = vgg()
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    assert shapes["features.0.weight"] == (64, 3, 3, 3)
    assert shapes["features.28.weight"] == (512, 512, 3, 3)
    assert shapes["classifier.0.weight"] == (4096, 25088)
    assert shapes["classifier.6.bias"] == (1000,)
    assert len(shapes) == 32


def test_weights_come_from_the_seed_alone():
    one, two = (vgg(SMALL, width=20, n_classes=5, random_state=3) for _ in range(2))
    assert all(torch.equal(one.state_dict()[name], two.state_dict()[name]) for name in one.state_dict())


def test_features_of_the_first_fully_connected_layer_come_back():
    model = vgg(SMALL, width=300, n_classes=10, random_state=0)
    coarse = 2 * torch.randn(16, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    images = torch.nn.functional.interpolate(coarse, size=(32, 32), mode="bilinear")
    gradient = client_gradient(model, images, torch.arange(16) % 10)
    inverter = GradientInverter(random_state=0).fit(LayerGradient.from_model(model, gradient, "classifier.0"))
    assert inverter.recovered_.all()
    true = torch.nn.functional.normalize(model.extract(images).detach().double(), dim=1)
    found = torch.nn.functional.normalize(torch.from_numpy(inverter.inputs_), dim=1)
    assert (true @ found.T).amax(dim=1).min() > 0.99
