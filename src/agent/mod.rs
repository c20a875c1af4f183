//! The supervisor that runs as PID 1 of every worker's `training` container.
