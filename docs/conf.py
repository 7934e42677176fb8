"""Sphinx: the pages of this folder, and the reference from the docstrings. `make docs` builds them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # for docstrings.py

import laplex

project = "laplex"
author = "The laplex developers"
copyright = "The laplex developers"
version = release = laplex.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "docstrings"]
myst_heading_anchors = 3
suppress_warnings = ["myst.header"]  # of the included CONTRIBUTING.md and CHANGELOG.md

# The docstrings say types and shapes in words, and every signature would repeat them.
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False  # torch's own docstrings are torch's
add_module_names = False
python_use_unqualified_type_names = True

highlight_language = "none"  # of blocks that do not name one: formulas
smartquotes = False  # code in sentences must be copied as it is

html_theme = "furo"
html_title = "laplex"
html_static_path = ["_static"]
html_css_files = ["laplex.css"]
html_show_sphinx = False
html_copy_source = False
