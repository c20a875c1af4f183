//! Programs of Hugging Face and Lightning without knowledge of TrainingJob, killed in the middle of a save.
//! `devcluster/cluster images trainers` makes their image and prints its path for TRAININGJOB_TEST_TRAINERS_IMAGE.

use super::checkpoints::{checkpoint, logs, weights};
use super::world::world;
use api::State::Completed;
use serde_json::{Value, json};

#[tokio::test]
#[ignore = "soak: Hugging Face and Lightning themselves; proved in make test by node::checkpoints, \
            agents::checkpoints::run_resumes_from_the_newest_whole_checkpoint and files::checkpoints"]
async fn unchanged_trainers_resume_from_whole_checkpoints() {
    let Some(world) = world() else { return };
    let Ok(image) = std::env::var("TRAININGJOB_TEST_TRAINERS_IMAGE") else {
        return testkit::skipped("TRAININGJOB_TEST_TRAINERS_IMAGE is not set, `make soak` sets it");
    };
    world.cluster.devcluster(&["import", &image]);
    let space = world.space("trainers", json!({})).await;
    let hugging_face = json!([
        "/programs/hf_train.py",
        "--output_dir=/checkpoints",
        "--do_train",
        "--do_eval",
        "--num_train_epochs=3",
        "--per_device_train_batch_size=16",
        "--save_steps=10",
        "--eval_strategy=steps",
        "--eval_steps=10",
        "--logging_steps=5",
        "--report_to=none",
        "--use_cpu",
    ]);
    let lightning = json!(["/programs/lightning_train.py", "--checkpoint_dir=/checkpoints"]);
    let trainers = [
        (
            "hf",
            hugging_face,
            "--resume_from_checkpoint",
            "*/checkpoint-20/trainer_state.json",
            "optimizer.pt",
            "checkpoint-10",
        ),
        ("lightning", lightning, "--ckpt_path", "*/epoch=5-*.ckpt", ".", "epoch=4-"),
    ];
    for (name, args, option, at, half, from) in trainers {
        let job = |cut: &str| {
            let env = |name: &str, value: &str| json!({ "name": name, "value": value });
            let env: Vec<Value> = [("CUT_AT", at), ("CUT_HALF", half), ("CUT_ON", cut), ("OMP_NUM_THREADS", "1")]
                .map(|(n, v)| env(n, v))
                .into();
            json!({
                "image": "localhost/trainingjob-trainers:cpu", "numWorkers": 1, "command": ["python3", "/programs/cut.py"],
                "args": args, "env": env,
                "checkpoint": {
                    "storage": { "type": "pvc", "size": "1Gi" },
                    "resumeArgs": [option, "$(RESUME_FROM_CHECKPOINT)"],
                },
            })
        };
        let whole = space.submit(&format!("{name}-whole"), job("0")).await;
        let cut = space.submit(&format!("{name}-cut"), job("1")).await;
        whole.state(Completed).await;
        let status = cut.state(Completed).await;
        assert_eq!((status.attempt, status.restart_count), (Some(2), Some(1)), "{name}");
        let resumed = checkpoint(&status).resumed_from.clone().unwrap_or_default();
        assert!(resumed.starts_with(from), "{name} went on from {resumed:?}");
        let (whole, cut) = (logs(&space, &whole).await, logs(&space, &cut).await);
        assert_eq!(weights(&cut[0]), weights(&whole[0]), "{name}");
    }
    space.end().await;
}
