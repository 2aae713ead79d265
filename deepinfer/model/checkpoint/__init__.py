"""Released checkpoints: read, check, write, invent (dummy weights) and fetch them."""
