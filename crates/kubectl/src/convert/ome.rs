//! OME's TrainingJob.

use super::fields::{Bad, Fields};
use super::ours::Ours;
use super::{gang, place, runtime, trainjob};

pub(super) fn convert(ours: &mut Ours, mut spec: Fields, runtimes: &[Fields]) -> Result<(), Bad> {
    let mut reference = spec.object("runtimeRef")?;
    let trainer = spec.object("trainer")?;
    runtime::workers(ours, &mut reference, trainer, runtimes)?;

    let mut model = spec.object("modelConfig")?;
    if let Some(input) = model.text("inputModel")? {
        ours.notes.lost(
            model.at("inputModel"),
            format!(
                "{input} is a BaseModel, which was mounted: here the program gets its name in MODEL, and no volume"
            ),
        );
        place::source(ours, &model.at("inputModel"), "model", &input);
    }
    let mut out = model.object("outputModel")?;
    if let Some(uri) = out.text("storageUri")? {
        place::output(ours, &out.at("storageUri"), &uri);
    }
    out.left(&mut ours.notes);
    model.left(&mut ours.notes);

    let mut datasets = spec.object("datasets")?;
    if let Some(uri) = datasets.text("storageUri")? {
        place::source(ours, &datasets.at("storageUri"), "dataset", &uri);
    }
    if let Some(secret) = datasets.text("storageKey")? {
        place::credentials(ours, &datasets.at("storageKey"), &secret);
    }
    datasets.left(&mut ours.notes);

    let tuning = "has no place here: one TrainingJob is one training, and a tuner (Katib, Optuna) makes several";
    spec.lose("hyperParameterTuningConfig", &mut ours.notes, tuning);
    spec.lose("compartmentID", &mut ours.notes, "has no place here");
    trainjob::children(ours, &mut spec)?;
    gang::suspend(ours, &mut spec)?;
    spec.left(&mut ours.notes);
    Ok(())
}
