"""How many nanoseconds, which is what logs and clocks count in, the other units are."""

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
