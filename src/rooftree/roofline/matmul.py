"""One matrix product [M, K] x [K, N]: its work and its arithmetic intensity."""

from __future__ import annotations


def matmul_flop(m: int, k: int, n: int) -> int:
    """One multiply-add is 2 FLOP."""
    return 2 * m * k * n


def matmul_bytes(m: int, k: int, n: int, bytes_per_element: int = 2) -> int:
    """Both operands read and the result written, each once."""
    return bytes_per_element * (m * k + k * n + m * n)


def matmul_intensity(m: int, k: int, n: int, bytes_per_element: int = 2) -> float:
    """FLOP per byte of device memory moved."""
    return matmul_flop(m, k, n) / matmul_bytes(m, k, n, bytes_per_element)
