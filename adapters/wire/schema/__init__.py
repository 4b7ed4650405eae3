"""Names, shapes and small helpers of the wire events, shared by the server's dialects and the client.

Nothing here imports more than the standard library, so that a client can use it without the server. ``names`` holds the
event types, ``errors`` the stable codes, ``audio`` the encodings and the arithmetic between bytes and ms, ``shapes``
the typed dictionaries and the few parsers that both sides must agree on.
"""
