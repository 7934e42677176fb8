"""The version: what is installed says it; a checkout on the path, not installed, says so."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("laplex")
except PackageNotFoundError:
    __version__ = "0+uninstalled"
