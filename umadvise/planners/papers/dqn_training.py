"""Fitted Q-iteration with experience replay: algorithm 1 of the DQN paper (sections 4.8 to 4.10).

Each transition goes to the replay dataset, and after each the network is fitted to a mini-batch that is drawn from all
of it. The random actions are drawn with the same chance each. To the reward is added by how much less memory is missing
then: over a plan these sum up to what was missing at first, whatever the plan, but an action is worth at once what it
brings.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from umadvise.planners.papers.dqn_environment import PlanningEnvironment, State
from umadvise.planners.papers.dqn_graph import Floats
from umadvise.planners.papers.dqn_network import QNetwork


@dataclass(frozen=True, slots=True)
class TrainingSchedule:
    """Options of the training.

    Attributes:
        episodes: number of passes through the step (l of algorithm 1).
        epsilon: chance of a random action before the first episode, which falls to 0 with the last one.
        gamma: decay factor of later rewards (equation 5).
        batch: number of transitions in a mini-batch.
        time_limit_s: seconds after which the training ends; a first episode that runs then ends without more choices.
    """

    episodes: int
    epsilon: float
    gamma: float
    batch: int
    time_limit_s: float


@dataclass(frozen=True, slots=True)
class _Transition:
    valid: NDArray[np.bool_]
    current: int
    action: int
    reward: float
    next_valid: NDArray[np.bool_]
    next_current: int


class Trainer:
    """An agent, what it has seen, and its network.

    Attributes:
        best: the terminal state of the least overhead so far; None before the first one.
        episodes: number of episodes that have come to their end.
    """

    def __init__(
        self, environment: PlanningEnvironment, network: QNetwork, schedule: TrainingSchedule, seed: int
    ) -> None:
        self.environment, self.network, self.schedule = environment, network, schedule
        self.best: State | None = environment.initial if environment.initial.terminal else None
        self.episodes = 0
        self._random = np.random.default_rng(seed)
        self._replay: list[_Transition] = []
        graph = environment.graph
        self._node_of = np.array([action.node for action in graph.actions], np.int64)
        self._action_of = np.full(len(graph.op), -1, np.int64)
        self._action_of[self._node_of] = np.arange(len(graph.actions))

    def train(self, progress: Callable[[int, int], None] = lambda _done, _all: None) -> None:
        """Trains until the last episode or the time limit; an interrupt ends it too once there is a plan."""
        try:
            for _ in self._run():
                progress(self.episodes, self.schedule.episodes)
        except KeyboardInterrupt:
            if self.best is None:
                raise

    def _run(self) -> Iterator[State]:
        """Terminal states, one an episode."""
        end_s = time.monotonic() + self.schedule.time_limit_s
        while self.best is not self.environment.initial and self.episodes < self.schedule.episodes:
            chance = self.schedule.epsilon * (1 - (self.episodes + 1) / self.schedule.episodes)
            state = self.environment.initial
            while not state.terminal:
                late = time.monotonic() > end_s
                if late and self.best is not None:
                    return
                state = self.environment.finish(state) if late else self._decide(state, chance)
            self.episodes += 1
            if self.best is None or state.longer_ns < self.best.longer_ns:
                self.best = state
            yield state

    def _decide(self, state: State, chance: float) -> State:
        valid, current = self._seen(state)
        if self._random.random() < chance:
            action = int(self._random.choice(np.flatnonzero(state.possible)))
        else:
            q = self.network.q_of_all(self.environment.graph, valid[None], np.array([current]))
            action = int(self._action_of[int(q[0].argmax())])
        reward, following = self.environment.act(state, action)
        reward += self.environment.shortage(state) - self.environment.shortage(following)
        self._replay.append(_Transition(valid, current, int(self._node_of[action]), reward, *self._seen(following)))
        self._fit()
        return following

    def _seen(self, state: State) -> tuple[NDArray[np.bool_], int]:
        """Of each node whether its action is valid, and the node under execution."""
        graph = self.environment.graph
        valid = np.zeros(len(graph.op), bool)
        valid[self._node_of] = state.possible
        return valid, int(np.searchsorted(graph.op, state.op, side="right")) - 1

    def _fit(self) -> None:
        rows = self._random.integers(len(self._replay), size=self.schedule.batch)
        batch = [self._replay[row] for row in rows]
        graph = self.environment.graph
        next_valid = np.array([each.next_valid for each in batch])
        q = self.network.q_of_all(graph, next_valid, np.array([each.next_current for each in batch]))
        best = np.where(next_valid.any(axis=1), q.max(axis=1), 0)  # of a terminal state 0
        target: Floats = (np.array([each.reward for each in batch]) + self.schedule.gamma * best).astype(np.float32)
        self.network.fit(
            graph,
            np.array([each.valid for each in batch]),
            np.array([each.current for each in batch]),
            np.array([each.action for each in batch]),
            target,
        )
