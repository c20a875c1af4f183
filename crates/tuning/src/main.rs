//! The program behind `bench/tuning`.

use clap::Parser;
use std::io::stdout;
use std::process::ExitCode;
use tuning::{Arguments, Interrupted};

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match tuning::run(&arguments, &mut stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => match error.downcast_ref::<Interrupted>() {
            Some(interrupted) => ExitCode::from(interrupted.exit_code()),
            None => {
                eprintln!("tuning: {error:#}");
                ExitCode::FAILURE
            }
        },
    }
}
