"""A gateway of several processes: workers that carry requests, and a supervisor that owns what there is once."""
