"""A notebook of ten cells, run by nbclient in a kernel of its own: a session is opened in one and closed in another."""

import os

import nbformat
from nbclient import NotebookClient

PLAIN = ("um = None", "", "inputs, wanted = batch(step)", "train(step)")
SESSION = (
    """
%load_ext umadvise
%umadvise model optimizer --device emulated {budget} --policy {policy}
""",
    """
%umadvise --report {profile}
%umadvise --close
""",
    "inputs, wanted = um.to_device(batch(step))",
    """
with um.step():
        train(step)
""",
)
"""The cell that begins, the cell that ends, where a batch comes from, and a step: what a user changes."""


def cells(begin: str, end: str, batch: str, step: str) -> list[str]:
    steps = f"for step in range({{first}}, {{last}}):\n    {step.strip()}"
    return [
        "import torch\nfrom real_data import enlarged_digits\nfrom telling import SHORT, tell, tell_state",
        "torch.manual_seed(8)\npictures, labels = enlarged_digits(24, channels=1)\npictures.shape",
        """
from torch import nn

model = nn.Sequential(
    nn.Flatten(), nn.Linear(576, 640), nn.GELU(), nn.Linear(640, 640), nn.GELU(), nn.Linear(640, 640), nn.GELU(),
    nn.Linear(640, 10),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model
""",
        f"tell('begin')\n{begin.strip()}",
        f"""
def batch(step):
    chosen = slice(512 * step % 1024, 512 * step % 1024 + 512)
    return pictures[chosen].contiguous(), labels[chosen]

def train(step):
    {batch}
    loss = nn.functional.cross_entropy(model(inputs), wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tell("loss", loss)
""",
        steps.format(first=0, last=4),
        """
with torch.no_grad():
    right = (model(pictures[-200:].contiguous()).argmax(1) == labels[-200:]).sum()
right
""",
        "tell('right', right)\ncopy = [parameter.clone() for parameter in model.parameters()]\nmodel[1].weight",
        steps.format(first=4, last=8),
        f"""
tell('moved', sum((one - two).abs().sum() for one, two in zip(model.parameters(), copy)))
tell_state(model, optimizer)
{end.strip()}
""",
    ]


def session() -> tuple[str, str, str, str]:
    """The same with what the environment asks for."""
    begin, end, *between = SESSION
    limit = f"--budget {os.environ['BUDGET']}" if os.environ["BUDGET"] else ""
    begin = begin.format(budget=limit, policy=os.environ["POLICY"])
    return begin, end.format(profile=os.environ["PROFILE"]), *between


def main() -> None:
    sources = cells(*(session() if "POLICY" in os.environ else PLAIN))
    assert len(sources) == 10
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source.strip()) for source in sources])
    NotebookClient(notebook, timeout=600, kernel_name="python3").execute()


if __name__ == "__main__":
    main()
