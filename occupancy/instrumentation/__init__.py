"""How calls are seen: the hooks in the HTTP clients, and what they note about where a call comes from."""
