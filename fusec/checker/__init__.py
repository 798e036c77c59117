"""The checker: a compiled step against the function it came from, every written rounding kept."""
from .debugger import Diagnosis, diagnose, until
from .entry import check, check_batch_mates, check_file_cases, compiled
from .report import Compared, Difference, Report

__all__ = ["Compared", "Diagnosis", "Difference", "Report", "check", "check_batch_mates", "check_file_cases", "compiled",
           "diagnose", "until"]
