//! Removes checkpoints, so that no reader ever sees half of a save and a kill at any instant loses nothing else.
//!
//! A folder is renamed into the trash, which is in the same file system, and deleted there. Files are moved into the
//! trash one by one, beginning with the one that makes them a checkpoint. A list of them is written before. With that
//! list, the next process that empties the trash completes the removal.

use crate::budget::Budget;
use crate::files::Member;
use crate::folder::{Folder, is_file};
use crate::found::FoundCheckpoint;
use crate::inventory::members;
use crate::ledger::{BESIDE, OURS, TRASH, create, unique};
use crate::step::step;
use crate::wording::shown;
use jiff::Timestamp;
use nix::errno::Errno;
use nix::fcntl::renameat;
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString};
use std::io::{self, Read, Write};

/// Suffix of the list of files that are being moved into the trash.
const MOVES: &str = ".moves";
const MOVES_LIMIT: u64 = 16 << 20;
/// Number of names read at once.
const BATCH: usize = 10_000;
/// A file that was not renamed for this long, in seconds, no longer has a writer.
const BESIDE_SECONDS: i64 = 3600;

/// Files that are being moved into the trash.
#[derive(Serialize, Deserialize)]
struct TrashMoves {
    /// The folder that they lie in; empty for the root.
    from: String,
    /// In the order in which they go.
    files: Vec<Move>,
}

#[derive(Serialize, Deserialize)]
struct Move {
    member: Member,
    /// A file that was recreated since under the same name has another one.
    inode: u64,
}

/// Removes the checkpoints of one save from their places and then from the volume, if they are still as they were
/// found.
///
/// # Errors
/// If one of them has changed since it was found, or can't be removed. If nothing was removed yet, all are still there
/// as they were. Also if they are in the trash and can't be deleted; then [`empty_trash`] tries again.
pub fn remove_save(root: &Folder, save: &[&FoundCheckpoint], budget: &Budget) -> io::Result<()> {
    let refused = |found: &FoundCheckpoint, error: io::Error| {
        io::Error::new(error.kind(), format!("{}: could not be removed: {error}", shown(&found.path)))
    };
    let untimed = budget.without_deadline();
    let mut there = Vec::new();
    for found in save {
        if is_there(root, found, &untimed).map_err(|error| refused(found, error))? {
            there.push(*found);
        }
    }
    let Some(first) = there.first().copied() else { return Ok(()) };
    move_to_trash(root, &there).map_err(|error| refused(first, error))?;
    empty_trash(root, budget)
}

/// Whether a checkpoint is still as it was found. False if it is gone.
fn is_there(root: &Folder, found: &FoundCheckpoint, budget: &Budget) -> io::Result<bool> {
    if found.path == "." || found.path.split('/').any(|name| name == OURS) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is never removed"));
    }
    let names: Vec<String> = found.members.iter().map(|member| member.path.clone()).collect();
    match members(root, &found.path, (!found.folder).then_some(names.as_slice()), budget) {
        Ok(members) if members == found.members => Ok(true),
        Ok(_) => Err(io::Error::other("it has changed since it was looked at")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Moves them into the trash, files first. A list of the files is written before, so that a kill leaves no half of
/// them.
fn move_to_trash(root: &Folder, save: &[&FoundCheckpoint]) -> io::Result<()> {
    let trash = root.make(OURS)?.make(TRASH)?;
    step();
    let mut by_folder: BTreeMap<&str, Vec<&FoundCheckpoint>> = BTreeMap::new();
    for found in save.iter().filter(|found| !found.folder) {
        by_folder.entry(found.path.rsplit_once('/').map_or("", |(folder, _)| folder)).or_default().push(found);
    }
    for (from, files) in by_folder {
        bury_files(root, &trash, from, &files)?;
    }
    for found in save.iter().filter(|found| found.folder) {
        let (parent, name) = root.parent(&found.path)?;
        gone(renameat(&parent, name, &trash, unique().as_str()))?;
        step();
    }
    Ok(())
}

fn bury_files(root: &Folder, trash: &Folder, from: &str, save: &[&FoundCheckpoint]) -> io::Result<()> {
    let parent = root.folder(if from.is_empty() { "." } else { from })?;
    let mut files: Vec<Move> = Vec::new();
    let mut paths = BTreeSet::new();
    for member in save.iter().flat_map(|found| &found.members) {
        if paths.insert(&member.path) {
            files.push(Move { member: member.clone(), inode: parent.stat(&member.path)?.st_ino });
        }
    }
    // A program is given the index. Otherwise the file that was written last makes the checkpoint whole.
    let is_index = |member: &Member| member.path.ends_with(".index") || member.path.ends_with(".json");
    files.sort_by_key(|it| std::cmp::Reverse((is_index(&it.member), it.member.modified)));
    let moves = TrashMoves { from: from.to_owned(), files };
    let list = unique() + MOVES;
    // A full volume has no room for the list. A kill between two of the files then leaves the others.
    if let Err(error) = write(trash, &list, &moves).or_else(|error| if is_full(&error) { Ok(()) } else { Err(error) }) {
        let _ = unlinkat(trash, list.as_str(), UnlinkatFlags::NoRemoveDir);
        return Err(error);
    }
    step();
    bring(&parent, trash, &moves)?;
    gone(unlinkat(trash, list.as_str(), UnlinkatFlags::NoRemoveDir))
}

fn write(trash: &Folder, name: &str, moves: &TrashMoves) -> io::Result<()> {
    let mut file = create(trash, name)?;
    step();
    file.write_all(&serde_json::to_vec(moves)?)?;
    file.sync_all()
}

/// Moves the files that still exist into the trash.
fn bring(parent: &Folder, trash: &Folder, moves: &TrashMoves) -> io::Result<()> {
    for Move { member, inode } in &moves.files {
        if parent.member(&member.path)?.as_ref() == Some(member) && parent.stat(&member.path)?.st_ino == *inode {
            gone(renameat(parent, member.path.as_str(), trash, unique().as_str()))?;
            step();
        }
    }
    Ok(())
}

/// Completes earlier removals, and deletes the content of the trash. It follows no link.
///
/// # Errors
/// If something can't be deleted, after everything else was.
pub fn empty_trash(root: &Folder, budget: &Budget) -> io::Result<()> {
    let trash = match root.folder(OURS).and_then(|ours| ours.folder(TRASH)) {
        Ok(trash) => trash,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let mut stuck: BTreeSet<CString> = BTreeSet::new();
    let mut result = Ok(());
    loop {
        let names = trash.raw(BATCH + stuck.len())?;
        let todo: Vec<CString> = names.into_iter().filter(|name| !stuck.contains(name)).collect();
        if todo.is_empty() {
            return result;
        }
        for name in todo {
            budget.go_on()?;
            match delete(root, &trash, &name, budget) {
                Ok(true) => {}
                Ok(false) => _ = stuck.insert(name),
                Err(error) => {
                    result = Err(io::Error::new(error.kind(), format!("{OURS}/{TRASH} could not be emptied: {error}")));
                    stuck.insert(name);
                }
            }
        }
    }
}

/// Deletes an entry of the trash, or part of it. False if it has to stay for now.
fn delete(root: &Folder, trash: &Folder, name: &CStr, budget: &Budget) -> io::Result<bool> {
    if let Ok(name) = name.to_str() {
        if name.ends_with(MOVES) {
            end_moves(root, trash, name)?;
        } else if name.ends_with(BESIDE) && trash.stat(name).is_ok_and(|stat| is_file(&stat) && is_young(stat.st_mtime))
        {
            return Ok(false);
        }
    }
    step();
    if unlink(trash, name)? {
        return Ok(true);
    }
    // Its files are deleted, and its folders are moved up beside it. So nothing is ever too deep.
    let folder = match trash.child(name) {
        Ok(folder) => folder,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        Err(error) => return Err(error),
    };
    let names = folder.raw(BATCH)?;
    let is_all = names.len() < BATCH;
    for name in names {
        budget.go_on()?;
        if !unlink(&folder, &name)? {
            gone(renameat(&folder, name.as_c_str(), trash, unique().as_str()))?;
        }
        step();
    }
    if is_all {
        gone(unlinkat(trash, name, UnlinkatFlags::RemoveDir))?;
    }
    Ok(true)
}

/// Removes an entry that is not a folder. False if it is a folder.
fn unlink(folder: &Folder, name: &CStr) -> io::Result<bool> {
    match unlinkat(folder, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(true),
        Err(Errno::EISDIR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn end_moves(root: &Folder, trash: &Folder, name: &str) -> io::Result<()> {
    // A list of another user is not executed with the rights of this process.
    if trash.stat(name)?.st_uid != geteuid().as_raw() {
        return Ok(());
    }
    let mut text = Vec::new();
    trash.file(name)?.take(MOVES_LIMIT).read_to_end(&mut text)?;
    // A list that is incomplete was not acted upon.
    let Ok(moves) = serde_json::from_slice::<TrashMoves>(&text) else { return Ok(()) };
    match root.folder(if moves.from.is_empty() { "." } else { &moves.from }) {
        Ok(parent) => bring(&parent, trash, &moves),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn is_young(modified: i64) -> bool {
    Timestamp::now().as_second().abs_diff(modified) < BESIDE_SECONDS.unsigned_abs()
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// An entry that another process has removed counts as removed.
fn gone(result: nix::Result<()>) -> io::Result<()> {
    match result {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::{Inventory, KnownCheckpoint};
    use crate::testing::{FORMATS, Room, as_nobody, killed_after, to_be_killed};
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    fn scan(root: &Path) -> Vec<KnownCheckpoint> {
        Inventory::with_formats(root, "", "", FORMATS).scan(Timestamp::now(), None, &Budget::default()).found
    }

    fn find(root: &Path, path: &str) -> KnownCheckpoint {
        scan(root).into_iter().find(|known| known.found.path == path).unwrap()
    }

    fn remove_at(root: &Path, found: &FoundCheckpoint) -> io::Result<()> {
        remove_save(&Folder::root(root).unwrap(), &[found], &Budget::default())
    }

    fn trash(room: &Room) -> usize {
        std::fs::read_dir(room.path(".trainingjob/trash")).unwrap().count()
    }

    fn save_all(room: &Room) {
        for path in ["keep/step-1", "keep/step-2", "gone/step-1", "gone/step-2"] {
            room.save(path);
        }
        for prefix in ["keep/shards-1", "gone/shards-1", "gone/shards-10", "shards-3"] {
            for file in ["data-0", "data-1", "index"] {
                room.write(&format!("{prefix}.{file}"), prefix);
            }
        }
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "as the iterator calls it")]
    fn is_to_go(known: &&KnownCheckpoint) -> bool {
        known.found.path.starts_with("gone/") || known.found.path == "shards-3"
    }

    #[test]
    fn removal_deletes_exactly_the_given_checkpoints() {
        let room = Room::new();
        let root = room.path("");
        save_all(&room);
        room.write("outside/file", "x");
        symlink(room.path("outside"), room.path("gone/step-1/link")).unwrap();
        room.write(&format!("gone/step-2/{}file", "deep/".repeat(15)), "x");
        room.write("gone/step-2/line\nbreak", "x");
        let all = scan(&root);
        for known in all.iter().filter(is_to_go) {
            remove_at(&root, &known.found).unwrap();
        }
        let kept: Vec<FoundCheckpoint> =
            all.into_iter().filter(|known| !is_to_go(&known)).map(|known| known.found).collect();
        let left: Vec<FoundCheckpoint> = scan(&root).into_iter().map(|known| known.found).collect();
        assert_eq!(left, kept);
        assert!(room.path("outside/file").exists());
        assert_eq!(std::fs::read_dir(room.path("gone")).unwrap().count(), 0);
        assert_eq!(trash(&room), 0);
    }

    #[test]
    fn changed_checkpoints_and_other_paths_are_not_removed() {
        let room = Room::new();
        let root = room.path("");
        save_all(&room);
        for path in ["keep/step-1", "keep/shards-1"] {
            let known = find(&root, path);
            room.write(
                &known.found.members[0]
                    .path
                    .replace("shards", "keep/shards")
                    .replace(".complete", "keep/step-1/.complete"),
                "new!",
            );
            assert!(remove_at(&root, &known.found).unwrap_err().to_string().contains("has changed"), "{path}");
        }
        assert_eq!(scan(&root).len(), 8);
        let known = find(&root, "keep/step-2");
        for path in [".", "..", "", ".trainingjob", ".trainingjob/jobs", "../x"] {
            assert!(remove_at(&root, &FoundCheckpoint { path: path.into(), ..known.found.clone() }).is_err(), "{path}");
        }
        assert!(remove_at(&root, &known.found).is_ok());
        assert!(remove_at(&root, &known.found).is_ok(), "what is gone is gone");
    }

    #[test]
    fn undeletable_trash_does_not_block_the_rest() {
        std::thread::spawn(|| {
            as_nobody();
            let room = Room::new();
            room.write(".trainingjob/trash/a/locked/file", "x");
            room.write(".trainingjob/trash/b", "x");
            room.write(".trainingjob/trash/z/file", "x");
            room.write(".trainingjob/trash/young.tmp", "x");
            let locked = room.path(".trainingjob/trash/a/locked");
            std::fs::set_permissions(&locked, PermissionsExt::from_mode(0o500)).unwrap();
            let root = Folder::root(&room.path("")).unwrap();
            assert!(empty_trash(&root, &Budget::default()).unwrap_err().to_string().contains("could not be emptied"));
            assert_eq!(trash(&room), 2);
            std::fs::set_permissions(&locked, PermissionsExt::from_mode(0o700)).unwrap();
            empty_trash(&root, &Budget::default()).unwrap();
            assert_eq!(trash(&room), 1);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn rewritten_file_is_not_deleted_by_an_old_removal() {
        let room = Room::new();
        room.write("shards-1.data", "new");
        let folder = Folder::root(&room.path("")).unwrap();
        let member = folder.member("shards-1.data").unwrap().unwrap();
        let inode = folder.stat("shards-1.data").unwrap().st_ino + 1;
        let moves = TrashMoves { from: String::new(), files: vec![Move { member, inode }] };
        room.write(".trainingjob/trash/1.moves", &serde_json::to_string(&moves).unwrap());
        room.write(".trainingjob/trash/2.moves", "{\"from\":");
        empty_trash(&folder, &Budget::default()).unwrap();
        assert!(room.path("shards-1.data").exists());
        assert_eq!(trash(&room), 0);
    }

    /// A process of its own, killed by SIGKILL at its first step, then at its second, and so on.
    #[test]
    fn kill_during_removal_loses_nothing_else() {
        for steps in 0.. {
            let room = Room::new();
            save_all(&room);
            let before = scan(&room.path(""));
            let is_done = killed_after(steps, &room, concat!(module_path!(), "::child"));
            let after = scan(&room.path(""));
            for known in &before {
                let left = after.iter().find(|left| left.found.path == known.found.path);
                match left {
                    Some(left) if left.found == known.found => {}
                    _ if !is_to_go(&known) => panic!("{} was harmed after {steps} steps", known.found.path),
                    Some(left) => assert!(!left.found.is_good(), "half of {} after {steps} steps", known.found.path),
                    None => {}
                }
            }
            empty_trash(&Folder::root(&room.path("")).unwrap(), &Budget::default()).unwrap();
            assert_eq!(trash(&room), 0, "after {steps} steps");
            for known in scan(&room.path("")) {
                assert!(known.found.is_good(), "{} is left after {steps} steps", known.found.path);
            }
            if is_done {
                assert!(steps > 30, "{steps} steps");
                return;
            }
        }
    }

    #[test]
    #[ignore = "is begun and killed by another test"]
    fn child() {
        let Some(root) = to_be_killed() else { return };
        let found = scan(&root);
        let root = root.as_path();
        for known in found.iter().filter(is_to_go) {
            remove_at(root, &known.found).unwrap();
        }
    }
}
