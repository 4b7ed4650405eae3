"""The duplex dialect (vLLM-Omni's ``/v1/realtime?duplex=1``): OpenAI's events, numbered, with resume and playback acks."""
