"""A small model with the full V4.1-Flash architecture: data, tokenizer, training, export, evaluation."""
