"""From a spec and a few facts to a frozen plan, or to everything that is wrong. No torch, no device, no weights."""
