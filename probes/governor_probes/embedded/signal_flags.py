"""Bits of the `flags` field of a signal row (contract governor.signals/1)."""

from enum import IntFlag


class SignalFlag(IntFlag):
    """GAP is set by the feed where rows were dropped; everything else by the engine."""

    NON_FINITE = 1
    GAP = 2
    ANSWERING = 4
    LANDING = 8
    RECOMPUTED = 16
    FINISHED = 32
