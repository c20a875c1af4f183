use super::*;
use crate::keep::{RetentionRules, to_delete};
use crate::remove::remove_save;
use crate::testing::{self, Room, as_nobody, killed_after, to_be_killed};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Times of a test's scans. Tests have their own clock, but files have times of the real one.
fn at(seconds: i64) -> Timestamp {
    Timestamp::now() + SignedDuration::from_secs(seconds)
}

fn inventory(room: &Room) -> Inventory {
    Inventory::with_formats(&room.path(""), "uid-1", "llama", testing::FORMATS)
}

/// A job that has looked once before anything was there.
fn begun(room: &Room) -> Inventory {
    let mut inventory = inventory(room);
    look(&mut inventory, 0);
    inventory
}

fn look(inventory: &mut Inventory, seconds: i64) -> Scan {
    inventory.scan(at(seconds), None, &Budget::default())
}

fn paths(scan: &Scan) -> Vec<&str> {
    scan.found.iter().map(|known| known.found.path.as_str()).collect()
}

fn one<'a>(scan: &'a Scan, path: &str) -> &'a KnownCheckpoint {
    scan.found.iter().find(|known| known.found.path == path).unwrap_or_else(|| panic!("{path} in {scan:?}"))
}

/// Changes bytes without changing length or time.
fn rot(room: &Room, path: &str, text: &str) {
    let time = fs::metadata(room.path(path)).unwrap().modified().unwrap();
    assert_eq!(fs::metadata(room.path(path)).unwrap().len(), text.len() as u64);
    room.write(path, text);
    fs::File::options().write(true).open(room.path(path)).unwrap().set_modified(time).unwrap();
}

#[test]
fn checkpoints_are_found_newest_first() {
    let room = Room::new();
    room.save("run/step-9");
    room.save("run/step-10");
    room.save("run/step-10/step-11"); // a part of it
    room.save(".hidden/step-2");
    room.save(".trainingjob/trash/step-3");
    room.save("lost+found/step-4");
    room.save("line\nbreak/step-1\x1b[31m");
    room.save("marked");
    room.write("run/shards-7.index", "x");
    room.write("run/shards-7.data", "xyz");
    room.write("run/notes.txt", "x");
    let scan = look(&mut inventory(&room), 0);
    let expected = ["run/step-10", "run/step-9", "run/shards-7", ".hidden/step-2"];
    assert_eq!(paths(&scan)[..4], expected);
    assert_eq!(scan.found.len(), 6);
    assert_eq!(one(&scan, "run/shards-7").found.bytes, 4);
    assert!(!one(&scan, "run/shards-7").found.folder);
    assert_eq!(one(&scan, "run/step-10").found.members.len(), 6);
    assert!(scan.whole && scan.notes.is_empty(), "{:?}", scan.notes);
}

#[test]
fn root_is_a_checkpoint_only_if_no_other_exists() {
    let room = Room::new();
    room.save(".");
    let scan = look(&mut begun(&room), 0);
    assert_eq!(paths(&scan), ["."]);
    let names: Vec<&str> = scan.found[0].found.members.iter().map(|member| member.path.as_str()).collect();
    assert_eq!(names, [".complete", "deep/er", "model"]);
    let mut inventory = inventory(&room);
    let known = inventory.verify(&scan.found[0].found, true, at(0), &Budget::default()).unwrap();
    assert!(known.is_proven());
    room.save("step-1");
    assert_eq!(paths(&look(&mut inventory, 0)), ["step-1"]);
}

#[test]
fn unchanged_checkpoint_is_not_judged_twice() {
    let room = Room::new();
    let mut inventory = begun(&room);
    room.save("step-1");
    look(&mut inventory, 0);
    let mut scan = look(&mut inventory, 10);
    assert_eq!(one(&scan, "step-1").found.depth, Depth::Structure);
    inventory.prove(&mut scan, 9, at(10), &Budget::default());
    assert!(one(&scan, "step-1").is_proven());
    rot(&room, "step-1/model", "badbad");
    let mut again = Inventory::with_formats(&room.path(""), "uid-1", "llama", testing::FORMATS);
    for inventory in [&mut inventory, &mut again] {
        let mut scan = look(inventory, 20);
        inventory.prove(&mut scan, 9, at(20), &Budget::default());
        assert!(one(&scan, "step-1").is_proven(), "remembered, by another process too");
        assert!(one(&scan, "step-1").own);
    }
    room.write("step-1/model", "badbad");
    let mut scan = look(&mut again, 30);
    assert_eq!(one(&scan, "step-1").found.depth, Depth::Structure);
    again.prove(&mut scan, 9, at(30), &Budget::default());
    assert!(!one(&scan, "step-1").is_proven(), "it is not quiet yet");
    let mut scan = look(&mut again, 40);
    again.prove(&mut scan, 9, at(40), &Budget::default());
    assert_eq!(one(&scan, "step-1").found.verdict, Verdict::Corrupted { file: "model".into(), why: "is bad".into() });
}

#[test]
fn bit_rot_is_detected_before_resuming() {
    let room = Room::new();
    let mut inventory = begun(&room);
    room.save("step-1");
    let found = one(&look(&mut inventory, 0), "step-1").found.clone();
    let verify = |inventory: &mut Inventory, again| inventory.verify(&found, again, at(1), &Budget::default()).unwrap();
    assert!(verify(&mut inventory, true).is_proven());
    rot(&room, "step-1/model", "step-2");
    assert!(verify(&mut inventory, false).is_proven());
    let known = verify(&mut inventory, true);
    assert!(matches!(&known.found.verdict, Verdict::Corrupted { file, .. } if file == "model"), "{known:?}");
    assert!(!one(&look(&mut inventory, 9), "step-1").found.is_good(), "it is remembered");
    rot(&room, "step-1/model", "step-1");
    assert!(verify(&mut inventory, true).is_proven(), "a server that read badly once");
}

/// Number of bytes read, and whether the checkpoint was found good.
fn reading(inventory: &mut Inventory, path: &str) -> (u64, bool) {
    let found = one(&look(inventory, 0), path).found.clone();
    let bytes = Arc::new(AtomicU64::new(0));
    let budget = Budget::default().counted_by(Arc::clone(&bytes));
    let known = inventory.verify(&found, true, at(1), &budget).unwrap();
    (bytes.load(Ordering::Relaxed), known.is_proven())
}

#[test]
fn proven_checkpoint_is_reread_only_if_it_changes() {
    let room = Room::new();
    room.save("step-1");
    let proofs = Proofs::default();
    // Each attempt has an inventory of its own.
    let attempt = || inventory(&room).with_proofs(&proofs);
    let (all, is_good) = reading(&mut attempt(), "step-1");
    assert!(is_good && all == 10, "{all}");
    assert_eq!(reading(&mut attempt(), "step-1"), (0, true));
    fs::remove_dir_all(room.path(".trainingjob")).unwrap();
    assert_eq!(reading(&mut attempt(), "step-1"), (0, true), "it does not rest on the ledger");
    assert_eq!(reading(&mut inventory(&room), "step-1"), (all, true), "another container");
    rot(&room, "step-1/model", "step-2");
    assert_eq!(reading(&mut attempt(), "step-1"), (all, false), "by the time of change alone");
    rot(&room, "step-1/model", "step-1");
    assert_eq!(reading(&mut attempt(), "step-1"), (all, true), "what is bad is no proof");
    assert_eq!(reading(&mut attempt(), "step-1"), (0, true));
    fs::rename(room.path("step-1/model"), room.path("old")).unwrap();
    room.write("step-1/model", "step-1");
    let time = fs::metadata(room.path("old")).unwrap().modified().unwrap();
    fs::File::options().write(true).open(room.path("step-1/model")).unwrap().set_modified(time).unwrap();
    assert_eq!(reading(&mut attempt(), "step-1"), (all, true), "another file of that name, length and time");
    room.write("step-1/more", "x");
    assert_eq!(reading(&mut attempt(), "step-1"), (all + 1, true), "another file beside");
    fs::rename(room.path("step-1"), room.path("step-2")).unwrap();
    assert_eq!(reading(&mut attempt(), "step-2"), (all + 1, true), "another path");
}

/// The verdict on a checkpoint is the same whether it is read in one step or in two, and whether it is known or not.
#[test]
fn verdicts_are_equal_for_one_step_and_two_step_reads() {
    let room = Room::new();
    let mut keeper = begun(&room);
    for step in 1..=4 {
        room.save(&format!("step-{step}"));
    }
    rot(&room, "step-2/model", "badbad");
    room.write("step-3/model", "");
    std::fs::remove_file(room.path("step-4/.complete")).unwrap();
    let judged = |scan: &Scan| -> Vec<_> {
        let of = |known: &KnownCheckpoint| (known.found.clone(), known.stage, known.crc32c.clone());
        scan.found.iter().map(of).collect()
    };
    let new = || Inventory::with_formats(&room.path(""), "", "", testing::FORMATS);
    for now in [0, 3600] {
        let mut apart = new();
        let mut scan = look(&mut apart, now);
        for known in scan.found.iter_mut().filter(|known| known.found.is_good()) {
            *known = apart.verify(&known.found, true, at(now), &Budget::default()).unwrap();
        }
        let at_once = new().read(at(now), &Budget::default());
        assert_eq!(judged(&at_once), judged(&scan));
        assert!(one(&at_once, "step-1").is_proven());
        assert!(at_once.notes.is_empty(), "{:?}", at_once.notes);
    }
    // A checkpoint that the keeper has read is read again and compared with the recorded checksums.
    let found = one(&look(&mut keeper, 10), "step-1").found.clone();
    assert!(keeper.verify(&found, true, at(10), &Budget::default()).unwrap().is_proven());
    rot(&room, "step-1/model", "step-9");
    let scan = new().read(at(20), &Budget::default());
    assert!(matches!(one(&scan, "step-1").found.verdict, Verdict::Corrupted { .. }), "{scan:?}");
}

#[test]
fn checkpoint_being_written_differs_from_an_abandoned_one() {
    let room = Room::new();
    let mut inventory = begun(&room);
    room.write("step-1/model", "x");
    room.write("step-2/model", "");
    room.write("step-2/.complete", "");
    let scan = look(&mut inventory, 0);
    assert_eq!(one(&scan, "step-1").stage, Stage::Writing);
    assert_eq!(one(&scan, "step-2").stage, Stage::Writing, "half a file looks like a bad one");
    assert_eq!(one(&scan, "step-2").found.verdict, Verdict::Incomplete { why: "model: is empty".into() });
    let scan = look(&mut inventory, 6);
    assert_eq!(one(&scan, "step-1").stage, Stage::Writing);
    assert!(matches!(one(&scan, "step-2").found.verdict, Verdict::Corrupted { .. }));
    let scan = inventory.scan(at(7), Some(at(5)), &Budget::default());
    assert_eq!(one(&scan, "step-1").stage, Stage::Abandoned, "of an attempt before");
    assert_eq!(one(&look(&mut inventory, 601), "step-1").stage, Stage::Abandoned);
    room.write("step-1/more", "x");
    fs::File::open(room.path("step-1/more")).unwrap().set_modified((at(601)).into()).unwrap();
    assert_eq!(one(&look(&mut inventory, 602), "step-1").stage, Stage::Writing);
}

#[test]
fn backward_clock_jump_is_harmless() {
    let room = Room::new();
    let mut inventory = begun(&room);
    room.save("step-1");
    room.write("step-2/model", "x");
    look(&mut inventory, 7200);
    let mut scan = look(&mut inventory, 7210);
    inventory.prove(&mut scan, 9, at(7210), &Budget::default());
    let scan = look(&mut inventory, -7200);
    assert!(one(&scan, "step-1").is_proven());
    assert_eq!(one(&scan, "step-2").stage, Stage::Writing);
    assert!(one(&scan, "step-2").since <= at(-7100), "time is counted anew");
}

/// A folder that was unreadable for a moment does not cost a checkpoint its owner permanently.
#[test]
fn unlistable_jobs_folder_does_not_cost_ownership() {
    let room = Room::new();
    let mut inventory = begun(&room);
    room.save("step-1");
    look(&mut inventory, 1);
    let (jobs, away) = (room.path(".trainingjob/jobs"), room.path(".trainingjob/away"));
    fs::rename(&jobs, &away).unwrap();
    fs::write(&jobs, "").unwrap();
    room.save("step-2");
    room.write("step-1/model", "good");
    let mut scan = look(&mut inventory, 20);
    assert_eq!(scan.others, ["(jobs that can't be listed)"], "nothing is deleted");
    assert_eq!(paths(&scan), ["step-2", "step-1"]);
    inventory.prove(&mut scan, 9, at(20), &Budget::default());
    fs::remove_file(&jobs).unwrap();
    fs::rename(&away, &jobs).unwrap();
    for seconds in [21, 40] {
        let mut scan = look(&mut inventory, seconds);
        inventory.prove(&mut scan, 9, at(seconds), &Budget::default());
        assert!(scan.found.iter().all(|known| known.own), "{scan:?}");
    }
}

#[test]
fn job_owns_only_checkpoints_written_during_its_run() {
    let room = Room::new();
    room.save("step-1");
    let mut inventory = begun(&room);
    room.save("step-2");
    let scan = look(&mut inventory, 1);
    assert_eq!([one(&scan, "step-1").own, one(&scan, "step-2").own], [false, true]);
    room.save("copied/step-3");
    for file in ["model", "deep/er", ".complete"] {
        let file = fs::File::open(room.path("copied/step-3").join(file)).unwrap();
        file.set_modified(at(-9999).into()).unwrap();
    }
    assert!(!one(&look(&mut inventory, 2), "copied/step-3").own, "older than the job");

    ledger::heartbeat(&Folder::root(&room.path("")).unwrap(), "uid-2", "bert", RootClaim::Holds, at(3)).unwrap();
    room.save("step-4");
    let scan = look(&mut inventory, 3);
    assert_eq!(scan.others, ["bert"]);
    assert!(!one(&scan, "step-4").own, "either may have written it");
    assert!(one(&scan, "step-2").own);
    assert!(!one(&look(&mut inventory, 999), "step-4").own);

    let mut other = Inventory::with_formats(&room.path(""), "uid-2", "bert", testing::FORMATS);
    look(&mut other, 2000);
    assert!(look(&mut other, 2001).found.iter().all(|known| !known.own));
    let mut onlooker = Inventory::with_formats(&room.path(""), "", "", testing::FORMATS);
    let before = fs::read(room.path(".trainingjob/ledger.json")).unwrap();
    room.save("step-5");
    assert!(look(&mut onlooker, 2002).found.iter().all(|known| !known.own));
    assert_eq!(fs::read(room.path(".trainingjob/ledger.json")).unwrap(), before);
    inventory.leave().unwrap();
    assert_eq!(look(&mut other, 2003).others, [""; 0]);
}

#[test]
fn lost_ledger_does_not_grant_ownership() {
    let room = Room::new();
    let mut inventory = begun(&room);
    room.save("step-1");
    assert!(one(&look(&mut inventory, 1), "step-1").own);
    room.write(".trainingjob/ledger.json", "{}");
    let mut again = self::inventory(&room);
    let scan = look(&mut again, 2);
    assert!(!one(&scan, "step-1").own);
    assert!(scan.notes[0].contains("ledger.json is not used"), "{:?}", scan.notes);
    assert!(look(&mut again, 3).notes.is_empty(), "it is written anew");
}

#[test]
fn failed_starts_count_until_the_checkpoint_is_rewritten() {
    let room = Room::new();
    let mut inventory = begun(&room);
    room.save("step-1");
    look(&mut inventory, 1);
    assert_eq!(inventory.failed_start("step-1"), 1);
    assert_eq!(inventory.failed_start("step-1"), 2);
    assert_eq!(inventory.failed_start("step-9"), 0);
    let mut again = self::inventory(&room);
    assert_eq!(one(&look(&mut again, 2), "step-1").failed_starts, 2);
    again.good_start("step-1");
    assert_eq!(one(&look(&mut again, 2), "step-1").failed_starts, 0);
    again.failed_start("step-1");
    room.write("step-1/model", "other");
    assert_eq!(one(&look(&mut again, 3), "step-1").failed_starts, 0);
}

#[test]
fn unusable_root_is_reported() {
    let room = Room::new();
    let missing = room.path("missing");
    let mut inventory = Inventory::with_formats(&missing, "uid-1", "llama", testing::FORMATS);
    let scan = look(&mut inventory, 0);
    assert!(!scan.whole && scan.notes[0].contains("No such file"), "{:?}", scan.notes);
    room.write("missing", "a file");
    let scan = look(&mut inventory, 0);
    assert!(!scan.whole && scan.notes[0].contains("Not a directory"), "{:?}", scan.notes);
}

#[test]
fn permission_errors_are_reported_and_state_stays_in_memory() {
    std::thread::spawn(|| {
        as_nobody();
        let room = Room::new();
        room.save("step-1");
        room.save("locked/step-2");
        room.save("step-3");
        room.write("step-3/secret/file", "x");
        let set = |path: &str, mode| fs::set_permissions(room.path(path), Permissions::from_mode(mode)).unwrap();
        set("locked", 0);
        set("step-3/secret", 0);
        set("", 0o500);
        let mut inventory = inventory(&room);
        look(&mut inventory, 0);
        let mut scan = look(&mut inventory, 10);
        inventory.prove(&mut scan, 9, at(10), &Budget::default());
        let scan = look(&mut inventory, 11);
        set("", 0o700);
        set("locked", 0o700);
        set("step-3/secret", 0o700);
        assert_eq!(paths(&scan).len(), 2);
        assert!(one(&scan, "step-1").is_proven(), "kept in memory");
        assert_eq!(one(&scan, "step-3").stage, Stage::Unread);
        let notes = scan.notes.join("\n");
        for part in ["locked: not looked into: ", "step-3: could not be looked at: ", "ledger.json can't be written"] {
            assert!(notes.contains(part), "{part} in {notes}");
        }
    })
    .join()
    .unwrap();
}

/// A checkpoint of another user that only that user can read.
#[test]
fn unreadable_file_of_another_user_is_reported_and_harmless() {
    std::thread::spawn(|| {
        as_nobody();
        let room = Room::new();
        let mut inventory = begun(&room);
        for step in 1..4 {
            room.save(&format!("step-{step}"));
        }
        let set = |path: &str, mode| fs::set_permissions(room.path(path), Permissions::from_mode(mode)).unwrap();
        set("step-3/model", 0);
        look(&mut inventory, 0);
        let mut scan = look(&mut inventory, 10);
        inventory.prove(&mut scan, 9, at(10), &Budget::default());
        let locked = one(&scan, "step-3");
        assert!(!locked.is_proven() && locked.found.is_good(), "nothing is known of its bytes: {locked:?}");
        let notes = scan.notes.join("\n");
        assert!(notes.contains("step-3: could not be read to its end: model: Permission denied"), "{notes}");
        // It is not resumed from, and it supersedes nothing: the older of the two that were read stays too.
        let error = inventory.verify(&locked.found, true, at(11), &Budget::default()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(
            to_delete(&scan.found, &RetentionRules { retention: 2, ..RetentionRules::default() }, at(11)),
            [""; 0]
        );
        set("step-3/model", 0o600);
        assert!(inventory.verify(&locked.found, true, at(12), &Budget::default()).unwrap().is_proven());

        // A single file that can't even be opened, with the formats that there are.
        room.write("model.pt", "x");
        set("model.pt", 0);
        let scan = Inventory::new(&room.path(""), "", "").scan(at(13), None, &Budget::default());
        let locked = one(&scan, "model.pt");
        assert_eq!(locked.stage, Stage::Unread);
        let expected = "it could not be looked at: model.pt: Permission denied";
        assert!(
            matches!(&locked.found.verdict, Verdict::Incomplete { why } if why.starts_with(expected)),
            "{locked:?}"
        );
    })
    .join()
    .unwrap();
}

/// A Complete checkpoint differs from a Valid one only in that damage may be undetected.
#[test]
fn complete_checkpoint_is_used_like_a_valid_one() {
    let room = Room::new();
    let mut inventory = Inventory::new(&room.path(""), "uid-1", "llama");
    look(&mut inventory, 0);
    for step in 1..4 {
        room.save(&format!("step-{step}"));
        look(&mut inventory, 0);
    }
    let mut scan = look(&mut inventory, 10);
    inventory.prove(&mut scan, 9, at(10), &Budget::default());
    for known in &scan.found {
        assert!(matches!(known.found.verdict, Verdict::Complete { .. }) && known.is_proven(), "{known:?}");
        let again = inventory.verify(&known.found, true, at(11), &Budget::default()).unwrap();
        assert_eq!(again.found.verdict, known.found.verdict, "the same bytes are worth the same");
    }
    assert_eq!(
        to_delete(&scan.found, &RetentionRules { retention: 2, ..RetentionRules::default() }, at(12)),
        ["step-1"]
    );
    rot(&room, "step-3/model", "step-2");
    let known = inventory.verify(&scan.found[0].found, true, at(12), &Budget::default()).unwrap();
    assert!(matches!(&known.found.verdict, Verdict::Corrupted { file, .. } if file == "model"), "{known:?}");
    rot(&room, "step-3/model", "step-3");
    let known = inventory.verify(&scan.found[0].found, true, at(12), &Budget::default()).unwrap();
    assert!(matches!(known.found.verdict, Verdict::Complete { .. }) && known.is_proven(), "{known:?}");
}

#[test]
fn links_and_devices_are_not_followed() {
    let room = Room::new();
    room.save("elsewhere/step-1");
    fs::create_dir(room.path("root")).unwrap();
    symlink(room.path("elsewhere"), room.path("root/link")).unwrap();
    symlink(room.path("elsewhere/step-1"), room.path("root/step-2")).unwrap();
    room.save("root/step-3");
    symlink("/etc/passwd", room.path("root/step-3/passwd")).unwrap();
    mkfifo(&room.path("root/step-3/fifo"), Mode::from_bits_truncate(0o600)).unwrap();
    let _listener = UnixListener::bind(room.path("root/step-3/socket")).unwrap();
    let mut inventory = Inventory::with_formats(&room.path("root"), "uid-1", "llama", testing::FORMATS);
    let scan = look(&mut inventory, 0);
    assert_eq!(paths(&scan), ["step-3"]);
    assert_eq!(scan.found[0].found.members.len(), 3);
    fs::remove_dir_all(room.path("root/.trainingjob")).unwrap();
    symlink(room.path("elsewhere"), room.path("root/.trainingjob")).unwrap();
    let scan = look(&mut inventory, 1);
    assert_eq!(paths(&scan), ["step-3"]);
    assert_eq!(fs::read_dir(room.path("elsewhere")).unwrap().count(), 1, "nothing was written through a link");
}

#[test]
fn folder_with_too_many_entries_is_skipped() {
    let room = Room::new();
    for index in 0..20_000 {
        fs::File::create(room.path("").join(format!("{index}"))).unwrap();
    }
    fs::create_dir(room.path("data")).unwrap();
    for index in 0..20_000 {
        fs::rename(room.path(&index.to_string()), room.path(&format!("data/{index}"))).unwrap();
    }
    room.save("step-1");
    let mut inventory = inventory(&room);
    let scan = inventory.scan(at(0), None, &Budget::default().entries(10_000));
    assert_eq!(paths(&scan), ["step-1"]);
    assert_eq!(scan.notes, ["data: not looked into: it has more than 5000 entries"]);
    assert!(scan.whole, "it will never be otherwise");
    // Nor do several, or many small ones further below.
    for name in ["data-2", "data-3"] {
        fs::create_dir(room.path(name)).unwrap();
        for index in 0..6000 {
            fs::hard_link(room.path("data/0"), room.path(&format!("{name}/{index}"))).unwrap();
        }
    }
    room.save("run/step-2");
    let budget = Budget::default().entries(10_000);
    for _ in 0..2 {
        let scan = inventory.scan(at(1), None, &budget);
        assert_eq!((paths(&scan), scan.notes.len(), scan.whole), (vec!["run/step-2", "step-1"], 3, true));
    }
    let scan = inventory.scan(at(1), None, &Budget::default().entries(4));
    assert_eq!((scan.found.len(), scan.whole), (0, false), "the root itself has more: nothing is forgotten");
    assert_eq!(scan.notes, ["the root: not looked into: it has more than 2 entries"]);
    for class in 0..12 {
        for index in 0..1000 {
            let folder = room.path(&format!("data-4/of-a-set/{class}"));
            fs::create_dir_all(&folder).unwrap();
            fs::hard_link(room.path("data/0"), folder.join(index.to_string())).unwrap();
        }
    }
    let scan = inventory.scan(at(2), None, &Budget::default().entries(10_000));
    assert_eq!((paths(&scan), scan.whole), (vec!["run/step-2", "step-1"], false));
    let note = scan.notes.iter().find(|note| note.starts_with("data-4/of-a-set/9: not looked into: "));
    assert!(note.is_some_and(|note| note.contains("keep data sets")), "{:?}", scan.notes);
    fs::remove_dir_all(room.path("data-4")).unwrap();
    let deep = "a/".repeat(DEPTH + 1);
    room.save(&format!("{deep}step-2"));
    let scan = look(&mut inventory, 1);
    assert_eq!(paths(&scan), ["run/step-2", "step-1"]);
    assert!(scan.notes.iter().any(|note| note.contains("folders deep")), "{:?}", scan.notes);
}

#[test]
fn stopped_scan_forgets_nothing() {
    let room = Room::new();
    let mut inventory = begun(&room);
    room.save("step-1");
    look(&mut inventory, 0);
    let mut scan = look(&mut inventory, 10);
    inventory.prove(&mut scan, 9, at(10), &Budget::default());
    let stopped = || Budget::default().stopped_by(Arc::new(AtomicBool::new(true)));
    for budget in [stopped(), Budget::default().time(std::time::Duration::ZERO)] {
        let scan = inventory.scan(at(11), None, &budget);
        assert!(!scan.whole && !scan.notes.is_empty());
        assert!(scan.found.iter().all(|known| known.stage == Stage::Unread));
    }
    let scan = look(&mut inventory, 12);
    assert!(one(&scan, "step-1").is_proven());
    let error = inventory.verify(&scan.found[0].found, true, at(13), &stopped()).unwrap_err();
    assert!(error.to_string().contains("stopped"), "{error}");
}

#[test]
fn panicking_format_does_not_affect_other_checkpoints() {
    let room = Room::new();
    room.save("step-1");
    room.save("step-2");
    room.write("step-2/panic", "x");
    let scan = look(&mut inventory(&room), 0);
    assert!(one(&scan, "step-1").found.is_good());
    assert_eq!(one(&scan, "step-2").stage, Stage::Unread);
}

/// A program that writes, overwrites and deletes during a scan.
#[test]
fn files_that_vanish_during_a_scan_are_harmless() {
    let room = Room::new();
    let mut inventory = begun(&room);
    room.save("step-0");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0.. {
                let path = format!("step-{}", 1 + round % 3);
                room.save(&path);
                room.write(&format!("shards-{}.index", round % 3), "x");
                let _ = fs::remove_dir_all(room.path(&format!("step-{}", 1 + (round + 1) % 3)));
                let _ = fs::remove_file(room.path(&format!("shards-{}.index", (round + 1) % 3)));
                if stop.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
            }
        });
        for second in 0..200 {
            let mut scan = look(&mut inventory, second);
            assert!(one(&scan, "step-0").found.is_good());
            inventory.prove(&mut scan, 9, at(second), &Budget::default());
            for known in &scan.found {
                assert!(
                    !matches!(known.found.verdict, Verdict::Corrupted { .. }) || known.stage != Stage::Written,
                    "{known:?}"
                );
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

/// End to end: a program saves, and the newest two proven saves stay.
#[test]
fn retention_keeps_the_newest_saves_end_to_end() {
    let room = Room::new();
    room.save("step-1");
    let mut inventory = begun(&room);
    let keep = RetentionRules { retention: 2, ..RetentionRules::default() };
    for step in 2..8 {
        room.save(&format!("step-{step}"));
        look(&mut inventory, step * 10);
        let mut scan = look(&mut inventory, step * 10 + 6);
        inventory.prove(&mut scan, 3, at(step * 10 + 6), &Budget::default());
        let root = Folder::root(&room.path("")).unwrap();
        for path in to_delete(&scan.found, &keep, at(step * 10 + 6)) {
            remove_save(&root, &[&one(&scan, &path).found], &Budget::default()).unwrap();
        }
    }
    assert_eq!(paths(&look(&mut inventory, 100)), ["step-7", "step-6", "step-1"]);
}

#[test]
fn checkpoint_begun_as_an_empty_folder_is_owned() {
    let room = Room::new();
    let mut inventory = begun(&room);
    fs::create_dir(room.path("step-1")).unwrap();
    look(&mut inventory, 1);
    room.save("step-1");
    assert!(one(&look(&mut inventory, 2), "step-1").own);
}

#[test]
fn kill_at_any_instant_leaves_the_ledger_intact() {
    for steps in 0.. {
        let room = Room::new();
        let mut inventory = begun(&room);
        room.save("step-1");
        look(&mut inventory, 1);
        let is_done = killed_after(steps, &room, concat!(module_path!(), "::child"));
        let scan = look(&mut self::inventory(&room), 20);
        assert_eq!(scan.notes, [""; 0], "after {steps} steps");
        assert!(one(&scan, "step-1").own, "after {steps} steps");
        if is_done {
            assert!(steps > 10, "{steps} steps");
            return;
        }
    }
}

#[test]
#[ignore = "is begun and killed by another test"]
fn child() {
    let Some(root) = to_be_killed() else { return };
    let mut inventory = Inventory::with_formats(&root, "uid-1", "llama", testing::FORMATS);
    let mut scan = look(&mut inventory, 10);
    inventory.prove(&mut scan, 1, at(10), &Budget::default());
    inventory.failed_start("step-1");
}

#[test]
fn checkpoint_that_changes_while_read_is_not_judged() {
    let room = Arc::new(Room::new());
    let mut inventory = begun(&room);
    room.save("step-1");
    look(&mut inventory, 0);
    let scan = look(&mut inventory, 6);
    let writes = |path: &'static str| {
        let room = room.clone();
        let act: Box<dyn Fn()> = Box::new(move || room.write(path, "longer than it was"));
        testing::MEANWHILE.set(Some(act));
    };
    writes("step-1/new");
    let error = inventory.verify(&scan.found[0].found, false, at(7), &Budget::default()).unwrap_err();
    assert!(error.to_string().contains("changes"), "{error}");
    writes("step-1/model");
    let scan = look(&mut inventory, 8);
    assert_eq!(one(&scan, "step-1").stage, Stage::Unread);
    testing::MEANWHILE.set(None);
    assert!(look(&mut inventory, 9).found[0].found.is_good());
}

/// Finding 2: a known checkpoint that can't be read at present may be good.
#[test]
fn known_checkpoint_in_an_unreadable_folder_is_unread() {
    std::thread::spawn(|| {
        as_nobody();
        let room = Room::new();
        let mut inventory = begun(&room);
        room.save("run/step-1");
        look(&mut inventory, 10);
        let folder = room.path("run");
        fs::set_permissions(&folder, Permissions::from_mode(0o000)).unwrap();
        let scan = look(&mut inventory, 20);
        fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
        let known = one(&scan, "run/step-1");
        assert_eq!((known.stage, known.own, known.found.step), (Stage::Unread, true, Some(1)));
        assert!(one(&look(&mut inventory, 30), "run/step-1").own, "it is not forgotten");
    })
    .join()
    .unwrap();
}

/// An earlier job's checkpoint that this job has overwritten is this job's.
#[test]
fn rewritten_checkpoint_belongs_to_its_last_writer() {
    let room = Room::new();
    let mut first = begun(&room);
    room.save("step-1");
    room.save("step-2");
    look(&mut first, 10);
    first.leave().unwrap();
    let mut second = Inventory::with_formats(&room.path(""), "uid-2", "llama", testing::FORMATS);
    assert!(!one(&look(&mut second, 20), "step-1").own);
    // The second job rewrites all files: those that the first job wrote in an earlier second are not its own.
    for file in ["model", "deep/er", ".complete"] {
        room.write(&format!("step-1/{file}"), "written by the second");
    }
    let scan = look(&mut second, 30);
    assert_eq!((one(&scan, "step-1").own, one(&scan, "step-2").own), (true, false));
    assert!(second.is_others("step-2") && !second.is_others("step-1"));
}

#[test]
fn resume_from_is_recorded_as_used_by_its_value() {
    let room = Room::new();
    let mut inventory = begun(&room);
    assert!(inventory.is_new() && !inventory.has_used("a"));
    room.save("step-1");
    look(&mut inventory, 10);
    inventory.use_wish("a");
    let mut again = self::inventory(&room);
    let scan = look(&mut again, 20);
    assert!(again.has_used("a") && !again.has_used("b") && !again.is_new());
    assert!(!one(&scan, "step-1").own, "it was written before");
    room.save("step-2");
    assert!(one(&look(&mut again, 30), "step-2").own);
    let mut other = Inventory::with_formats(&room.path(""), "uid-2", "llama", testing::FORMATS);
    look(&mut other, 40);
    assert!(!other.has_used("a"), "another job has a wish of its own");
}

/// An older ledger does not record `resumeFrom`. A job that has written there has used its own.
#[test]
fn resume_from_counts_as_used_in_an_older_ledger() {
    let room = Room::new();
    let mut inventory = begun(&room);
    room.save("step-1");
    look(&mut inventory, 10);
    let mut again = self::inventory(&room);
    look(&mut again, 20);
    assert!(again.has_used("a"));
    again.use_no_wish();
    assert!(!again.has_used("a"), "it had none, and is given one");
}

#[test]
fn failed_starts_of_another_job_do_not_count() {
    let room = Room::new();
    let mut first = begun(&room);
    room.save("step-1");
    look(&mut first, 10);
    assert_eq!((first.failed_start("step-1"), first.failed_start("step-1")), (1, 2));
    first.leave().unwrap();
    let mut second = Inventory::with_formats(&room.path(""), "uid-2", "llama", testing::FORMATS);
    assert_eq!(one(&look(&mut second, 20), "step-1").failed_starts, 0);
    assert_eq!(second.failed_start("step-1"), 1);
}

/// `model_100.pt` is useless without `optimizer_100.pt`. Files without a number lie beside both.
#[test]
fn files_with_the_same_number_belong_to_one_checkpoint() {
    let room = Room::new();
    room.write("run/optimizer_7.pt", "of another job");
    let mut inventory = Inventory::new(&room.path(""), "uid-1", "llama");
    look(&mut inventory, 0);
    for file in ["model_100.pt", "optimizer_100.pt", "scheduler_0100.pt", "model_7.pt", "rng_state.pt", "config.json"] {
        room.write(&format!("run/{file}"), file);
    }
    let scan = look(&mut inventory, 1);
    let members = |path: &str| -> Vec<&str> {
        one(&scan, path).found.members.iter().map(|member| member.path.as_str()).collect()
    };
    assert_eq!(members("run/model_100.pt"), ["model_100.pt", "optimizer_100.pt", "scheduler_0100.pt"]);
    let beside: Vec<&str> = scan.beside["run"].iter().map(|member| member.path.as_str()).collect();
    assert_eq!(beside, ["config.json", "rng_state.pt"]);
    assert!(one(&scan, "run/model_100.pt").own);
}

/// A checkpoint of an earlier job that this job has overwritten is copied, counted, and deleted as its own.
#[test]
fn overwritten_checkpoint_becomes_the_jobs_own() {
    let room = Room::new();
    room.save("step-1");
    room.save("step-2");
    let mut inventory = begun(&room);
    assert!(!one(&look(&mut inventory, 1), "step-1").own);
    std::thread::sleep(std::time::Duration::from_millis(1100));
    room.save("step-1");
    room.write("step-1/model", "longer than what was there");
    room.save("step-2");
    let scan = look(&mut inventory, 2);
    assert!(one(&scan, "step-1").own);
    assert!(!one(&scan, "step-2").own, "it was perhaps only touched");
}

/// A program may save often. Checkpoints first seen by one scan are ordered by times that fit, or else not at all.
#[test]
fn checkpoints_of_one_scan_are_ordered_by_plausible_times() {
    let room = Room::new();
    let mut inventory = begun(&room);
    let set = |step: u64, time: std::time::SystemTime| {
        for file in ["model", "deep/er", ".complete"] {
            let file = fs::File::options().write(true).open(room.path(&format!("step-{step}/{file}"))).unwrap();
            file.set_modified(time).unwrap();
        }
    };
    let now = std::time::SystemTime::now();
    for step in 1..6 {
        room.save(&format!("step-{step}"));
        set(step, now + std::time::Duration::from_millis(step));
    }
    set(4, now - std::time::Duration::from_secs(7200));
    let mut scan = look(&mut inventory, 1);
    let order = |scan: &Scan, step: u64| {
        let found = &one(scan, &format!("step-{step}")).found;
        (found.earliest, found.order)
    };
    assert_eq!([1, 2, 3, 4, 5].map(|step| order(&scan, step)), [(1, 1), (2, 2), (3, 3), (1, 4), (4, 4)]);
    scan = look(&mut inventory, 10);
    inventory.prove(&mut scan, 9, at(10), &Budget::default());
    for known in &mut scan.found {
        known.own = true;
    }
    let keep = RetentionRules { retention: 1, ..RetentionRules::default() };
    assert_eq!(to_delete(&scan.found, &keep, at(11)), ["step-3", "step-2", "step-1"]);
}

/// Touching is not writing. A checkpoint that was only copied in place keeps its place in the order of writing once it
/// is read.
#[test]
fn touched_checkpoint_keeps_its_place_in_the_order() {
    let room = Room::new();
    let mut inventory = begun(&room);
    for step in 1..4 {
        room.save(&format!("step-{step}"));
        look(&mut inventory, step);
    }
    let mut scan = look(&mut inventory, 10);
    inventory.prove(&mut scan, 9, at(10), &Budget::default());
    let before = one(&scan, "step-1").found.order;
    let touch = || {
        let file = fs::File::options().write(true).open(room.path("step-1/model")).unwrap();
        file.set_modified(std::time::SystemTime::now() + std::time::Duration::from_secs(9)).unwrap();
    };
    touch();
    let mut scan = look(&mut inventory, 20);
    let found = &one(&scan, "step-1").found;
    assert!(found.order > before && found.earliest == before, "{found:?}");
    scan = look(&mut inventory, 30);
    inventory.prove(&mut scan, 9, at(30), &Budget::default());
    assert_eq!(one(&scan, "step-1").found.order, before);
    room.write("step-1/model", "STEP-1");
    look(&mut inventory, 40);
    let mut scan = look(&mut inventory, 50);
    inventory.prove(&mut scan, 9, at(50), &Budget::default());
    let found = &one(&scan, "step-1").found;
    assert!(found.order > before && found.earliest == found.order, "other bytes: it was written again");
}

/// A checkpoint was rewritten with the same names and sizes, before others that the same scan first saw. It is not one
/// of the later checkpoints that allow those to be deleted.
#[test]
fn rewritten_checkpoint_is_ordered_within_its_scan() {
    let room = Room::new();
    let mut inventory = begun(&room);
    let now = std::time::SystemTime::now();
    let write = |step: u64, order: u64| {
        for file in ["model", "deep/er", ".complete"] {
            let file = fs::File::options().write(true).open(room.path(&format!("step-{step}/{file}"))).unwrap();
            file.set_modified(now + std::time::Duration::from_millis(order)).unwrap();
        }
    };
    room.save("step-7");
    write(7, 1);
    look(&mut inventory, 1);
    let mut scan = look(&mut inventory, 10);
    inventory.prove(&mut scan, 9, at(10), &Budget::default());
    // Another run, which dies soon each time.
    room.write("step-7/model", "STEP-7");
    write(7, 2);
    for (step, order) in [(3, 3), (5, 4)] {
        room.save(&format!("step-{step}"));
        write(step, order);
    }
    look(&mut inventory, 20);
    let mut scan = look(&mut inventory, 30);
    inventory.prove(&mut scan, 9, at(30), &Budget::default());
    let order = |step: u64| one(&scan, &format!("step-{step}")).found.order;
    assert!(order(7) < order(3) && order(3) < order(5), "{:?}", [7, 3, 5].map(order));
    let found = &one(&scan, "step-7").found;
    assert_eq!(found.earliest, found.order);
    for known in &mut scan.found {
        known.own = true;
    }
    let keep = RetentionRules { retention: 2, ..RetentionRules::default() };
    assert_eq!(to_delete(&scan.found, &keep, at(31)), [""; 0]);
}

/// Checkpoints written while their folder was unreadable are ordered by their times.
#[test]
fn checkpoints_from_an_unreadable_period_are_ordered_by_time() {
    as_nobody(); // root reads any folder
    let room = Room::new();
    let mut inventory = begun(&room);
    room.save("sft/step-1");
    look(&mut inventory, 1);
    let save = |step: u64, second: i64| {
        room.save(&format!("sft/step-{step}"));
        for file in ["model", "deep/er", ".complete"] {
            let path = room.path(&format!("sft/step-{step}/{file}"));
            let file = fs::File::options().write(true).open(path).unwrap();
            file.set_modified(std::time::SystemTime::from(at(second))).unwrap();
        }
    };
    save(2, 2);
    let allow = |mode| fs::set_permissions(room.path("sft"), Permissions::from_mode(mode)).unwrap();
    allow(0o000);
    look(&mut inventory, 7200);
    look(&mut inventory, 7220);
    allow(0o755);
    save(3, 7230);
    let scan = look(&mut inventory, 7240);
    let order = |step: u64| one(&scan, &format!("sft/step-{step}")).found.order;
    assert!(order(1) < order(2) && order(2) < order(3), "{:?}", [1, 2, 3].map(order));
}
