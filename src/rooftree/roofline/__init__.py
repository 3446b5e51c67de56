"""The cost model: a step of the engine as FLOP, bytes and seconds, and the memory that serving takes."""
