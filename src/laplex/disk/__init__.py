from laplex.disk._linear import linear

__all__ = ["linear"]
