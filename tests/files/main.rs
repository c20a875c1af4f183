//! What needs no cluster and mostly computes: checkpoints, object stores, and the files of `deploy/` and `docs/`.

mod checkpoints;
mod checkpoints_jax_tf;
mod crates;
mod deploy;
mod docs;
mod store;
