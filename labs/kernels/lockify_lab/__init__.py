"""Real Linux kernels as processes: clusters for work on DLM, GFS2 and OCFS2."""

from .build import Kernel
from .errors import Exit, LabError, UsageError
from .jobs import Result
from .lab import Lab
from .options import Options
from .tables import Tables, check_copies, check_single_master

__all__ = [
    "Exit",
    "Kernel",
    "Lab",
    "LabError",
    "Options",
    "Result",
    "Tables",
    "UsageError",
    "check_copies",
    "check_single_master",
]
