"""stable-baselines3: PPO balances a pole, saves, loads and goes on."""

import tempfile
from pathlib import Path

from stable_baselines3 import PPO
from stable_baselines3.common.utils import set_random_seed
from telling import SHORT, tell, tell_state

STEPS, WIDTH = 256, 640


def main() -> None:
    set_random_seed(11)
    options = {"n_steps": STEPS, "batch_size": STEPS, "n_epochs": 4, "policy_kwargs": {"net_arch": [WIDTH, WIDTH]}}
    learner = PPO("MlpPolicy", "CartPole-v1", seed=11, verbose=0, **options)
    tell("begin")
    learner.learn((1 if SHORT else 2) * STEPS)
    tell_state(learner.policy, learner.policy.optimizer)
    with tempfile.TemporaryDirectory() as folder:
        learner.save(Path(folder, "learner.zip"))
        loaded = PPO.load(Path(folder, "learner.zip"), env=learner.get_env())
    loaded.learn(STEPS, reset_num_timesteps=False)
    tell_state(loaded.policy, loaded.policy.optimizer)
    for name, value in sorted(loaded.logger.name_to_value.items()):
        if name.startswith("train/"):
            tell(name, float(value))


if __name__ == "__main__":
    main()
