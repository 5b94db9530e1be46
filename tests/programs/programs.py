"""Which programs are run, which of them CI runs, and where the long run leaves what it found."""

from running import ROOT, Program

FOUND = ROOT / "build" / "programs"

FAMILIES = (
    "resnet18",
    "vit_small_patch16_224",
    "convnext_pico",
    "mobilenetv3_large_100",
    "swin_tiny_patch4_window7_224",
    "mixer_s16_224",
)
PROGRAMS = {
    **{
        f"transformers, {words}": Program("transformers_trainer.py", (name,))
        for name, words in {
            "gpt2": "GPT-2, accumulation",
            "bert": "BERT, bfloat16",
            "t5": "T5, checkpointing",
            "llama": "Llama, LoRA by peft",
        }.items()
    },
    "transformers, GPT-2, callback": Program("transformers_trainer.py", ("gpt2",), session=True),
    "transformers, BERT, callback": Program("transformers_trainer.py", ("bert",), session=True),
    "accelerate": Program("accelerate_loop.py"),
    "accelerate, session": Program("accelerate_loop.py", session=True),
    "accelerate, bfloat16, session": Program("accelerate_loop.py", ("bf16",), session=True),
    "Lightning": Program("lightning_fit.py"),
    "Lightning, callback": Program("lightning_fit.py", session=True),
    "Lightning, bfloat16, callback": Program("lightning_fit.py", ("bf16",), session=True),
    **{f"timm, {name}": Program("timm_families.py", (name,), session=True) for name in FAMILIES},
    **{
        f"torch_geometric, {kind}": Program("geometric.py", (kind,), session=True) for kind in ("GCN", "GAT", "batches")
    },
    **{f"torch.optim, {group}": Program("optimizers.py", (group,)) for group in ("two", "light", "lbfgs", "sparse")},
    "DataLoader, workers": Program("loader_workers.py"),
    "notebook": Program("notebook.py", session=True),
    **{
        name: Program("causal_models.py", (word,))
        for name, word in {
            "transformers, Mamba": "mamba",
            "transformers, Mixtral": "mixtral",
            "transformers, kinds of cache": "caches",
            "peft beside bitsandbytes": "bitsandbytes",
            "trl, offloaded activations": "trl",
            "accelerate, map of devices": "dispatch",
            "schedulefree": "schedulefree",
        }.items()
    },
    "opacus": Program("differential_privacy.py"),
    "diffusers, UNet": Program("diffusion.py"),
    "gpytorch": Program("gaussian_process.py"),
    "detector, SiLU in place": Program("detection.py"),
    "stable-baselines3, PPO": Program("reinforcement.py"),
}
IN_CI = (
    "transformers, GPT-2, accumulation",
    "transformers, BERT, callback",
    "accelerate, session",
    "Lightning, bfloat16, callback",
    "timm, resnet18",
    "torch_geometric, GCN",
    "notebook",
    "transformers, kinds of cache",
    "detector, SiLU in place",
)
"""A library each of those that differ most, and each way in of docs/frameworks.md."""
