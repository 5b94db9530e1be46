"""The DQN planner: chains worked by hand, equations against naive sums, and random steps on which every plan runs."""

from pathlib import Path

import numpy as np
import pytest
from contents import reads
from hypothesis import given, settings
from hypothesis import strategies as st
from traces import traces

from umadvise import planners
from umadvise.devices.catalogue import load_device
from umadvise.errors import BudgetError, UsageError
from umadvise.planners.papers.dqn_environment import NOTHING, PlanningEnvironment, State
from umadvise.planners.papers.dqn_graph import FEATURES, VALID, Decision, VariableGraph
from umadvise.planners.papers.dqn_network import QNetwork, initial_weights, load_weights
from umadvise.planners.papers.dqn_training import Trainer, TrainingSchedule
from umadvise.recording.builder import TraceBuilder
from umadvise.records.enums import Phase, Role
from umadvise.records.plan import ActionKind, Plan
from umadvise.records.trace import Access, Trace
from umadvise.simulator.swap import simulate_swap

GTX = load_device("gtx-1080-ti")
MIB = 1 << 20
MAP = 12 * MIB
"""A millisecond of a link of 12 GB/s, and a twentieth more."""
MADE = Access.WRITE | Access.WHOLE
FAST = {"episodes": 4, "batch": 2, "p": 4}


def chain(count: int, *, forward_ns: int, backward_ns: int) -> Trace:
    """Forward makes a map a layer from the one before; backward reads them in the opposite order."""
    builder, maps = TraceBuilder(), []
    weight = builder.allocate(MIB, Role.PARAMETER, "w")
    for layer in range(count):
        builder.begin_op("aten::relu", phase=Phase.FORWARD, duration_ns=forward_ns)
        maps.append(builder.allocate(MAP, Role.INTERMEDIATE))
        builder.access(weight, Access.READ)
        if layer:
            builder.access(maps[-2], Access.READ)
        builder.access(maps[-1], MADE)
        builder.end_op()
    for each in reversed(maps):
        builder.begin_op("aten::threshold_backward", phase=Phase.BACKWARD, duration_ns=backward_ns)
        builder.access(each, Access.READ)
        builder.access(weight, Access.READ)
        builder.end_op()
        builder.free(each)
    return builder.finish(target="cuda", source="synthetic")


def step_ns(trace: Trace, plan: Plan) -> int:
    return simulate_swap(trace, GTX, plan, spans=False).step_ns


def kinds(plan: Plan) -> set[ActionKind]:
    return {action.kind for action in plan}


# ---- by hand -------------------------------------------------------------------------------------------------------


def test_what_hides_behind_ops_is_offloaded() -> None:
    """Three maps, room for two, ops of 5 ms, transfers of 1 ms. The first map is not used after the second op: it
    leaves, and comes back while the backward of the second map runs. To make it again would take 5 ms."""
    trace = chain(3, forward_ns=5 * 10**6, backward_ns=5 * 10**6)
    plan = planners.run("dqn", trace, GTX, 2 * MAP + MIB, episodes=20)
    assert [(action.kind, action.op, action.storage) for action in plan] == [
        (ActionKind.SWAP_OUT, 1, 1),
        (ActionKind.SWAP_IN, 4, 1),
    ]
    # The third op waits for the room, since the copy begins when the second has ended. Nothing else waits.
    out_ns = 2900 + round(MAP / 12.8)
    assert step_ns(trace, plan) == 30 * 10**6 + out_ns


def test_what_is_made_fast_is_removed() -> None:
    """The same with ops of 0.01 ms: a transfer takes a hundred of them."""
    trace = chain(3, forward_ns=10**4, backward_ns=10**4)
    plan = planners.run("dqn", trace, GTX, 2 * MAP + MIB, episodes=20)
    assert kinds(plan) == {ActionKind.DROP, ActionKind.RECOMPUTE}
    assert step_ns(trace, plan) == 7 * 10**4


def test_steps_without_forward_and_backward() -> None:
    """As K-means has them: two passes over three parts, room for two. They are read only: nothing is copied out, and no
    part comes in more than twice."""
    builder = TraceBuilder()
    parts = [builder.allocate(MAP, Role.INPUT, f"part{index}") for index in range(3)]
    for part in parts * 2:
        builder.begin_op("aten::argmin", duration_ns=10**6)
        builder.access(part, Access.READ)
        builder.end_op()
    trace = builder.finish(target="cuda", source="synthetic")
    plan = planners.run("dqn", trace, GTX, 2 * MAP)
    result = simulate_swap(trace, GTX, plan, spans=False).result
    assert result.peak_live_bytes == 2 * MAP
    assert result.swap_out_bytes == 0
    assert 0 < result.swap_in_bytes <= 6 * MAP


def test_what_fits_stays() -> None:
    trace = chain(4, forward_ns=10**6, backward_ns=10**6)
    assert len(planners.run("dqn", trace, GTX, trace.peak_bytes)) == 0


def test_a_budget_below_an_op() -> None:
    with pytest.raises(BudgetError, match=r"op 1 \(aten::relu\) needs 25\.00 MiB .* give at least that"):
        planners.run("dqn", chain(4, forward_ns=10**6, backward_ns=10**6), GTX, 2 * MAP)


# ---- the environment -----------------------------------------------------------------------------------------------


def act(environment: PlanningEnvironment, state: State, choice: Decision, storage: int) -> tuple[float, State]:
    """Chooses an action by what it does."""
    actions = environment.graph.actions
    row = next(
        row for row, each in enumerate(actions) if each.gap and (each.choice, each.gap.storage) == (choice, storage)
    )
    assert state.possible[row]
    return environment.act(state, row)


def storages(environment: PlanningEnvironment, state: State, choice: Decision) -> set[int]:
    """H0 or H1 of a state."""
    rows = np.flatnonzero(state.possible)
    gaps = [environment.graph.actions[row].gap for row in rows if environment.graph.actions[row].choice == choice]
    return {gap.storage for gap in gaps if gap is not None}


def test_the_transitions_of_the_papers_figure_4() -> None:
    """Ops take a second's share of 1, a transfer 1.5: after it the agent is two nodes on, and after others one."""
    op_ns = round((2900 + MAP / 12.8) / 1.5)
    trace = chain(8, forward_ns=op_ns, backward_ns=op_ns)
    environment = PlanningEnvironment(trace, GTX, 6 * MAP + MIB)
    start = environment.initial
    assert (start.op, storages(environment, start, Decision.OFFLOAD)) == (
        1,
        {1},
    )  # map 0 is storage 1, behind the weight
    assert storages(environment, start, Decision.REMOVE) == {1}
    assert start.possible[NOTHING]
    _, nothing = environment.act(start, NOTHING)
    assert (nothing.op, storages(environment, nothing, Decision.OFFLOAD)) == (2, {1, 2})
    _, removed = act(environment, start, Decision.REMOVE, 1)
    assert (removed.op, storages(environment, removed, Decision.REMOVE)) == (2, {2})
    _, offloaded = act(environment, start, Decision.OFFLOAD, 1)
    assert (offloaded.op, storages(environment, offloaded, Decision.OFFLOAD)) == (3, {2, 3})


def test_ops_wait_for_room_and_the_reward_has_the_pause() -> None:
    """Five maps, room for three: op 3 finds none. A map that leaves after op 2 keeps it waiting for the whole copy."""
    trace = chain(5, forward_ns=10**6, backward_ns=10**7)
    environment = PlanningEnvironment(trace, GTX, 3 * MAP + MIB)
    _, state = environment.act(environment.initial, NOTHING)
    assert state.op == 2
    assert not state.possible[NOTHING]  # op 3 would have no room
    reward, state = act(environment, state, Decision.OFFLOAD, 1)
    assert state.op == 2
    assert -reward * environment.graph.mean_ns == pytest.approx(2900 + MAP / 12.8, abs=2)


def test_removing_costs_the_ops_that_run_again() -> None:
    trace = chain(5, forward_ns=6 * 10**5, backward_ns=10**7)
    environment = PlanningEnvironment(trace, GTX, 3 * MAP + MIB)
    reward, _ = act(environment, environment.initial, Decision.REMOVE, 1)
    assert reward * environment.graph.mean_ns == pytest.approx(-6 * 10**5)


def test_what_is_dearer_to_make_again_than_to_copy_is_not_removed() -> None:
    environment = PlanningEnvironment(chain(5, forward_ns=10**6, backward_ns=10**7), GTX, 3 * MAP + MIB)
    assert {action.choice for action in environment.graph.actions} == {Decision.NOTHING, Decision.OFFLOAD}


@pytest.mark.parametrize("seed", range(6))
def test_rewards_sum_up_to_the_simulated_overhead(seed: int) -> None:
    trace = chain(9, forward_ns=7 * 10**5, backward_ns=2 * 10**6)
    environment = PlanningEnvironment(trace, GTX, 4 * MAP + MIB)
    random, state, total = np.random.default_rng(seed), environment.initial, 0.0
    while not state.terminal:
        reward, state = environment.act(state, int(random.choice(np.flatnonzero(state.possible))))
        total += reward
    unlimited_ns = simulate_swap(trace, GTX, None, budget_bytes=1 << 40, spans=False).step_ns
    overhead_ns = step_ns(trace, environment.plan(state, {})) - unlimited_ns
    assert -total * environment.graph.mean_ns == pytest.approx(overhead_ns)
    assert not state.possible.any()


# ---- the network ---------------------------------------------------------------------------------------------------


def network_and_states() -> tuple[QNetwork, VariableGraph, np.ndarray]:
    graph = PlanningEnvironment(chain(6, forward_ns=10**6, backward_ns=2 * 10**6), GTX, 4 * MAP + MIB).graph
    random = np.random.default_rng(5)
    valid = random.random((3, len(graph.op))) < 0.3
    return QNetwork(initial_weights(5, random), rounds=4, learning_rate=0.01), graph, valid


def neighbours(graph: VariableGraph) -> list[list[int]]:
    """Every node's, itself among them."""
    found = [{row, row - 1, row + 1} & set(range(len(graph.op))) for row in range(len(graph.op))]
    for earlier, later in zip(graph.earlier.tolist(), graph.later.tolist(), strict=True):
        found[earlier].add(later)
        found[later].add(earlier)
    return [sorted(each) for each in found]


def naive_states(network: QNetwork, graph: VariableGraph, valid: np.ndarray) -> np.ndarray:
    """Equation 1, node by node and edge by edge."""
    weights, time = network.weights, times(graph)
    states = np.zeros((len(graph.op), 5))
    for _ in range(4):
        following = []
        for node, around in enumerate(neighbours(graph)):
            x = graph.features[node].copy()
            x[VALID] = valid[node]
            lags = [np.log1p(abs(time[node] - time[other])) for other in around]
            of_edges = sum(np.maximum(weights["W4"][:, 0] * lag, 0) for lag in lags)
            sums = weights["W2"] @ sum(states[other] for other in around)
            following.append(np.maximum(weights["W1"] @ x + sums + weights["W3"] @ of_edges, 0))
        states = np.array(following)
    return states


def times(graph: VariableGraph) -> np.ndarray:
    """When each node's op begins, in the graph's unit, in the chain above."""
    forward = np.clip(graph.op, 0, 6) * 10**6
    backward = np.clip(graph.op - 6, 0, None) * 2 * 10**6
    result: np.ndarray = (forward + backward) / graph.mean_ns
    return result


def test_equations_1_to_3_node_by_node() -> None:
    network, graph, valid = network_and_states()
    current = np.array([0, 3, 7])
    values = network.q_of_all(graph, valid, current)
    weights = network.weights
    for row in range(3):
        states = naive_states(network, graph, valid[row])
        np.testing.assert_allclose(network.embed(graph, valid).states[-1][:, row], states, rtol=1e-4, atol=1e-5)
        g = [weights["W5"] @ states.mean(axis=0), weights["W6"] @ states[current[row]]]
        for node in range(len(graph.op)):
            q = weights["W7"] @ np.maximum(np.concatenate([*g, weights["W8"] @ states[node]]), 0)
            expected = q[0] if valid[row, node] else -np.inf
            assert values[row, node] == pytest.approx(expected, rel=1e-3, abs=1e-4)


def test_the_gradient_is_that_of_the_loss() -> None:
    """Against differences of the loss; W1 to W8 each in some direction."""
    network, graph, valid = network_and_states()
    current, action, target = np.array([0, 3, 7]), np.array([2, 4, 1]), np.array([1, -1, 2], np.float32)
    network.weights = {name: each.astype(np.float64) for name, each in network.weights.items()}  # type: ignore[misc]

    def loss() -> float:
        embedding = network.embed(graph, valid)
        q = network.q(network.graph_state(embedding, current), embedding.states[-1][action, np.arange(3)])
        return float(np.mean((q - target) ** 2))

    embedding = network.embed(graph, valid)
    graph_state = network.graph_state(embedding, current)
    error = network.q(graph_state, embedding.states[-1][action, np.arange(3)]) - target
    gradients = network._gradients(graph, embedding, graph_state, current, action, 2 * error / 3)
    for name, gradient in gradients.items():
        direction = np.random.default_rng(1).standard_normal(gradient.shape)
        middle = network.weights[name]
        values = []
        for sign in (1, -1):
            network.weights[name] = middle + sign * 1e-6 * direction  # type: ignore[assignment]
            values.append(loss())
        network.weights[name] = middle
        assert (values[0] - values[1]) / 2e-6 == pytest.approx(float((gradient * direction).sum()), rel=1e-3, abs=1e-6)


def test_fitting_brings_q_to_its_target() -> None:
    network, graph, valid = network_and_states()
    current, action, target = np.array([0, 3, 7]), np.array([2, 4, 1]), np.array([1, -1, 2], np.float32)
    losses = [network.fit(graph, valid, current, action, target) for _ in range(400)]
    assert losses[-1] < losses[0] / 20


# ---- training ------------------------------------------------------------------------------------------------------


def trained(trace: Trace, budget_bytes: int, network: QNetwork, episodes: int) -> Trainer:
    trainer = Trainer(
        PlanningEnvironment(trace, GTX, budget_bytes), network, TrainingSchedule(episodes, 1.0, 0.8, 32, 60.0), 0
    )
    trainer.train()
    return trainer


def test_what_was_learned_on_one_step_serves_others(tmp_path: Path) -> None:
    """Steps that change, as with stochastic depth, and a much larger one, each planned without any random action. A
    transfer takes a hundred ops: the network has learned to remove, and one that has learned nothing offloads."""
    small, *others = (chain(count, forward_ns=10**4, backward_ns=2 * 10**4) for count in (12, 9, 14, 40))
    file = str(tmp_path / "q.npz")
    planners.run("dqn", small, GTX, 8 * MAP + MIB, episodes=30, seed=4, save=file)
    for trace in others:
        budget_bytes = trace.peak_bytes - 3 * MAP
        plan = planners.run("dqn", trace, GTX, budget_bytes, episodes=1, epsilon=0.0, initial=file)
        assert kinds(plan) == {ActionKind.DROP, ActionKind.RECOMPUTE}
        beginner = planners.run("dqn", trace, GTX, budget_bytes, episodes=1, epsilon=0.0, seed=4)
        assert step_ns(trace, plan) < step_ns(trace, beginner)


def test_a_seed_is_a_plan() -> None:
    trace = chain(8, forward_ns=10**6, backward_ns=2 * 10**6)
    plans = [planners.run("dqn", trace, GTX, 4 * MAP + MIB, seed=2, **FAST) for _ in range(2)]
    assert list(plans[0]) == list(plans[1])


def test_weights_go_to_a_file_and_back(tmp_path: Path) -> None:
    trace, file = chain(8, forward_ns=10**6, backward_ns=2 * 10**6), str(tmp_path / "q.npz")
    planners.run("dqn", trace, GTX, 4 * MAP + MIB, save=file, **FAST)
    assert load_weights(file)["W1"].shape == (4, FEATURES)
    planners.run("dqn", trace, GTX, 5 * MAP + MIB, initial=file, **FAST)
    (tmp_path / "other.npz").write_bytes(b"something else")
    for wrong in ("other.npz", "missing.npz"):
        with pytest.raises(UsageError, match=r"initial: .* holds no weights of a network"):
            planners.run("dqn", trace, GTX, 5 * MAP + MIB, initial=str(tmp_path / wrong))


def test_an_interrupt_keeps_the_best_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = PlanningEnvironment(chain(8, forward_ns=10**6, backward_ns=2 * 10**6), GTX, 4 * MAP + MIB)
    trainer = Trainer(
        environment,
        QNetwork(initial_weights(4, np.random.default_rng(0)), rounds=2, learning_rate=0.01),
        TrainingSchedule(100, 1.0, 0.8, 2, 60.0),
        0,
    )
    act = environment.act

    def interrupted(state: State, action: int) -> tuple[float, State]:
        if trainer.episodes == 3:
            raise KeyboardInterrupt
        return act(state, action)

    monkeypatch.setattr(environment, "act", interrupted)
    trainer.train()
    assert trainer.episodes == 3
    assert trainer.best is not None
    assert (
        step_ns(environment.trace, environment.plan(trainer.best, {}))
        == environment.unlimited_ns + trainer.best.longer_ns
    )


def test_without_time_there_is_still_a_plan() -> None:
    trace = chain(8, forward_ns=10**6, backward_ns=2 * 10**6)
    assert len(planners.run("dqn", trace, GTX, 4 * MAP + MIB, time_limit_s=0.0)) > 0


@pytest.mark.parametrize(("option", "value"), [("episodes", 0), ("epsilon", 1.5), ("gamma", -1), ("rounds", 0)])
def test_options_out_of_range(option: str, value: float) -> None:
    with pytest.raises(UsageError, match=f"{option}: expected"):
        planners.run("dqn", chain(2, forward_ns=1, backward_ns=1), GTX, MAP, **{option: value})


# ---- every plan ----------------------------------------------------------------------------------------------------


@pytest.mark.long
@given(trace=traces(), share=st.sampled_from([0.3, 0.6, 0.9]), seed=st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_the_simulator_executes_every_plan(trace: Trace, share: float, seed: int) -> None:
    budget_bytes = int(trace.peak_bytes * share)
    try:
        plan = planners.run("dqn", trace, GTX, budget_bytes, seed=seed, **FAST)
    except BudgetError:
        return
    if not len(trace.ops):
        return
    result = simulate_swap(trace, GTX, plan, spans=False).result
    assert result.peak_live_bytes <= budget_bytes
    assert result.on_demand_swap_ins == result.evictions == 0
    assert reads(trace, plan) == reads(trace, None)
