"""What may be launched: models, hardware, workloads, layouts, and the engine's rules on them. Pure."""
