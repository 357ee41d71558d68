"""Programs in other processes: what travels, what comes back, and what happens when they die."""
