"""Many ranks: groups that exchange tensors, experts and n-gram rows that live elsewhere, prompts that several ranks share."""
