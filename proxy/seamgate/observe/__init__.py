"""What operators see of a running gateway: logs, metrics."""
