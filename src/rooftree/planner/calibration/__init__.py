"""The cost model against measurements: points, fit, shipped constants, validation."""
