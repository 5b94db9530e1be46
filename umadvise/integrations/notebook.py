"""`%load_ext umadvise`: a session that one line of a notebook opens and another one closes.

%umadvise model optimizer --budget 8GiB --policy auto    opens it, and calls it `um`
%umadvise --report run.json                              prints the report, and writes the profile
%umadvise --close                                        closes it
"""

from typing import Any

from IPython.core.magic import Magics, line_magic, magics_class
from IPython.core.magic_arguments import MagicArgumentParser
from IPython.utils.process import arg_split

from umadvise.errors import StateError
from umadvise.training.session import Session

OPTIONS = ("device", "capacity", "budget", "policy")
"""Of `umadvise.session`; who needs others opens it in Python."""


def _parser() -> MagicArgumentParser:
    parser = MagicArgumentParser("%umadvise", description="Opens, reports and closes a session of umadvise.")
    parser.add_argument("model", nargs="?", help="the module to train: a name or another expression")
    parser.add_argument("optimizer", nargs="?", help="its optimizer")
    for option in OPTIONS:
        parser.add_argument(f"--{option}", help="as for umadvise.session")
    parser.add_argument("--report", nargs="?", const="", metavar="FILE", help="print the report; write the profile")
    parser.add_argument("--close", action="store_true", help="close the session")
    return parser


@magics_class
class SessionMagics(Magics):
    """The line magic `%umadvise`, and the session that it has opened."""

    def __init__(self, shell: Any) -> None:
        """No session is open."""
        super().__init__(shell)
        self._session: Session | None = None

    @line_magic
    def umadvise(self, line: str) -> None:
        """Opens a session for what the line names, prints its report, or closes it.

        A session that is open already is closed first: cells are run again. A closed one can still report.

        Raises:
            StateError: no session was opened that could report.
        """
        said = _parser().parse_intermixed_args(arg_split(line))
        if said.model is not None:
            self._close()
            options = {name: vars(said)[name] for name in OPTIONS if vars(said)[name] is not None}
            optimizer = None if said.optimizer is None else self.shell.ev(said.optimizer)
            self._session = Session(self.shell.ev(said.model), optimizer, **options).__enter__()
            self.shell.push({"um": self._session})
        if said.report is not None:
            if self._session is None:
                raise StateError("no session was opened: `%umadvise model optimizer --budget 8GiB` opens one")
            self._session.report(said.report or None)
        if said.close:
            self._close()

    def _close(self) -> None:
        if self._session is not None:
            self._session.__exit__(None, None, None)


def load_ipython_extension(shell: Any) -> None:
    """Adds `%umadvise` to a notebook: what `%load_ext umadvise` calls."""
    shell.register_magics(SessionMagics(shell))
