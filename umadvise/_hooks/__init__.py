"""The extension against the user's torch: allocator routing, storage adoption, the interposer. See hooks.h."""

from pathlib import Path

from umadvise.errors import UmadviseError


def core_headers() -> Path:
    """Where the core's headers lie: `csrc/include` of a checkout, else `include/` of the installed package.

    Raises:
        UmadviseError: they lie nowhere.
    """
    import umadvise

    installed = [Path(root, "include") for root in umadvise.__path__]
    for candidate in (Path(__file__).parents[2] / "csrc" / "include", *installed):
        if (candidate / "umadvise.h").is_file():
            return candidate
    raise UmadviseError(f"umadvise.h is missing: expected in {installed[0]}. Reinstall umadvise")
