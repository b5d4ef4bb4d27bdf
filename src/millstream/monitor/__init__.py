"""What is known of a running system: status, lag, forecasts, losses, and warnings before data is lost."""
