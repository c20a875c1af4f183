//! Drives the machine by all that can happen: every interleaving of small cases (`model`), and random ones of large
//! cases (`simulation`). Both run it in the same world and check the same rules.

mod cases;
mod model;
mod shift;
mod simulation;
mod state;
mod world;

pub(super) use shift::Times;
