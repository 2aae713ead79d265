"""Facts of the DeepSeek-V4.1 architecture, without torch: shapes, tensor names, cache bytes, hash constants."""
