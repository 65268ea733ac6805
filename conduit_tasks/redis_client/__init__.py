"""Redis as a server: connections to it, and Lua scripts as typed calls. Knows nothing of what is stored there."""
