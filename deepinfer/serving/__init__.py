"""What stands between people and the engine: chat formats now, HTTP dialects with the server."""
