//! The Trainer's TrainJob (v2), with its runtime.

use super::converted::ConvertedJob;
use super::fields::{ConvertError, Fields};
use super::{gang, place, runtime};

pub(super) fn convert(ours: &mut ConvertedJob, mut spec: Fields, runtimes: &[Fields]) -> Result<(), ConvertError> {
    let mut reference = spec.object("runtimeRef")?;
    let trainer = spec.object("trainer")?;
    runtime::workers(ours, &mut reference, trainer, runtimes)?;
    let mut initializer = spec.object("initializer")?;
    for (part, ours_is) in [("dataset", "dataset"), ("model", "model")] {
        let mut source = initializer.object(part)?;
        if let Some(uri) = source.text("storageUri")? {
            place::source(ours, &source.at("storageUri"), ours_is, &uri);
        }
        let mut secret = source.object("secretRef")?;
        if let Some(name) = secret.text("name")? {
            place::credentials(ours, &secret.at("name"), &name);
        }
        secret.left(&mut ours.notes);
        source.left(&mut ours.notes);
    }
    initializer.left(&mut ours.notes);
    children(ours, &mut spec)?;
    gang::lifetime(ours, &mut spec)?;
    for patches in ["runtimePatches", "podTemplateOverrides", "podSpecOverrides"] {
        spec.lose(patches, &mut ours.notes, "is not read: write it into podTemplate");
    }
    spec.left(&mut ours.notes);
    Ok(())
}

/// Copies labels and annotations for the objects that are created.
pub(super) fn children(ours: &mut ConvertedJob, of: &mut Fields) -> Result<(), ConvertError> {
    for list in ["labels", "annotations"] {
        let mut keys = of.object(list)?;
        ours.queue_label(&mut keys)?;
        for (key, value) in keys.clone().rest() {
            let known = ours.get(list).and_then(|known| known.get(&key)).filter(|known| **known != value);
            if plan::labels::is_refused(&key) {
                ours.notes.lost(keys.at(&key), "is set by the operator");
            } else if let Some(known) = known.cloned() {
                ours.notes.lost(keys.at(&key), format!("is {known} in spec.{list}, which all objects of the job have"));
            } else {
                ours.set_key(&[list, &key], value);
            }
        }
    }
    Ok(())
}
