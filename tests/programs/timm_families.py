"""timm: a network of one family trained on enlarged digits with timm's own optimizer, schedule, loss and average.

python timm_families.py NETWORK
"""

import sys
from pathlib import Path

import torch

sys.path.append(str(Path(sys.prefix, "bare")))
if torch.version.cuda is None:  # torchvision's Python names these kernels, and the wheel's are for CUDA's torch
    torch.library.define("torchvision::nms", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    torch.library.define("torchvision::qnms", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import timm
from emulated_session import session
from real_data import enlarged_digits
from telling import SHORT, tell, tell_state
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3

SIDE, BATCH, STEPS = 96, 8, 4 if SHORT else 8


def main() -> None:
    name = sys.argv[1]
    torch.manual_seed(4)
    options = {"img_size": SIDE} if "resnet" not in name and "conv" not in name and "mobile" not in name else {}
    model = timm.create_model(name, num_classes=10, drop_rate=0.1, **options)
    pictures, labels = enlarged_digits(SIDE)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
    schedule, smoothed = CosineLRScheduler(optimizer, t_initial=STEPS), LabelSmoothingCrossEntropy()
    tell("begin")
    with session(model, optimizer) as um:
        average = ModelEmaV3(model, decay=0.9)
        for step in range(STEPS):
            with um.step():
                chosen = slice(step * BATCH, (step + 1) * BATCH)
                inputs, wanted = um.to_device((pictures[chosen].contiguous(), labels[chosen]))
                loss = smoothed(model(inputs), wanted)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step(step)
                average.update(model)
                tell("loss", loss)
        model.eval()
        with torch.no_grad():
            tell("answers", average.module(um.to_device(pictures[-BATCH:].contiguous())))
        tell_state(model, optimizer)
        tell_state(average.module)


if __name__ == "__main__":
    main()
