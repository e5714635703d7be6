"""What a layout should cost: memory, step times, steady state under load. Pure arithmetic."""
