"""The dialect of MiniCPM-o's demo (``/ws/duplex/{session_id}``): a chunk of sound in, exactly one result out."""
