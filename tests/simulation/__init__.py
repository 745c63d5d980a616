"""The gateway under a virtual clock: seeded random schedules of faults, thousands of them in seconds."""
