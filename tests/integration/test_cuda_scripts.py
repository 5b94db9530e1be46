"""`umadvise run --device emulated`: scripts written for CUDA, beside the same scripts on the CPU without umadvise."""

import re
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import warm_processes

Run = Callable[[str], "subprocess.CompletedProcess[str]"]

TELL = """
import hashlib
import torch
from torch import nn

def tell(name, *tensors):
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().numpy().tobytes())
    print(name, digest.hexdigest())

def tell_training(loss, model, optimizer):
    print(loss.item().hex())
    tell("parameters", *model.state_dict().values())
    state = [value for entries in optimizer.state.values() for value in entries.values()]
    tell("optimizer", *(value for value in state if isinstance(value, torch.Tensor)))
"""

PLAIN_LOOP = """
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(3)
torch.cuda.manual_seed_all(3)
torch.backends.cudnn.benchmark = True
model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 10))
model = model.to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(3):
    images = torch.randn(8, 3, 8, 8)
    labels = torch.randint(0, 10, (8,), device=device)
    loss = nn.functional.cross_entropy(model(images.to(device, non_blocking=True)), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() > 0
    tell_training(loss, model, optimizer)
"""

TRAINER = """
class Model(nn.Module):
    def __init__(self, device=None):
        super().__init__()
        self.embedding = nn.Embedding(64, 32, device=device)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True, device=device)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(32, 64, device=device)
        self.register_buffer("positions", torch.arange(16, device=device))

    @property
    def device(self):
        return next(self.parameters()).device

    def forward(self, words):
        hidden = self.embedding(words) + self.embedding(self.positions)
        mask = torch.zeros(16, 16, device=words.device)
        return self.head(self.encoder(hidden, mask=mask))

torch.manual_seed(7)
model = Model(device="cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**14)
for step in range(3):
    optimizer.zero_grad(set_to_none=True)
    for accumulated in range(2):
        words = torch.randint(0, 64, (4, 16)).to(model.device, non_blocking=True)
        with torch.autocast("cuda", dtype=torch.DTYPE):
            logits = model(words)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), words.flatten())
        scaler.scale(loss / 2).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    schedule.step()
    print(logits.dtype, scaler.get_scale(), norm.item().hex())
    tell_training(loss, model, optimizer)
model.eval()
with torch.no_grad():
    tell("evaluated", model(torch.arange(16, device="cuda:0").expand(2, 16)))
"""

LOADER = """
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(5)
data = TensorDataset(torch.randn(24, 16) * 2, torch.arange(24) % 4)
sampler = torch.Generator()
loader = DataLoader(data, batch_size=8, shuffle=True, generator=sampler, pin_memory=True, num_workers=WORKERS)
model = nn.Linear(16, 4).cuda()
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(2):
    for inputs, labels in loader:
        inputs, labels = inputs.cuda(non_blocking=True), labels.cuda(non_blocking=True)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    tell_training(loss, model, optimizer)
"""

RESUME = """
import os

def make():
    torch.manual_seed(11)
    model = nn.Sequential(nn.Linear(32, 64), nn.Dropout(0.3), nn.Linear(64, 8)).to("cuda")
    return model, torch.optim.AdamW(model.parameters())

def train(model, optimizer, steps):
    for step in range(steps):
        loss = model(torch.randn(8, 32, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    tell_training(loss, model, optimizer)

model, optimizer = make()
train(model, optimizer, 2)
kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}
torch.save(kept, "checkpoint.pt")
train(model, optimizer, 2)
expected = [parameter.detach().clone() for parameter in model.parameters()]

model, optimizer = make()
kept = torch.load("checkpoint.pt", map_location="cuda")
model.load_state_dict(kept["model"])
optimizer.load_state_dict(kept["optimizer"])
torch.set_rng_state(kept["rng"].cpu())
train(model, optimizer, 2)
assert all(torch.equal(*pair) for pair in zip(expected, model.parameters()))
"""


def on_cpu(script: str) -> str:
    """The script with "cpu" in place of "cuda"."""
    return re.sub(r'"cuda(:0)?"(?! if)', '"cpu"', script).replace(".cuda(non_blocking=True)", "").replace(".cuda()", "")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a script with `umadvise run --device emulated`."""

    def started(script: str) -> "subprocess.CompletedProcess[str]":
        options = ("--device", "emulated", "--capacity", "32MiB")
        return execute(script, tmp_path / "train.py", "-m", "umadvise", "run", *options)

    return started


def execute(script: str, path: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    path.write_text(textwrap.dedent(script))
    command = [warm_processes.python(), *words, path.name]
    return subprocess.run(command, cwd=path.parent, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    "script",
    [
        PLAIN_LOOP,
        TRAINER.replace("DTYPE", "bfloat16"),
        TRAINER.replace("DTYPE", "float16"),
        LOADER.replace("WORKERS", "0"),
        LOADER.replace("WORKERS", "2"),
        RESUME,
    ],
    ids=["plain", "trainer-bf16", "trainer-fp16", "loader", "loader-workers", "resume"],
)
def test_trains_as_on_the_cpu(script: str, run: Run, tmp_path: Path) -> None:
    vanilla = execute(TELL + on_cpu(script), tmp_path / "vanilla.py")
    assert vanilla.returncode == 0, vanilla.stderr
    finished = run(TELL + script)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == vanilla.stdout
    assert len(vanilla.stdout.splitlines()) >= 6


def test_what_passes_through(run: Run) -> None:
    finished = run("""
        import torch
        from torch import nn

        @torch.jit.script
        def scripted(size: int):
            return torch.zeros(size) + torch.ones(size)

        model = nn.DataParallel(nn.Linear(4, 4)).cuda()
        compiled = torch.compile(model)
        with torch.cuda.nvtx.range("forward"):
            output = compiled(torch.cuda.FloatTensor(2, 4).fill_(1.0))
        assert torch.equal(output, model(torch.ones(2, 4)))
        assert "_orig_mod.module.weight" in compiled.state_dict()
        print(scripted(2).sum().item())
    """)
    assert (finished.returncode, finished.stdout) == (0, "2.0\n"), finished.stderr
    assert "torch.compile is passed through" in finished.stderr


def test_a_refusal_ends_the_script_and_names_its_line(run: Run) -> None:
    finished = run("import torch\ntorch.zeros(2, device='cuda:1')\n")
    assert finished.returncode == 1
    assert 'train.py", line 2' in finished.stderr
    assert "cuda:1 cannot be used on the emulated device: it is one GPU a process, cuda:0" in finished.stderr
