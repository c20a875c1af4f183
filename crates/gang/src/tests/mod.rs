//! The machine driven by all that can happen: every interleaving of a little (`model`), and a random one of a lot
//! (`simulation`). Both run it in the same world and hold it to the same rules.

mod cases;
mod model;
mod shift;
mod simulation;
mod state;
mod world;

pub(super) use shift::Times;
