"""Programs in other processes: what is sent, what comes back, and what happens when they die."""
