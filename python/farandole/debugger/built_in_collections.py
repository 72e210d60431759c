# SPDX-License-Identifier: Apache-2.0
"""The collections that every hook has."""

from __future__ import annotations

from torch import nn

from farandole.debugger.collection import Collection
from farandole.debugger.reduction_config import WITH_ELEMENTS


class CollectionKeys:
    """Names of collections."""

    DEFAULT = "default"
    ALL = "all"
    INPUTS = "inputs"
    OUTPUTS = "outputs"
    WEIGHTS = "weights"
    BIASES = "biases"
    GRADIENTS = "gradients"
    LOSSES = "losses"
    METRICS = "metrics"
    SCALARS = "scalars"
    OPTIMIZER_VARIABLES = "optimizer_variables"
    LABELS = "labels"
    PREDICTIONS = "predictions"


_REGEXES: dict[str, str] = {
    CollectionKeys.ALL: ".*",
    CollectionKeys.WEIGHTS: "^(?!gradient).*weight",
    CollectionKeys.BIASES: "^(?!gradient).*bias",
    CollectionKeys.GRADIENTS: "^gradient",
    CollectionKeys.LOSSES: "[Ll]oss_(?!input).*output",
    CollectionKeys.SCALARS: "^scalar/",
    CollectionKeys.OPTIMIZER_VARIABLES: "^optimizer_variables/",
}
SAVED_WHOLE = {CollectionKeys.LOSSES, CollectionKeys.METRICS, CollectionKeys.SCALARS}
"""Collections of numbers, of which reductions would be of no use."""
_WITH_ELEMENTS = (
    CollectionKeys.INPUTS,
    CollectionKeys.OUTPUTS,
    CollectionKeys.LABELS,
    CollectionKeys.PREDICTIONS,
)
_LAYERS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "embedding": nn.Embedding,
}


def built_in_collections() -> dict[str, Collection]:
    """New ones, by their names.

    ``relu_input``, ``relu_output`` and so on have what layers of that class take and return, and
    layers whose own name ends so. Rules look at elements there, so all elements are saved.
    """
    names = [name for key, name in vars(CollectionKeys).items() if key.isupper()]
    found = {name: Collection(name, _REGEXES.get(name)) for name in names}
    for name in _WITH_ELEMENTS:
        found[name].reduction_config = WITH_ELEMENTS
    for layer in _LAYERS:
        for name in (f"{layer}_input", f"{layer}_output"):
            found[name] = Collection(name, f".*{name}", reduction_config=WITH_ELEMENTS)
    return found


def add_module(collections: dict[str, Collection], module: nn.Module, name: str) -> None:
    """Tell the collections of a module's class, and those that the program added it to."""
    for layer, kind in _LAYERS.items():
        if isinstance(module, kind):
            collections[f"{layer}_input"].add_module_tensors(module, inputs=True, outputs=False)
            collections[f"{layer}_output"].add_module_tensors(module)
    for collection in collections.values():
        collection.take_name_of(module, name)
