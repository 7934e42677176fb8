"""A layer's step on a GPU: its launches, forward and backward, each recorded and replayed in one piece."""
