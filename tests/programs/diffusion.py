"""diffusers: a UNet learns to take noise off enlarged digits, and then makes one."""

import torch
from diffusers import DDIMScheduler, DDPMScheduler, UNet2DModel
from diffusers.optimization import get_cosine_schedule_with_warmup
from diffusers.training_utils import EMAModel
from real_data import enlarged_digits
from telling import SHORT, tell, tell_state
from torch.nn import functional

SIDE, BATCH, STEPS = 32, 8, 4 if SHORT else 8
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def main() -> None:
    torch.manual_seed(9)
    model = UNet2DModel(
        sample_size=SIDE,
        in_channels=1,
        out_channels=1,
        block_out_channels=(64, 128),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=8,
    ).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = get_cosine_schedule_with_warmup(optimizer, 2, STEPS)
    noises, average = DDPMScheduler(100), EMAModel(model.parameters())
    pictures, _ = enlarged_digits(SIDE, channels=1)
    tell("begin")
    for step in range(STEPS):
        clean = pictures[step * BATCH : (step + 1) * BATCH].to(DEVICE) * 2 - 1
        noise = torch.randn(clean.shape).to(DEVICE)
        times = torch.randint(0, 100, (BATCH,)).to(DEVICE)
        loss = functional.mse_loss(model(noises.add_noise(clean, noise, times), times).sample, noise)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        average.step(model.parameters())
        tell("loss", loss)
    tell_state(model, optimizer)
    average.copy_to(model.parameters())
    sampler = DDIMScheduler(100)
    sampler.set_timesteps(3, device=DEVICE)
    with torch.no_grad():
        made = torch.randn(1, 1, SIDE, SIDE).to(DEVICE)
        for time in sampler.timesteps:
            made = sampler.step(model(made, time).sample, time, made).prev_sample
    tell("made", made)


if __name__ == "__main__":
    main()
