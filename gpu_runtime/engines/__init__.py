"""Lanes on engines that batch token streams: a port, its fake, and vLLM behind it.

``port`` says what a lane engine promises; ``streamed`` keeps the promises over anything that can hold a request open and
take chunks (``requests``); ``vllm_requests`` is such a thing, and the tests have another. Only modules whose name begins with
``vllm`` import vllm or torch, and nothing outside this folder imports those.
"""
