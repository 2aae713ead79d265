"""The HTTP side of serving: dialects, limits, keys, health. Imported by the verb that serves, and by nothing below."""
