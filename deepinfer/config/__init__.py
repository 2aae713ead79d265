"""Configuration: plain YAML composed by Hydra, converted once into a frozen `Spec`. Imports no torch."""
