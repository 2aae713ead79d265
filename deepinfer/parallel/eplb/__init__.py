"""Expert load balancing: loads that were measured, placements made for them, and weights moved while answers go on."""
