"""What this machine, and the engine on it, can do: limits, products, steps, and constants of them."""
