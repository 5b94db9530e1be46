"""The planner `dqn` ("GPU memory management for deep neural networks using deep Q-network").

An agent learns, on a simulator of the step, which variables to offload and which to remove and make again. Of all plans
that it comes to while it learns, the one with the least overhead in the timed simulation is the result. The parts are a
file each: when what left comes back (`dqn_layout`), the graph (`dqn_graph`), states, actions, transitions and rewards
(`dqn_environment`), the Q-network (`dqn_network`) and its training (`dqn_training`); what the paper leaves open is
decided, and said, there. It gives no sizes, rates or numbers of episodes.
"""

from collections.abc import Callable

import numpy as np

from umadvise.planners import check_range
from umadvise.planners.papers.dqn_environment import PlanningEnvironment
from umadvise.planners.papers.dqn_network import QNetwork, initial_weights, load_weights, save_weights
from umadvise.planners.papers.dqn_training import Trainer, TrainingSchedule
from umadvise.records.device import DeviceProfile
from umadvise.records.plan import Option, Plan
from umadvise.records.trace import Trace


def dqn(
    trace: Trace,
    device: DeviceProfile,
    budget_bytes: int,
    *,
    episodes: int = 40,
    epsilon: float = 1.0,
    gamma: float = 0.8,
    batch: int = 8,
    p: int = 16,
    rounds: int = 4,
    learning_rate: float = 3e-3,
    seed: int = 0,
    time_limit_s: float = 60.0,
    initial: str | None = None,
    save: str | None = None,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Plan:
    """Trains a network, and returns the best plan that it came to. A step that fits as it is keeps everything.

    The same seed gives the same plan where the time limit does not end the training. An interrupt (Ctrl-C) ends it
    early, once there is a plan.

    Args:
        trace: trace of one training step.
        device: profile of the device that the plan is for.
        budget_bytes: bytes that tensors may take on the device.
        episodes: number of passes through the step (l of algorithm 1).
        epsilon: chance of a random action before the first episode, which falls to 0 with the last one. Less than the
            paper's 1 goes with `initial`.
        gamma: decay factor of later rewards (equation 5).
        batch: number of transitions in a mini-batch.
        p: length of a node's state vector; with `initial` that of its network.
        rounds: number of rounds of message passing (T of equation 1; 4 in section 4.4).
        learning_rate: learning rate of the Adam optimizer.
        seed: seed of the initial weights, the random actions and the mini-batches.
        time_limit_s: seconds after which the training ends.
        initial: path of a network that `save` wrote, for this step or another one, to begin with; None begins with
            random weights.
        save: path to write the trained network to; None writes none.
        progress: callback that gets the number of episodes that are done, and the number of all of them.

    Raises:
        UsageError: an option is out of its range, or `initial` is no network.
        BudgetError: with all that can be offloaded, the step does not fit.
    """
    check_range("episodes", episodes, 1)
    check_range("epsilon", epsilon, 0, 1)
    check_range("gamma", gamma, 0, 1)
    check_range("batch", batch, 1)
    check_range("p", p, 1)
    check_range("rounds", rounds, 1)
    check_range("learning_rate", learning_rate, 0)
    check_range("time_limit_s", time_limit_s, 0)
    weights = initial_weights(p, np.random.default_rng(seed)) if initial is None else load_weights(initial)
    network = QNetwork(weights, rounds=rounds, learning_rate=learning_rate)
    environment = PlanningEnvironment(trace, device, budget_bytes)
    trainer = Trainer(environment, network, TrainingSchedule(episodes, epsilon, gamma, batch, time_limit_s), seed)
    trainer.train(progress)
    if save is not None:
        save_weights(save, network.weights)
    assert trainer.best is not None  # train() has had one episode, or has raised
    options: dict[str, Option] = {
        "episodes": episodes,
        "epsilon": epsilon,
        "gamma": gamma,
        "batch": batch,
        "p": p,
        "rounds": rounds,
        "learning_rate": learning_rate,
        "seed": seed,
        "time_limit_s": time_limit_s,
        "initial": initial,
        "save": save,
    }
    return environment.plan(trainer.best, options)
