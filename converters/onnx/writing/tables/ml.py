"""Writers of ai.onnx.ml, texts and random numbers: what we pass as operands is an attribute there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bolt_numba.base.types import BOOL, F32, I64, STRING, AnyDType, Array
from bolt_numba.converters.onnx.types import CODES
from bolt_numba.converters.onnx.writing.registry import Named, NoSpellingError, writer
from bolt_numba.ops.arrays.generate import ConstantOfShape
from bolt_numba.ops.arrays.random import RandomNormal, RandomUniform
from bolt_numba.ops.data.ml import CastMap, DictVectorizer, LabelEncoder, OneHotEncoder, ZipMap
from bolt_numba.ops.data.text import TfIdfVectorizer
from bolt_numba.ops.data.trees import TreeEnsemble

if TYPE_CHECKING:
    from bolt_numba.converters.onnx.writing.graph import GraphWriter

_SUFFIX: dict[AnyDType, str] = {I64: "int64s", STRING: "strings", F32: "floats"}
"""How lists of a dtype are called."""


def content(term: Named, what: str) -> Array:
    """What an attribute will hold; raises NoSpellingError unless it is known."""
    known = term.known
    if known is None:
        raise NoSpellingError(f"{what} that is no constant")
    return known


def listed(term: Named, what: str, *allowed: AnyDType) -> tuple[str, list[Any]]:
    """The suffix of the attribute for a list of that dtype, and the list."""
    array = content(term, what)
    if array.dtype not in allowed:
        raise NoSpellingError(f"{what} of dtype {array.dtype}")
    return _SUFFIX[array.dtype], array.reshape(-1).tolist()


@writer(LabelEncoder)
def label_encoder(w: GraphWriter, op: LabelEncoder, x: Named, keys: Named, values: Named, default: Named) -> Any:
    attributes: dict[str, Any] = {}
    for name, term in (("keys", keys), ("values", values)):
        array = content(term, name)
        suffix = _SUFFIX.get(array.dtype)
        attributes[f"{name}_{suffix or 'tensor'}"] = array.tolist() if suffix else w.tensor(array)
    other = content(default, "default")
    singular = {I64: "int64", STRING: "string", F32: "float"}.get(other.dtype)
    attributes[f"default_{singular or 'tensor'}"] = other.reshape(-1)[0] if singular else w.tensor(other)
    types = [op.infer(x.type, keys.type, values.type, default.type)]
    return w.node("LabelEncoder", [x], types, **attributes)


@writer(OneHotEncoder)
def one_hot_encoder(w: GraphWriter, op: OneHotEncoder, x: Named, categories: Named) -> Any:
    suffix, values = listed(categories, "categories", I64, STRING)
    types = [op.infer(x.type, categories.type)]
    return w.node("OneHotEncoder", [x], types, **{f"cats_{suffix}": values, "zeros": int(op.zeros)})


@writer(ZipMap)
def zip_map(w: GraphWriter, op: ZipMap, scores: Named, labels: Named) -> Any:
    suffix, values = listed(labels, "labels", I64, STRING)
    if scores.type.dtype != F32:
        raise NoSpellingError(f"scores of {scores.type}")
    return w.node("ZipMap", [scores], [op.infer(scores.type, labels.type)], **{f"classlabels_{suffix}": values})


@writer(DictVectorizer)
def dict_vectorizer(w: GraphWriter, op: DictVectorizer, x: Named, vocabulary: Named) -> Any:
    suffix, values = listed(vocabulary, "vocabulary", I64, STRING)
    key = {"strings": "string_vocabulary", "int64s": "int64_vocabulary"}[suffix]
    return w.node("DictVectorizer", [x], [op.infer(x.type, vocabulary.type)], **{key: values})


@writer(CastMap)
def cast_map(w: GraphWriter, op: CastMap, x: Named) -> Any:
    to = {F32: "TO_FLOAT", I64: "TO_INT64", STRING: "TO_STRING"}[op.to]
    form = {"map_form": "DENSE"} if op.size is None else {"map_form": "SPARSE", "max_map": op.size}
    return w.node("CastMap", [x], [op.infer(x.type)], cast_to=to, **form)


@writer(TfIdfVectorizer)
def tf_idf_vectorizer(w: GraphWriter, op: TfIdfVectorizer, x: Named) -> Any:
    texts = any(isinstance(item, str) for item in op.pool)
    names = ("mode", "min_gram_length", "max_gram_length", "max_skip_count", "ngram_counts", "ngram_indexes")
    attributes = {name: getattr(op, name) for name in names} | ({"weights": op.weights} if op.weights else {})
    attributes["pool_strings" if texts else "pool_int64s"] = op.pool
    return w.node("TfIdfVectorizer", [x], [op.infer(x.type)], **attributes)


@writer(RandomNormal, RandomUniform)
def random(w: GraphWriter, op: RandomNormal | RandomUniform, shape: Named, seed: Named | None = None) -> Any:
    """Where the run tells the shape: like a tensor of that shape."""
    if seed is not None:
        raise NoSpellingError("a seed that the run tells")
    names = ("mean", "scale") if isinstance(op, RandomNormal) else ("low", "high")
    attributes = {name: getattr(op, name) for name in names} | {"dtype": CODES[op.dtype]}
    if op.seed is not None:
        attributes["seed"] = op.seed
    types = [op.infer(shape.type)]
    if shape.known is not None:
        return w.node(op.name, [], types, shape=shape.known.tolist(), **attributes)
    like = w.write(ConstantOfShape(False, BOOL), shape)
    return w.node(f"{op.name}Like", [like], types, **attributes)


@writer(TreeEnsemble)
def tree_ensemble(w: GraphWriter, op: Any, x: Named, *terms: Named) -> Any:
    """Of f32, as TreeEnsembleRegressor, which engines have had for long."""
    if x.type.dtype != F32:
        raise NoSpellingError(f"rows of {x.type}")
    names = ("feature", "threshold", "child", "missing", "leaf", "roots", "starts", "targets", "weights")
    arrays = {name: content(t, name) for name, t in zip(names, terms, strict=False)}
    attributes = _forest(arrays) | {"n_targets": op.n_targets, "aggregate_function": op.aggregate}
    if len(terms) > len(names) and terms[-1].name:
        attributes["base_values"] = content(terms[-1], "base").tolist()
    types = [op.infer(x.type, *(t.type if t.name else None for t in terms))]
    return w.node("TreeEnsembleRegressor", [x], types, **attributes)


def _forest(a: dict[str, Array]) -> dict[str, Any]:
    """Parallel lists over the nodes of all trees, the root of each tree first."""
    nodes: list[tuple[int, int, int]] = []  # tree, number in the tree, place in our arrays
    branches: list[tuple[int, int]] = []
    for tree, root in enumerate(a["roots"].tolist()):
        places = [root]
        for number, place in enumerate(places):  # grows as it is walked
            nodes.append((tree, number, place))
            is_leaf = bool(np.isnan(a["threshold"][place]))
            branches.append((0, 0) if is_leaf else (len(places), len(places) + 1))
            if not is_leaf:
                child = int(a["child"][place])
                places += [child, child + 1]
    trees, numbers, at = (np.array(column, np.int64) for column in zip(*nodes, strict=True))
    inner = ~np.isnan(a["threshold"][at])
    made: dict[str, Any] = {
        "nodes_treeids": trees.tolist(),
        "nodes_nodeids": numbers.tolist(),
        "nodes_modes": ["BRANCH_LEQ" if is_inner else "LEAF" for is_inner in inner],
        "nodes_featureids": np.where(inner, a["feature"][at], 0).tolist(),
        "nodes_values": np.where(inner, a["threshold"][at], 0).tolist(),
        "nodes_truenodeids": [true for true, _ in branches],
        "nodes_falsenodeids": [false for _, false in branches],
        "nodes_missing_value_tracks_true": a["missing"][at].astype(int).tolist(),
    }
    entries = [
        (tree, number, int(a["targets"][e]), float(a["weights"][e]))
        for tree, number, place in nodes
        if np.isnan(a["threshold"][place])
        for e in range(a["starts"][a["leaf"][place]], a["starts"][a["leaf"][place] + 1])
    ]
    columns = zip(*entries, strict=True) if entries else ((), (), (), ())
    keys = ("target_treeids", "target_nodeids", "target_ids", "target_weights")
    return made | dict(zip(keys, map(list, columns), strict=True))
