"""The HTTP face of an engine: the OpenAI API, health, metrics, and the life of the serving process."""
