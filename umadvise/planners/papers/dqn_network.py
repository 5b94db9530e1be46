"""The Q-network of the DQN paper: equations 1 to 3, their gradient, and the weights.

    s_v <- ReLU(W1 x_v + W2 sum_u s_u + W3 sum_u ReLU(W4 w(u, v)))      T times, from 0             (1)
    g = [W5 sum_u s_u, W6 s_c]                                                                      (2)
    Q = W7 ReLU([g, W8 s_a])                                                                        (3)

No weight depends on the size of the graph: a network that was trained on one step starts with another. For that, the
sum over all nodes in equation 2 is taken as their mean. Lags are not negative, so ReLU(W4 w) is ReLU(W4) w, and the
third sum is that of a node's lags. Since equation 3 adds what g and what s_a give, g orders states, and s_a, which
knows its neighbourhood, the actions of one.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from umadvise.errors import UsageError
from umadvise.planners.papers.dqn_graph import FEATURES, VALID, Floats, VariableGraph

Weights = dict[str, Floats]
_ADAM_DECAY = (0.9, 0.999)
_ADAM_EPSILON = 1e-8
_LONGEST_GRADIENT = 1.0


def initial_weights(p: int, random: np.random.Generator) -> Weights:
    """Random weights of a network with states of p numbers; a sum has five neighbours."""
    shapes = {"W1": (p, FEATURES), "W2": (p, p), "W3": (p, p), "W4": (p, 1), "W5": (p, p), "W6": (p, p), "W8": (p, p)}
    weights = {
        name: (random.standard_normal(shape) / np.sqrt(shape[1])).astype(np.float32) for name, shape in shapes.items()
    }
    weights["W2"] /= np.float32(5)
    weights["W7"] = (random.standard_normal((1, 3 * p)) / (10 * np.sqrt(3 * p))).astype(np.float32)
    return weights


def save_weights(path: str, weights: Weights) -> None:
    """Writes weights to a file of NumPy's format npz."""
    with Path(path).open("wb") as file:
        np.savez(file, **weights)  # type: ignore[arg-type]


def load_weights(path: str) -> Weights:
    """Reads what `save_weights` wrote.

    Raises:
        UsageError: there is no such file, or it is not one.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            weights = {name: file[name].astype(np.float32) for name in file.files}
        p = weights["W7"].shape[1] // 3
        shapes = {name: each.shape for name, each in initial_weights(p, np.random.default_rng(0)).items()}
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise UsageError(f"initial: {path} holds no weights of a network: {error}") from None
    if {name: each.shape for name, each in weights.items()} != shapes:
        raise UsageError(f"initial: {path} holds weights of another network")
    return weights


@dataclass(frozen=True, eq=False)
class Embedding:
    """Equation 1 for several states of one graph, with what its gradient needs; nodes come first.

    Attributes:
        inputs: features of the nodes (x of equation 1), of shape (nodes, graph states, features).
        sums: sums over each node's neighbours before each round, of shape (nodes, graph states, p).
        states: states of the nodes after each round, of shape (nodes, graph states, p).
    """

    inputs: Floats
    sums: list[Floats]
    states: list[Floats]


class QNetwork:
    """The network that estimates Q, the value of each action in a state, and learns from targets.

    Args:
        weights: initial weights by name, which are copied.
        rounds: number of rounds of message passing (T of equation 1).
        learning_rate: learning rate of Adam, which takes the place of plain gradient descent.
    """

    def __init__(self, weights: Weights, *, rounds: int, learning_rate: float) -> None:
        self.weights = {name: each.copy() for name, each in weights.items()}
        self.rounds = rounds
        self.learning_rate = learning_rate
        self._first = {name: np.zeros_like(each) for name, each in weights.items()}
        self._second = {name: np.zeros_like(each) for name, each in weights.items()}
        self._steps = 0

    def embed(self, graph: VariableGraph, valid: NDArray[np.bool_]) -> Embedding:
        """Equation 1. `valid` (states, nodes) says whether the action of each node can be executed in each state."""
        weights = self.weights
        inputs = np.repeat(graph.features[:, None], len(valid), axis=1)
        inputs[:, :, VALID] = valid.T
        of_lag = (weights["W3"] @ np.maximum(weights["W4"], 0))[:, 0]
        fixed = _times(inputs, weights["W1"].T) + (graph.lag[:, None] * of_lag)[:, None]
        sums = [np.zeros_like(fixed)]
        states = [np.maximum(fixed, 0)]
        for _ in range(1, self.rounds):
            sums.append(neighbour_sum(graph, states[-1]))
            states.append(np.maximum(fixed + _times(sums[-1], weights["W2"].T), 0))
        return Embedding(inputs, sums, states)

    def graph_state(self, embedding: Embedding, current: NDArray[np.int64]) -> Floats:
        """Equation 2, of states whose node under execution is `current`: (states, 2 p)."""
        states = embedding.states[-1]
        of_all = states.mean(axis=0) @ self.weights["W5"].T
        of_current = states[current, np.arange(len(current))] @ self.weights["W6"].T
        return np.concatenate([of_all, of_current], axis=1)

    def q(self, graph_state: Floats, action_states: Floats) -> Floats:
        """Equation 3, of graph states (states, 2 p) each with one action's node (states, p)."""
        joined = np.concatenate([graph_state, action_states @ self.weights["W8"].T], axis=1)
        values: Floats = (np.maximum(joined, 0) @ self.weights["W7"].T)[:, 0]
        return values

    def q_of_all(self, graph: VariableGraph, valid: NDArray[np.bool_], current: NDArray[np.int64]) -> Floats:
        """Q of every node of several states as an action: (states, nodes); minus infinity where it is not valid."""
        embedding = self.embed(graph, valid)
        p = self.weights["W8"].shape[0]
        of_state = np.maximum(self.graph_state(embedding, current), 0) @ self.weights["W7"][0, : 2 * p]
        of_action = np.maximum(_times(embedding.states[-1], self.weights["W8"].T), 0) @ self.weights["W7"][0, 2 * p :]
        values: Floats = np.where(valid, of_state[:, None] + of_action.T, -np.inf).astype(np.float32)
        return values

    def fit(
        self,
        graph: VariableGraph,
        valid: NDArray[np.bool_],
        current: NDArray[np.int64],
        action: NDArray[np.int64],
        target: Floats,
    ) -> float:
        """One step of descent on the mean of equation 4; returns that mean as it was before.

        Args:
            graph: graph that the states are of.
            valid: whether the action of each node can be executed in each state, of shape (states, nodes).
            current: node under execution in each state.
            action: node of the action that was chosen in each state.
            target: value that Q should have for each state's action (y of equation 5); no gradient flows through it.
        """
        embedding = self.embed(graph, valid)
        rows = np.arange(len(current))
        graph_state = self.graph_state(embedding, current)
        error = self.q(graph_state, embedding.states[-1][action, rows]) - target
        gradients = self._gradients(graph, embedding, graph_state, current, action, error * np.float32(2 / len(error)))
        self._descend(gradients)
        return float(np.mean(error**2))

    def _gradients(
        self,
        graph: VariableGraph,
        embedding: Embedding,
        graph_state: Floats,
        current: NDArray[np.int64],
        action: NDArray[np.int64],
        of_q: Floats,
    ) -> Weights:
        weights, states = self.weights, embedding.states[-1]
        rows, p = np.arange(len(current)), weights["W8"].shape[0]
        joined = np.concatenate([graph_state, states[action, rows] @ weights["W8"].T], axis=1)
        of_joined = of_q[:, None] * weights["W7"] * (joined > 0)
        all_, current_, action_ = of_joined[:, :p], of_joined[:, p : 2 * p], of_joined[:, 2 * p :]
        gradients = {
            "W7": of_q[None] @ np.maximum(joined, 0),
            "W5": all_.T @ states.mean(axis=0),
            "W6": current_.T @ states[current, rows],
            "W8": action_.T @ states[action, rows],
        }
        of_all = all_ @ weights["W5"] / np.float32(len(states))
        of_states: Floats = np.repeat(of_all[None], len(states), axis=0)
        np.add.at(of_states, (current, rows), current_ @ weights["W6"])
        np.add.at(of_states, (action, rows), action_ @ weights["W8"])
        return gradients | self._embedding_gradients(graph, embedding, of_states)

    def _embedding_gradients(self, graph: VariableGraph, embedding: Embedding, of_states: Floats) -> Weights:
        weights = self.weights
        p = len(weights["W2"])
        of_fixed = np.zeros_like(of_states)
        of_w2 = np.zeros_like(weights["W2"])
        for states, sums in zip(reversed(embedding.states), reversed(embedding.sums), strict=True):
            of_sum = of_states * (states > 0)
            of_fixed += of_sum
            of_w2 += of_sum.reshape(-1, p).T @ sums.reshape(-1, p)
            if sums is not embedding.sums[0]:
                of_states = neighbour_sum(graph, _times(of_sum, weights["W2"]))  # neighbours are each other's
        of_lag = graph.lag @ of_fixed.sum(axis=1)
        return {
            "W1": of_fixed.reshape(-1, p).T @ embedding.inputs.reshape(-1, FEATURES),
            "W2": of_w2,
            "W3": of_lag[:, None] * np.maximum(weights["W4"], 0).T,
            "W4": (weights["W3"].T @ of_lag)[:, None] * (weights["W4"] > 0),
        }

    def _descend(self, gradients: Weights) -> None:
        """Adam (Kingma & Ba 2015), with gradients that are no longer than 1."""
        self._steps += 1
        length = np.sqrt(sum(float(np.sum(each**2)) for each in gradients.values()))
        shorter = np.float32(min(1.0, _LONGEST_GRADIENT / max(length, 1e-12)))
        for name, gradient in gradients.items():
            for decay, moment, power in zip(_ADAM_DECAY, (self._first, self._second), (1, 2), strict=True):
                moment[name] = np.float32(decay) * moment[name] + np.float32(1 - decay) * (gradient * shorter) ** power
            first = self._first[name] / np.float32(1 - _ADAM_DECAY[0] ** self._steps)
            second = self._second[name] / np.float32(1 - _ADAM_DECAY[1] ** self._steps)
            self.weights[name] -= np.float32(self.learning_rate) * first / (np.sqrt(second) + np.float32(_ADAM_EPSILON))


def _times(states: Floats, matrix: Floats) -> Floats:
    """Each node's state times a matrix; as one product of matrices, not as one a node."""
    result: Floats = (states.reshape(-1, states.shape[-1]) @ matrix).reshape(*states.shape[:-1], -1)
    return result


def neighbour_sum(graph: VariableGraph, states: Floats) -> Floats:
    """Of each node the sum over itself and its neighbours; nodes come first."""
    total = states.copy()
    total[1:] += states[:-1]
    total[:-1] += states[1:]
    total[graph.later] += states[graph.earlier]
    total[graph.earlier] += states[graph.later]
    return total
