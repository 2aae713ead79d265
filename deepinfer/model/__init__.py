"""The V4.1 model as plain torch: its modules, its number formats, and the checkpoint reader and writer."""
