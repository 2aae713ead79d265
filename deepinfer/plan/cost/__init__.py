"""What a plan costs: work, time, and how many ranks a traffic needs."""
