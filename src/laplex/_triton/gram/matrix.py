"""Transitional name of ``launch``: delete this file when its last importer names ``launch`` or ``programs_matrix``."""

import sys

from laplex._triton.gram import launch

sys.modules[__name__] = launch
