"""Train PyTorch models under a byte budget: unified memory, advice by role, and a page-fault report.

Importing this package changes nothing in torch and imports neither torch nor the native core.
"""

__version__ = "0.1.0"
