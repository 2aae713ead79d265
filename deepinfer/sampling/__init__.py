"""From logits to text: parameters, counter random numbers, the sampler, detokenising and stop strings."""
