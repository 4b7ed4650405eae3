"""OpenAI's Realtime dialect (GA): ``translation`` in, ``projection`` out, both pure."""
