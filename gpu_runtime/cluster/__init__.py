"""Workers on other machines: each is a Ray actor, which Ray places, names, watches and starts again.

``open_cluster`` is for servers. ``actor`` is what runs over there, ``line`` is the server's end of it, and ``ray_actors``
is the only module that knows Ray, which is an extra.
"""
