"""torch_geometric: convolutions on one graph of all digits, and on batches of graphs, one for each digit.

python geometric.py GCN|GAT|GraphSAGE|batches
"""

import sys

import torch
from emulated_session import session
from real_data import digits
from telling import SHORT, tell, tell_state
from torch.nn import functional
from torch_geometric import nn as graphs
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.utils import grid

NEIGHBOURS, STEPS, WIDTH = 4, 4 if SHORT else 8, 256


def one_graph(kind: str) -> None:
    """Each digit is a node, beside those that look most like it."""
    pictures, labels = digits()
    flat = pictures.flatten(1)
    near = torch.cdist(flat, flat).topk(NEIGHBOURS + 1, largest=False).indices[:, 1:]
    edges = torch.stack([near.flatten(), torch.arange(len(flat)).repeat_interleave(NEIGHBOURS)])
    known = torch.arange(len(flat)) % 4 == 0
    model = getattr(graphs, kind)(64, WIDTH, num_layers=4, out_channels=10, dropout=0.2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    tell("begin")
    with session(model, optimizer) as um:
        data = um.to_device(Data(x=flat, edge_index=edges, y=labels, known=known).to_dict())
        for _ in range(STEPS):
            with um.step():
                optimizer.zero_grad()
                answers = model(data["x"], data["edge_index"])
                loss = functional.cross_entropy(answers[data["known"]], data["y"][data["known"]])
                loss.backward()
                optimizer.step()
                tell("loss", loss)
        model.eval()
        with torch.no_grad():
            right = model(data["x"], data["edge_index"]).argmax(1) == data["y"]
        tell("right", right.sum())
        tell_state(model, optimizer)


class Pictures(torch.nn.Module):
    """A digit as a graph of 64 points."""

    def __init__(self) -> None:
        super().__init__()
        self.points = graphs.GIN(3, 128, num_layers=3, norm="batch_norm", jk="cat")
        self.answer = torch.nn.Linear(128, 10)

    def forward(self, batch: Data) -> torch.Tensor:
        points = self.points(batch.x, batch.edge_index)
        return self.answer(graphs.global_mean_pool(points, batch.batch))


def batches() -> None:
    """Each digit is a graph: its points and where they are."""
    pictures, labels = digits()
    edges, places = grid(8, 8)
    each = [
        Data(x=torch.cat([picture.reshape(-1, 1), places / 8], 1), edge_index=edges, y=label)
        for picture, label in zip(pictures[:512], labels[:512], strict=True)
    ]
    model = Pictures()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(each, batch_size=128, shuffle=True)
    tell("begin")
    with session(model, optimizer) as um:
        for _ in range(STEPS // 4):
            for loaded in loader:
                with um.step():
                    batch = Data(**um.to_device(loaded.to_dict()))
                    optimizer.zero_grad()
                    loss = functional.cross_entropy(model(batch), batch.y)
                    loss.backward()
                    optimizer.step()
                    tell("loss", loss)
        tell_state(model, optimizer)


def main() -> None:
    torch.manual_seed(5)
    if sys.argv[1] == "batches":
        batches()
    else:
        one_graph(sys.argv[1])


if __name__ == "__main__":
    main()
