"""The extension against the user's torch: allocator routing, storage adoption, the interposer. See hooks.h."""
