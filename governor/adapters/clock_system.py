"""The system's clocks. The one place where wall and monotonic time are read."""

import time


class SystemClock:
    """See `governor.ports.Clock`."""

    def now_us(self) -> int:
        """Microseconds on the monotonic clock."""
        return time.monotonic_ns() // 1000

    def wall_s(self) -> float:
        """Unix time in seconds."""
        return time.time()
