"""The dialect of Moshi and PersonaPlex (``/api/chat``): binary messages, sound as one Ogg-Opus stream each way."""
