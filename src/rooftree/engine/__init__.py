"""From a request to its tokens: ``LLM`` in process, ``AsyncLLM`` over a process, one ``EngineCore`` for both.

Nothing is imported here, so that a process loads only the part it runs.
"""
