"""`umadvise run`: a script that knows nothing of umadvise, and the profile that it leaves however it ends."""

import os
import pty
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import warm_processes
from pairwise import by_turns

from umadvise.records import trace_file
from umadvise.records.fault_profile import FaultProfile, decode

TRAIN = """
import sys
import torch
from torch import nn

def main(steps=3):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 256))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for step in range(steps):
        loss = model(torch.randn(16, 256)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(step, loss.item().hex(), flush=True)
"""


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Runs `umadvise run OPTIONS script.py WORDS` in an empty directory."""

    def started(
        script: str, *words: str, options: tuple[str, ...] = (), command: tuple[str | Path, ...] = ()
    ) -> "subprocess.CompletedProcess[str]":
        (tmp_path / "train.py").write_text(textwrap.dedent(script))
        return subprocess.run(
            [*umadvise_run(*options, command=command), "train.py", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return started


def test_under_a_clock_a_script_takes_the_time_of_a_card(
    run: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path
) -> None:
    durations = []
    for _ in range(2):
        finished = run(TRAIN + "main()", options=("--clock", "rtx-4090"))
        assert finished.returncode == 0, finished.stderr
        profile = profile_in(tmp_path)
        durations.append([step.duration_ns for step in profile.steps])
    assert durations[0] == durations[1]
    assert profile.steps[-1].times is not None
    assert profile.steps[-1].times.script_ns == 0
    refused = run(TRAIN + "main()", options=("--clock", "a-card-of-nobody"))
    assert refused.returncode == 2
    assert "no device 'a-card-of-nobody' in the catalogue" in refused.stderr


def umadvise_run(*options: str, command: tuple[str | Path, ...] = ()) -> list[str | Path]:
    words = ("run", "--device", "emulated", "--capacity", "16MiB", *options)
    return [*(command or [warm_processes.folder() / "umadvise"]), *words]


IN_ITS_OWN = (sys.executable, "-m", "umadvise")
"""The command as it begins without any help: what has a terminal or gets a signal, and one that has neither."""


def profile_in(directory: Path) -> FaultProfile:
    """The only file that is left beside the script: the profile, and nothing half written."""
    assert sorted(path.name for path in directory.iterdir() if path.name != "__pycache__") == [
        "train.py",
        "umadvise-profile.json",
    ]
    return decode((directory / "umadvise-profile.json").read_bytes())


def test_a_script_trains_as_it_did_before(
    run: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path
) -> None:
    finished = run(TRAIN + "main()", command=IN_ITS_OWN)
    vanilla = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    )
    assert (finished.returncode, finished.stdout) == (0, vanilla.stdout)
    assert "3 steps watched; profile in umadvise-profile.json" in finished.stderr
    profile = profile_in(tmp_path)
    assert profile.step_count == 3
    assert profile.environment.script == "train.py"
    assert profile.environment.capacity_bytes == 16 << 20
    assert profile.tables is not None
    roles = {row.role for row in profile.tables.role.rows}
    assert {"parameter", "gradient", "optimizer_state", "intermediate"} <= roles
    names = {row.name for row in profile.tables.tensor.rows}
    assert {"0.weight", "2.weight.grad", "0.weight.exp_avg"} <= names
    assert {row.phase for row in profile.tables.phase.rows} >= {"forward", "backward", "optimizer"}
    report = subprocess.run(
        [sys.executable, "-m", "umadvise", "report", "umadvise-profile.json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "0.weight" in report.stdout


@pytest.mark.parametrize("policy", ["swap", "window", "auto", "swap:window"])
def test_a_script_is_driven(
    policy: str, run: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path
) -> None:
    script = TRAIN + "main(6)"
    finished = run(script, options=("--capacity", "64MiB", "--budget", "18MiB", "--policy", policy))
    vanilla = subprocess.run(
        [warm_processes.python(), "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    )
    assert (finished.returncode, finished.stdout) == (0, vanilla.stdout), finished.stderr
    profile = profile_in(tmp_path)
    assert profile.step_count == 6
    assert profile.rungs[0].rung == {"swap:window": "swap", "auto": "advise"}.get(policy, policy)
    assert (profile.counters.fault_groups == 0) is policy.startswith("swap")


def test_trainings_one_after_another_have_steps_and_memory_each(
    run: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path
) -> None:
    finished = run(TRAIN + "import gc\nfor steps in (3, 4, 1):\n    main(steps)\n    gc.collect()\n")
    assert finished.returncode == 0, finished.stderr
    several = profile_in(tmp_path)
    assert several.step_count == 8
    assert run(TRAIN + "main(3)").returncode == 0
    one = profile_in(tmp_path)
    assert several.memory is not None
    assert one.memory is not None
    assert several.memory.requested_peak_bytes < 1.5 * one.memory.requested_peak_bytes


UNMARKED = """
import torch

torch.manual_seed(0)
layers = [(torch.randn(640, 640) / 25).requires_grad_() for _ in range(6)]
for step in range(10):
    hidden = torch.randn(448, 640)
    for layer in layers:
        hidden = torch.relu(hidden @ layer)
    loss = hidden.square().mean()
    loss.backward()
    with torch.no_grad():
        for layer in layers:
            layer -= 0.01 * layer.grad
            layer.grad = None
    print(loss.item())
"""


def test_a_script_that_marks_no_steps_has_some(
    run: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path
) -> None:
    finished = run(UNMARKED, options=("--capacity", "64MiB", "--budget", "24MiB", "--policy", "swap"))
    vanilla = subprocess.run(
        [warm_processes.python(), "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    )
    assert (finished.returncode, finished.stdout) == (0, vanilla.stdout), finished.stderr
    profile = profile_in(tmp_path)
    assert profile.steps_are_found
    assert profile.step_count == 7  # the third time is the first step, and the last one has no end
    assert profile.planned is not None
    assert profile.planned.driven >= 5


def test_one_of_several_optimizers_ends_the_steps(
    run: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path
) -> None:
    script = """
    import torch

    def stepped(*turns):
        for which in turns:
            parameters[which].grad = torch.ones_like(parameters[which])
            optimizers[which].step()

    parameters = [torch.nn.Parameter(torch.zeros(4)) for _ in range(2)]
    optimizers = [torch.optim.SGD([parameter]) for parameter in parameters]
    stepped(0, 1, 0, 1, 0, 1)  # three
    stepped(0, 0, 1, 0, 0, 1)  # four
    stepped(1, 1, 1)  # the first of them follows one, the next one takes over: three
    stepped(0, 1, 0, 1)  # two
    """
    assert run(script).returncode == 0
    assert profile_in(tmp_path).step_count == 12


def test_words_and_exit_code(run: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path) -> None:
    script = """
    import os, sys
    import neighbour
    print(sys.argv, __name__, __file__, sys.path[0] == os.getcwd(), neighbour.here)
    sys.exit(int(sys.argv[2]))
    """
    (tmp_path / "neighbour.py").write_text("here = True\n")
    finished = run(script, "--capacity", "7", "--help", "-x")
    assert finished.returncode == 7
    assert finished.stdout == "['train.py', '--capacity', '7', '--help', '-x'] __main__ train.py True True\n"
    assert (tmp_path / "umadvise-profile.json").exists()


@pytest.mark.parametrize(
    ("ending", "code", "words"),
    [
        ("raise SystemExit", 0, ""),
        ("raise SystemExit('not today')", 1, "not today"),
        ("raise ValueError('broken')", 1, "ValueError: broken"),
        ("raise KeyboardInterrupt", -signal.SIGINT, "KeyboardInterrupt"),  # which a shell calls 130
        ("torch.empty(1 << 50)", 1, "memory"),
    ],
)
def test_the_profile_is_written_however_it_ends(
    ending: str, code: int, words: str, run: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path
) -> None:
    finished = run(TRAIN + f"main(1)\n{ending}\n")
    assert finished.returncode == code
    assert words in finished.stderr
    assert profile_in(tmp_path).step_count == 1
    if "ValueError" in words:
        assert 'train.py", line' in finished.stderr  # where in the script


def test_what_the_last_op_lacks_is_said_in_one_line(run: Callable[..., "subprocess.CompletedProcess[str]"]) -> None:
    """The script has ended when it is known, and no line of it is to blame."""
    script = "import torch\ntorch.ones(1000, 1, device='cuda') * torch.ones(1, 100000, device='cuda')\nprint('done')\n"
    finished = run(script, options=("--policy", "swap", "--budget", "64MiB"))
    assert (finished.returncode, finished.stdout) == (1, "done\n")
    assert "umadvise run: no room for aten::mul.Tensor" in finished.stderr
    assert "Traceback" not in finished.stderr


def test_ctrl_c_writes_the_profile(tmp_path: Path) -> None:
    # Jobs in the background inherit that SIGINT is ignored.
    heeding = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    (tmp_path / "train.py").write_text(heeding + TRAIN + "main(1_000_000)\n")
    with subprocess.Popen(
        [*umadvise_run(command=IN_ITS_OWN), "train.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("0 ")
        assert process.stdout.readline().startswith("1 ")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert profile_in(tmp_path).step_count >= 2


MOMENTS = {
    "the first line": "{kill}",
    "a forward": "torch.nn.Linear.forward = lambda *_: {kill}\nmain(2)",
    "a backward": "x = torch.ones(2, requires_grad=True)\nx.register_hook(lambda _: {kill})\nx.sum().backward()",
    "the optimizer's step": "torch.optim.AdamW.step = lambda *_: {kill}\nmain(2)",
    "between steps": "main(2)\n{kill}",
    "the writing": "from umadvise.records import fault_profile\nwrite = fault_profile.write\n"
    "fault_profile.write = lambda *words: ({kill}, write(*words))",
    "the trace's writing": "from umadvise.records import trace_file\nwrite = trace_file.write\n"
    "trace_file.write = lambda *words: ({kill}, write(*words))",
}


@pytest.mark.parametrize(("moment", "number"), by_turns(MOMENTS, [signal.SIGTERM, signal.SIGINT]))
def test_a_signal_at_any_moment_leaves_profile_and_trace(
    moment: str, number: signal.Signals, run: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path
) -> None:
    ending = MOMENTS[moment].format(kill=f"os.kill(os.getpid(), {int(number)})")
    finished = run(f"import os\n{TRAIN}{ending}\n", options=("--record", "run.trace"))
    assert finished.returncode == -number, finished.stderr
    assert decode((tmp_path / "umadvise-profile.json").read_bytes()).environment.script == "train.py"
    assert len(trace_file.read(tmp_path / "run.trace").ops) >= 0
    assert sorted(each.name for each in tmp_path.iterdir() if each.name != "__pycache__") == [
        "run.trace",
        "train.py",
        "umadvise-profile.json",
    ]


def test_a_session_is_reported_by_its_own_policy_and_budget(
    run: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path
) -> None:
    script = """
    import torch, umadvise
    model = torch.nn.Linear(8, 8)
    for settings in ({"policy": "swap", "budget": "8MiB"}, {"policy": "resident"}, {"budget": "10MiB"}):
        with umadvise.session(model, **settings) as um:
            with um.step():
                model(torch.ones(8, 8)).sum().backward()
            environment = um.profile().environment
            print(environment.policy, (environment.budget_bytes or 0) >> 20, environment.script)
        environment = um.profile().environment
        print(environment.policy, (environment.budget_bytes or 0) >> 20, environment.script)
    """
    finished = run(script, options=("--budget", "12MiB", "--policy", "advise"))
    assert finished.returncode == 0, finished.stderr
    told = ["swap 8 None", "resident 12 None", "auto 10 None"]  # without one of its own the budget of the command holds
    assert finished.stdout.splitlines() == [each for each in told for _ in range(2)]
    environment = profile_in(tmp_path).environment
    assert (environment.policy, environment.budget_bytes, environment.script) == ("auto", 10 << 20, None)


def test_a_handler_of_the_script_gets_sigterm(run: Callable[..., "subprocess.CompletedProcess[str]"]) -> None:
    script = """
    import os, signal
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGTERM)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    signal.signal(signal.SIGTERM, lambda *_: print("heard"))
    os.kill(os.getpid(), signal.SIGTERM)
    print("done")
    """
    finished = run(script)
    assert (finished.returncode, finished.stdout) == (0, f"{-signal.SIGTERM}\nheard\ndone\n"), finished.stderr


def test_the_profile_goes_where_it_is_told(
    run: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path
) -> None:
    assert run(TRAIN + "main(1)", options=("--profile", "there.json", "--budget", "12MiB")).returncode == 0
    profile = decode((tmp_path / "there.json").read_bytes())
    assert profile.environment.budget_bytes == 12 << 20
    assert not (tmp_path / "umadvise-profile.json").exists()


def test_a_script_that_goes_elsewhere_leaves_its_profile_here(
    run: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    script = TRAIN + "import os\nos.chdir('elsewhere')\nmain(2)"
    assert run(script, options=("--record", "trace.umt")).returncode == 0
    assert decode((tmp_path / "umadvise-profile.json").read_bytes()).step_count == 2
    assert (tmp_path / "trace.umt").exists()
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_script_that_uses_umadvise_itself(run: Callable[..., "subprocess.CompletedProcess[str]"]) -> None:
    for line in ("umadvise.patch(device='emulated')", "umadvise.unpatch()"):
        finished = run(f"import umadvise\n{line}\n")
        assert finished.returncode == 1
        assert "StateError" in finished.stderr
        assert 'train.py", line 2' in finished.stderr


def test_children_of_the_script_write_nothing(
    run: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path
) -> None:
    script = """
    import os, sys, torch
    child = os.fork()
    if child == 0:
        sys.exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    assert not os.path.exists("umadvise-profile.json")
    """
    finished = run(script)
    assert (finished.returncode, finished.stdout) == (0, "")
    assert finished.stderr.count("watched") == 1
    assert profile_in(tmp_path).step_count == 0


def test_children_train_what_lies_in_shared_memory(run: Callable[..., "subprocess.CompletedProcess[str]"]) -> None:
    script = """
    import os, torch
    torch.set_num_threads(1)
    model = torch.nn.Linear(300, 300)
    model.share_memory()
    before = model.weight.clone()
    child = os.fork()
    if child == 0:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(4, 300)).sum().backward()
        optimizer.step()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not torch.equal(model.weight, before)
    """
    finished = run(script)
    assert finished.returncode == 0, finished.stderr


def test_a_module_or_package_runs_as_python_runs_it(tmp_path: Path) -> None:
    package = tmp_path / "trainer"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "training.py").write_text(TRAIN)
    (package / "__main__.py").write_text(
        "import sys\nfrom .training import main\nmain()\nprint(__package__, sys.argv[1:], sys.path[0], *sys.argv[:1])\n"
    )

    def printed(*command: str | Path) -> list[str]:
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.splitlines()

    plain = printed(warm_processes.python(), "-m", "trainer", "-x", "--device")
    assert printed(*umadvise_run("-m", "trainer", "-x", "--device")) == plain
    assert decode((tmp_path / "umadvise-profile.json").read_bytes()).step_count == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--device", "emulated", "missing.py"], "missing.py"),
        (["--device", "emulated", "-m", "missing.module"], "no module 'missing.module'"),
        (["--device", "emulated", "-m", "email"], "a package with a __main__"),
        (["--device", "cuda", "--capacity", "1GiB", "train.py"], "--capacity"),
        (["--device", "emulated", "--capacity", "lots", "train.py"], "lots"),
        (["--device", "emulated", "--record", "./train.py", "train.py"], "named twice"),
        (["--device", "emulated", "--record", "kept", "--profile", "kept", "train.py"], "named twice"),
        (["--device", "emulated", "--profile", "nowhere/there.json", "train.py"], "cannot write 'nowhere/there.json'"),
        (["--device", "emulated", "--record", "nowhere/there.umt", "train.py"], "cannot write 'nowhere/there.umt'"),
        (["--device", "emulated", "--profile", ".", "train.py"], "cannot write '.'"),
        (["--device", "emulated", "--policy", "fast", "train.py"], "resident, advise"),
        (["--device", "emulated", "--budget", "-1", "train.py"], "-1"),
        (["--device", "emulated", "--budget", "0", "train.py"], "a budget of 0 bytes"),
        (["--device", "emulated", "--sample-every", "-1", "train.py"], "sample_every=-1"),
        (["--device", "tpu", "train.py"], "tpu"),
    ],
)
def test_wrong_words(words: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise AssertionError\n")
    finished = subprocess.run(
        [warm_processes.folder() / "umadvise", "run", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.returncode == 2
    assert message in finished.stderr
    assert "Traceback" not in finished.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_a_script_that_marks_its_steps_is_taken_at_its_word(
    run: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path
) -> None:
    ended = run("""
        import torch
        import umadvise

        model = torch.nn.Linear(512, 512)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        with umadvise.session(model, optimizer, policy="advise") as um:
            for step in range(3):
                with um.step():
                    for accumulated in range(2):
                        model(um.to_device(torch.randn(16, 512))).square().mean().backward()
                        optimizer.step()
                    optimizer.zero_grad()
    """)
    assert ended.returncode == 0, ended.stderr
    assert profile_in(tmp_path).step_count == 3


def test_each_step_is_shown_on_a_terminal_while_the_script_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN + "main()")
    control, terminal = pty.openpty()
    with subprocess.Popen(
        [*umadvise_run("--live", command=IN_ITS_OWN), "train.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=terminal,
        text=True,
    ) as process:
        os.close(terminal)
        shown = b""
        with suppress(OSError):  # how a terminal ends
            while part := os.read(control, 1 << 16):
                shown += part
        os.close(control)
        assert process.stdout is not None
        printed = process.stdout.read()
    assert process.returncode == 0
    assert "Step" not in printed
    words = shown.decode()
    for step in (1, 2, 3):
        assert f"Step {step} on advise" in words
    assert "times as long as without waits for memory" in words
    assert (
        "3 steps watched; profile in umadvise-profile.json (umadvise report umadvise-profile.json): a step takes"
        in (" ".join(words.split()))
    )


def test_without_a_terminal_nothing_is_shown_live(
    run: Callable[..., "subprocess.CompletedProcess[str]"],
) -> None:
    finished = run(TRAIN + "main()", options=("--live",))
    assert finished.returncode == 0
    assert "Step 1" not in finished.stdout + finished.stderr
